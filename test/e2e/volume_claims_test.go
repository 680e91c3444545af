package e2e

import (
	"context"
	"slices"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/trainer"
)

// claiming is a runtime whose initializer fills a claim that its nodes mount, as Trainer's torchtune runtimes have it.
func (g *ground) claiming(ctx context.Context, name, nodes string, policy jobset.RetentionPolicyType) {
	ginkgo.GinkgoHelper()
	size := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	modes := []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}
	volume := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: g.namespace + "-" + name},
		Spec: corev1.PersistentVolumeSpec{Capacity: size, AccessModes: modes, StorageClassName: g.namespace,
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			PersistentVolumeSource:        corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/data"}}}}
	gomega.Expect(admin.Create(ctx, volume)).To(gomega.Succeed())
	ginkgo.DeferCleanup(func(ctx context.Context) {
		gomega.Expect(ignoreNotFound(admin.Delete(ctx, volume))).To(gomega.Succeed())
	})
	g.runtime(ctx, name, nodes, func(rt *api.TrainingRuntime) {
		spec := &rt.Spec.Template.Spec
		init := step("dataset-initializer", "dataset-initializer", "1s")
		node := &spec.ReplicatedJobs[0]
		node.DependsOn = []jobset.DependsOn{{Name: init.Name, Status: jobset.DependencyComplete}}
		spec.ReplicatedJobs = []jobset.ReplicatedJob{init, *node}
		for i := range spec.ReplicatedJobs {
			c := &spec.ReplicatedJobs[i].Template.Spec.Template.Spec.Containers[0]
			c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: "data", MountPath: "/data"})
		}
		spec.VolumeClaimPolicies = []jobset.VolumeClaimPolicy{{
			RetentionPolicy: &jobset.VolumeRetentionPolicy{WhenDeleted: &policy},
			Templates: []corev1.PersistentVolumeClaim{{ObjectMeta: metav1.ObjectMeta{Name: "data"},
				Spec: corev1.PersistentVolumeClaimSpec{AccessModes: modes, StorageClassName: ptr.To(g.namespace),
					Resources: corev1.VolumeResourceRequirements{Requests: size}}}},
		}}
	})
}

