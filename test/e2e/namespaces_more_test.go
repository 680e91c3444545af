package e2e

import (
	"context"
	"fmt"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/kueue/pkg/controller/constants"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

var _ = ginkgo.Describe("Real namespaces", func() {
	ginkgo.It("queue what a ResourceQuota has no room for now", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 16})
		for _, o := range resourceQuota(map[corev1.ResourceName]string{gpuQuota: "8"})(g.namespace) {
			gomega.Expect(admin.Create(ctx, o)).To(gomega.Succeed())
			q := o.(*corev1.ResourceQuota)
			gomega.Eventually(func() int { return len(get(ctx, q).Status.Hard) }).Should(gomega.Equal(1))
		}
		g.runtime(ctx, "long", "forever")
		g.runtime(ctx, "torch", "1s")
		first := g.submit(ctx, g.trainJob("first", "long", 1))
		gomega.Eventually(running(ctx, first)).Should(gomega.BeTrue())
		gomega.Eventually(func() []string { return g.list(ctx, &corev1.PodList{}) }).Should(gomega.HaveLen(1))
		second := g.submit(ctx, g.trainJob("second", "torch", 1))
		gomega.Eventually(func() bool { return workloadOf(ctx, second) != nil }).Should(gomega.BeTrue())
		gomega.Expect(blockedBy(ctx, second)()).To(gomega.BeEmpty())
		gomega.Expect(user.Delete(ctx, first)).To(gomega.Succeed())
		gomega.Eventually(complete(ctx, second), "2m").Should(gomega.BeTrue())
	})

	ginkgo.It("say why the pods of a started TrainJob can't be created, until they are", func(ctx context.Context) {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "other"}}
		pod.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "example.com/waits"}}
		pod.Spec.Containers = []corev1.Container{{Name: "a", Image: "example.com/none:1"}}
		usedUp(ctx, "pods", pod)
	})

	if !cluster.bundled() {
		return
	}
	ginkgo.It("say why JobSet can't create its Jobs, until it can", func(ctx context.Context) {
		job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: "other"}}
		job.Spec.Suspend = ptr.To(true)
		job.Spec.Template.Spec.RestartPolicy = corev1.RestartPolicyNever
		job.Spec.Template.Spec.Containers = []corev1.Container{{Name: "a", Image: "example.com/none:1"}}
		usedUp(ctx, "count/jobs.batch", job)
	})

	ginkgo.It("name a Job of another client that bears its Job's name, until it is gone", func(ctx context.Context) {
		audited.ofBurst() // it holds quota for nothing until it is told why: a minute
		g := newGround(ctx, map[string]int64{"a100": 8})
		g.runtime(ctx, "torch", "1s")
		other := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: g.namespace, Name: "named-node-0"}}
		other.Spec.Suspend = ptr.To(true)
		other.Spec.Template.Spec.RestartPolicy = corev1.RestartPolicyNever
		other.Spec.Template.Spec.Containers = []corev1.Container{{Name: "a", Image: "example.com/none:1"}}
		gomega.Expect(admin.Create(ctx, other)).To(gomega.Succeed())
		tj := g.submit(ctx, g.trainJob("named", "torch", 1))
		gomega.Eventually(blockedBy(ctx, tj), "3m").Should(gomega.HavePrefix("PodsRefused: Job named-node-0 exists"))
		gomega.Expect(admin.Delete(ctx, other, client.PropagationPolicy(metav1.DeletePropagationBackground))).To(
			gomega.Succeed())
		gomega.Eventually(complete(ctx, tj), "3m").Should(gomega.BeTrue())
	})

	ginkgo.It("start every runtime that Trainer ships, and Flux' example, with their Secrets", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 64})
		all := append(installShippedRuntimes(ctx), installPodGroupRuntimes(ctx)...)
		for i := range all {
			g.serviceAccounts(ctx, &all[i].Spec)
			name := fmt.Sprintf("job-%d", i)
			tj := g.submit(ctx, &api.TrainJob{
				ObjectMeta: metav1.ObjectMeta{Namespace: g.namespace, Name: name,
					Labels: map[string]string{constants.QueueLabel: localQueue}},
				Spec: api.TrainJobSpec{TrainJobSpec: trainerapi.TrainJobSpec{Suspend: ptr.To(true),
					RuntimeRef: trainerapi.RuntimeRef{APIGroup: ptr.To(trainerapi.GroupVersion.Group),
						Kind: ptr.To(trainerapi.ClusterTrainingRuntimeKind), Name: all[i].Name}}},
			})
			gomega.Eventually(func() []string { return g.list(ctx, &batchv1.JobList{}) }).Should(
				gomega.ContainElement(gomega.HavePrefix(name+"-")), "%s: %s", all[i].Name, blockedBy(ctx, tj)())
			gomega.Expect(user.Delete(ctx, tj)).To(gomega.Succeed())
		}
	})
})

// usedUp starts a TrainJob in a namespace whose ResourceQuota of one is used up by another object. It holds that the
// TrainJob says so, and keeps its quota, and that it runs when the other is gone.
func usedUp(ctx context.Context, counted corev1.ResourceName, other client.Object) {
	ginkgo.GinkgoHelper()
	g := newGround(ctx, map[string]int64{"a100": 8})
	for _, o := range resourceQuota(map[corev1.ResourceName]string{counted: "1"})(g.namespace) {
		gomega.Expect(admin.Create(ctx, o)).To(gomega.Succeed())
		q := o.(*corev1.ResourceQuota)
		gomega.Eventually(func() int { return len(get(ctx, q).Status.Hard) }).Should(gomega.Equal(1))
	}
	other.SetNamespace(g.namespace)
	gomega.Eventually(func() error { return ignoreExists(admin.Create(ctx, other)) }).Should(gomega.Succeed())
	g.runtime(ctx, "torch", "1s")
	tj := g.submit(ctx, g.trainJob("starved", "torch", 1))
	gomega.Eventually(blockedBy(ctx, tj)).Should(gomega.And(
		gomega.HavePrefix("QuotaExceeded: "), gomega.ContainSubstring("exceeded quota: "+quotaName)))
	gomega.Expect(running(ctx, tj)()).To(gomega.BeTrue())
	gomega.Expect(g.used(ctx)()).To(gomega.Equal(int64(8)))
	gomega.Eventually(eventsOf(ctx, get(ctx, tj))).Should(gomega.ContainElement(gomega.HavePrefix("QuotaExceeded: ")))
	if cluster.bundled() {
		gomega.Eventually(state(ctx, tj)).Should(gomega.Equal(api.StateBlocked))
	}
	gomega.Expect(admin.Delete(ctx, other, client.PropagationPolicy(metav1.DeletePropagationBackground))).To(
		gomega.Succeed())
	gomega.Eventually(complete(ctx, tj), "3m").Should(gomega.BeTrue())
	gomega.Eventually(blockedBy(ctx, tj)).Should(gomega.BeEmpty())
}

// serviceAccounts creates those that a runtime names.
func (g *ground) serviceAccounts(ctx context.Context, spec *trainerapi.TrainingRuntimeSpec) {
	ginkgo.GinkgoHelper()
	for _, rj := range spec.Template.Spec.ReplicatedJobs {
		if name := rj.Template.Spec.Template.Spec.ServiceAccountName; name != "" {
			gomega.Expect(ignoreExists(admin.Create(ctx, &corev1.ServiceAccount{
				ObjectMeta: metav1.ObjectMeta{Namespace: g.namespace, Name: name}}))).To(gomega.Succeed())
		}
	}
}