var _ = ginkgo.Describe("Claims of a runtime", func() {
	if !cluster.bundled() {
		return
	}
	claimOf := func(ctx context.Context, tj *api.TrainJob) (*corev1.PersistentVolumeClaim, error) {
		claim := &corev1.PersistentVolumeClaim{}
		return claim, admin.Get(ctx, client.ObjectKey{Namespace: tj.Namespace, Name: "data-" + tj.Name}, claim)
	}
	theirs := func(ctx context.Context, tj *api.TrainJob) *corev1.PersistentVolumeClaim {
		ginkgo.GinkgoHelper()
		claim, err := claimOf(ctx, tj)
		gomega.Expect(err).NotTo(gomega.HaveOccurred())
		return claim
	}
	gone := func(ctx context.Context, tj *api.TrainJob) func() bool {
		return func() bool {
			_, err := claimOf(ctx, tj)
			return apierrors.IsNotFound(err)
		}
	}
	steps := func(ctx context.Context, tj *api.TrainJob) func() []string {
		return func() []string {
			js := &jobset.JobSet{}
			if admin.Get(ctx, client.ObjectKeyFromObject(tj), js) != nil || !js.DeletionTimestamp.IsZero() {
				return nil
			}
			var names []string
			for _, rj := range js.Spec.ReplicatedJobs {
				names = append(names, rj.Name)
			}
			return names
		}
	}
	filled := func(ctx context.Context, tj *api.TrainJob) func() bool {
		return func() bool {
			return slices.ContainsFunc(get(ctx, tj).Status.JobsStatus, func(s trainerapi.JobStatus) bool {
				return s.Name == "dataset-initializer" && ptr.Deref(s.Succeeded, 0) == 1
			})
		}
	}
	active := func(ctx context.Context, tj *api.TrainJob, active bool) {
		ginkgo.GinkgoHelper()
		gomega.Eventually(func() error {
			wl := workloadOf(ctx, tj)
			wl.Spec.Active = &active
			return admin.Update(ctx, wl)
		}).Should(gomega.Succeed())
		gomega.Eventually(func() bool { return ptr.Deref(workloadOf(ctx, tj).Spec.Active, true) }).Should(
			gomega.Equal(active), "when the last pod has ended")
	}

	ginkgo.It("outlive an eviction, and go with the TrainJob", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 8})
		g.claiming(ctx, "claims", "forever", jobset.RetentionPolicyDelete)
		tj := g.submit(ctx, g.trainJob("job", "claims", 1))
		gomega.Eventually(filled(ctx, tj)).Should(gomega.BeTrue())
		before := theirs(ctx, tj)
		active(ctx, tj, false)
		gomega.Eventually(g.used(ctx)).Should(gomega.BeZero())
		gomega.Eventually(steps(ctx, tj)).Should(gomega.BeEmpty())
		gomega.Expect(theirs(ctx, tj).UID).To(gomega.Equal(before.UID))
		active(ctx, tj, true)
		gomega.Eventually(steps(ctx, tj)).Should(gomega.Equal([]string{"node"}), "what the initializer has written is there")
		gomega.Eventually(running(ctx, tj)).Should(gomega.BeTrue())
		gomega.Expect(theirs(ctx, tj).UID).To(gomega.Equal(before.UID))
		gomega.Expect(user.Delete(ctx, tj)).To(gomega.Succeed())
		gomega.Eventually(gone(ctx, tj)).Should(gomega.BeTrue())
	})

	ginkgo.It("count once in a ResourceQuota", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 8})
		for _, o := range resourceQuota(map[corev1.ResourceName]string{"persistentvolumeclaims": "1"})(g.namespace) {
			gomega.Expect(admin.Create(ctx, o)).To(gomega.Succeed())
			q := o.(*corev1.ResourceQuota)
			gomega.Eventually(func() int { return len(get(ctx, q).Status.Hard) }).Should(gomega.Equal(1))
		}
		g.claiming(ctx, "claims", "forever", jobset.RetentionPolicyDelete)
		tj := g.submit(ctx, g.trainJob("job", "claims", 1))
		gomega.Eventually(filled(ctx, tj)).Should(gomega.BeTrue())
		active(ctx, tj, false)
		gomega.Eventually(steps(ctx, tj)).Should(gomega.BeEmpty())
		cluster.mustAct("restart", "signalbox")
		active(ctx, tj, true)
		gomega.Eventually(running(ctx, tj)).Should(gomega.BeTrue())
		gomega.Expect(blockedBy(ctx, tj)()).To(gomega.BeEmpty())
	})

	ginkgo.It("stay if they are retained, and the next TrainJob of the name has them", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 8})
		g.claiming(ctx, "claims", "1s", jobset.RetentionPolicyRetain)
		tj := g.submit(ctx, g.trainJob("job", "claims", 1))
		gomega.Eventually(complete(ctx, tj)).Should(gomega.BeTrue())
		before := theirs(ctx, tj)
		gomega.Expect(user.Delete(ctx, tj)).To(gomega.Succeed())
		gomega.Eventually(func() error { return user.Get(ctx, client.ObjectKeyFromObject(tj), tj) }).Should(
			gomega.Satisfy(apierrors.IsNotFound))
		next := g.submit(ctx, g.trainJob("job", "claims", 1))
		gomega.Eventually(complete(ctx, next)).Should(gomega.BeTrue())
		gomega.Expect(theirs(ctx, next).UID).To(gomega.Equal(before.UID))
	})

	ginkgo.It("that are lost have their initializer run again, on its quota", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 8})
		g.claiming(ctx, "claims", "forever", jobset.RetentionPolicyDelete)
		tj := g.submit(ctx, g.trainJob("job", "claims", 1))
		gomega.Eventually(filled(ctx, tj)).Should(gomega.BeTrue())
		active(ctx, tj, false)
		gomega.Eventually(steps(ctx, tj)).Should(gomega.BeEmpty())
		gomega.Eventually(g.used(ctx)).Should(gomega.BeZero())
		gomega.Expect(admin.Delete(ctx, theirs(ctx, tj))).To(gomega.Succeed())
		gomega.Eventually(gone(ctx, tj)).Should(gomega.BeTrue())
		active(ctx, tj, true)
		gomega.Eventually(steps(ctx, tj)).Should(gomega.Equal([]string{"dataset-initializer", "node"}))
		gomega.Eventually(eventsOf(ctx, tj)).Should(gomega.ContainElement(gomega.ContainSubstring("data-job is gone")))
		wl := workloadOf(ctx, tj)
		gomega.Expect(wl.Status.ReclaimablePods).To(gomega.BeEmpty())
	})

	ginkgo.It("have their initializer run again if it was changed, on its quota", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 8})
		g.claiming(ctx, "claims", "forever", jobset.RetentionPolicyDelete)
		tj := g.submit(ctx, g.trainJob("job", "claims", 1))
		trains := func() int { return len(podsNamed(ctx, tj, "node")) }
		rerun := func(between func(), want ...string) {
			ginkgo.GinkgoHelper()
			gomega.Eventually(trains).Should(gomega.Equal(1), "the initializer is done")
			active(ctx, tj, false)
			gomega.Eventually(steps(ctx, tj)).Should(gomega.BeEmpty())
			gomega.Eventually(g.used(ctx)).Should(gomega.BeZero())
			between()
			active(ctx, tj, true)
			gomega.Eventually(steps(ctx, tj)).Should(gomega.Equal(want))
		}
		rerun(func() {
			gomega.Eventually(func() error {
				now := get(ctx, tj)
				entryFor("example.com/team", "dataset-initializer", func(pods *metav1.ObjectMeta, _ *trainerapi.PodSpecPatch) {
					pods.Labels = map[string]string{"data": "second"}
				})(now)
				return user.Update(ctx, now)
			}).Should(gomega.Succeed())
		}, "dataset-initializer", "node")
		rerun(func() {}, "node")
	})

	ginkgo.It("that are another's keep the TrainJob from its queue", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 8})
		g.claiming(ctx, "claims", "1s", jobset.RetentionPolicyDelete)
		other := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: g.namespace, Name: "data-job"},
			Spec: corev1.PersistentVolumeClaimSpec{AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany},
				Resources: corev1.VolumeResourceRequirements{
					Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}}}}
		gomega.Expect(admin.Create(ctx, other)).To(gomega.Succeed())
		tj := g.submit(ctx, g.trainJob("job", "claims", 1))
		gomega.Eventually(blocked(ctx, tj)).Should(gomega.Equal(trainer.ReasonNameTaken))
		gomega.Expect(g.used(ctx)()).To(gomega.BeZero())
		gomega.Expect(admin.Delete(ctx, other)).To(gomega.Succeed())
		gomega.Eventually(complete(ctx, tj)).Should(gomega.BeTrue())
	})
})
