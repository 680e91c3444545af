package e2e

import (
	"context"
	"fmt"
	"strings"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/store"
)

func init() {
	if cluster.bundled() {
		ginkgo.Describe("The bundled Trainer", bundledSpecs)
		ginkgo.Describe("The bundled Trainer", waitsForTime, func() {
			progressSpecs()
			usageSpecs()
			stallSpecs()
			victimSpecs()
		})
	}
}

func bundledSpecs() {
	ginkgo.It("makes nothing for a TrainJob that waits: two objects, and at most 6 writes", func(ctx context.Context) {
		const jobs = 20
		g := newGround(ctx, map[string]int64{"a100": 8}, func(cq *kueue.ClusterQueue) {
			cq.Spec.StopPolicy = ptr.To(kueue.Hold)
		})
		g.runtime(ctx, "torch", "1s")
		gomega.Eventually(func() bool { // what a namespace and a queue are given by themselves
			lq := get(ctx, &kueue.LocalQueue{ObjectMeta: metav1.ObjectMeta{Namespace: g.namespace, Name: localQueue}})
			root := admin.Get(ctx, client.ObjectKey{Namespace: g.namespace, Name: "kube-root-ca.crt"}, &corev1.ConfigMap{})
			account := admin.Get(ctx, client.ObjectKey{Namespace: g.namespace, Name: "default"}, &corev1.ServiceAccount{})
			return len(lq.Status.Conditions) > 0 && root == nil && account == nil
		}).Should(gomega.BeTrue())
		from := cluster.auditEnd()
		count := func() []request {
			return cluster.requests(from, func(r request) bool {
				return r.Writes() && r.User.Username != "user" && r.User.Username != "admin" &&
					(r.ObjectRef.Namespace == g.namespace || r.ObjectRef.Name == g.queue)
			})
		}
		quiet := func() {
			ginkgo.GinkgoHelper()
			last := -1
			gomega.Eventually(func() bool { n := len(count()); still := n == last; last = n; return still },
				"30s", "1s").Should(gomega.BeTrue())
		}
		quiet()
		from = cluster.auditEnd()
		var waiting []*api.TrainJob
		var expected []any
		for i := range jobs {
			name := fmt.Sprintf("waits-%d", i)
			waiting = append(waiting, g.submit(ctx, g.trainJob(name, "torch", 1)))
			expected = append(expected, "TrainJob "+name, gomega.HavePrefix("Workload trainjob-"+name+"-"))
		}
		for _, tj := range waiting {
			gomega.Eventually(state(ctx, tj)).Should(gomega.Equal(api.StateQueued))
			gomega.Eventually(func() string { return told(ctx, tj, api.ConditionQuotaReserved) }).Should(gomega.ContainSubstring(
				"ClusterQueue " + g.queue + " is inactive"))
		}
		quiet()
		objects := objectsIn(ctx, g.namespace, "kube-root-ca.crt", "default", "torch", localQueue)
		ginkgo.AddReportEntry(fmt.Sprintf(
			"waiting: %.2f objects and %.2f writes by all clients but the user per TrainJob, of %d",
			float64(len(objects))/jobs, float64(len(count()))/jobs, jobs), summary(count()))
		gomega.Expect(objects).To(gomega.ConsistOf(expected...))
		gomega.Consistently(func() int { return len(count()) }, "3s").Should(gomega.BeNumerically("<=", 6*jobs),
			func() string { return strings.Join(summary(count()), "\n") })
	})

	ginkgo.It("tells in kubectl's columns and in the conditions where a TrainJob stands", func(ctx context.Context) {
		low, high := makePriorities(ctx)
		g := newGround(ctx, map[string]int64{"a100": 8})
		g.runtime(ctx, "torch", "forever")
		tj := g.submit(ctx, g.trainJob("told", "torch", 1, priority(low)))
		gomega.Eventually(state(ctx, tj)).Should(gomega.Equal(api.StateRunning))
		gomega.Expect(columns(ctx, tj)).To(gomega.Equal(map[string]string{
			"Name": "told", "State": "Running", "Queue": localQueue, "Flavor": "a100",
		}))
		large := g.submit(ctx, g.trainJob("large", "torch", 2, priority(low)))
		gomega.Eventually(func() string { return told(ctx, large, api.ConditionQuotaReserved) }).Should(gomega.And(
			gomega.HavePrefix("False "), gomega.ContainSubstring("insufficient quota for nvidia.com/gpu in flavor a100")))
		gomega.Expect(columns(ctx, large)).To(gomega.HaveKeyWithValue("State", "Queued"))
		urgent := g.submit(ctx, g.trainJob("urgent", "torch", 1, priority(high)))
		gomega.Eventually(func() string { return told(ctx, tj, api.ConditionEvicted) }).Should(
			gomega.HavePrefix("True Preempted: Preempted to accommodate a workload"))
		gomega.Eventually(state(ctx, tj)).Should(gomega.Equal(api.StateQueued))
		gomega.Expect(columns(ctx, tj)).To(gomega.HaveKeyWithValue("Flavor", ""))
		gomega.Eventually(state(ctx, urgent)).Should(gomega.Equal(api.StateRunning))
		gomega.Expect(user.Delete(ctx, urgent)).To(gomega.Succeed())
		gomega.Eventually(state(ctx, tj)).Should(gomega.Equal(api.StateRunning))
		gomega.Expect(get(ctx, tj).Status.Conditions).To(gomega.BeEmpty(), "the Kubeflow SDK asks the pods only then")
		gomega.Expect(get(ctx, tj).Status.StartTime).NotTo(gomega.BeNil())
		gomega.Eventually(func() string { return told(ctx, tj, api.ConditionEvicted) }).Should(gomega.HavePrefix("False"))
	})

	ginkgo.It("makes the children of an evicted TrainJob anew, and doesn't run an initializer again "+
		"whose work has outlived them", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 8, "h100": 8})
		initialized := func(volume corev1.VolumeSource) func(*api.TrainingRuntime) {
			return func(rt *api.TrainingRuntime) {
				first := step("dataset-initializer", "dataset-initializer", "1s")
				pod := &first.Template.Spec.Template
				pod.Spec.Volumes = []corev1.Volume{{Name: "initializer", VolumeSource: volume}}
				pod.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "initializer", MountPath: "/workspace"}}
				pod.Spec.Tolerations = append(pod.Spec.Tolerations,
					corev1.Toleration{Key: "gpu", Operator: corev1.TolerationOpExists})
				node := &rt.Spec.Template.Spec.ReplicatedJobs[0]
				node.DependsOn = []jobset.DependsOn{{Name: first.Name, Status: jobset.DependencyComplete}}
				rt.Spec.Template.Spec.ReplicatedJobs = []jobset.ReplicatedJob{first, *node}
			}
		}
		g.runtime(ctx, "lasting", "forever", initialized(corev1.VolumeSource{
			NFS: &corev1.NFSVolumeSource{Server: "nfs.example.com", Path: "/"},
		}))
		g.runtime(ctx, "lost", "forever", initialized(corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}))
		for runtime, again := range map[string]int{"lasting": 0, "lost": 1} {
			tj := g.submit(ctx, g.trainJob(runtime, runtime, 1))
			nodes := func() int { return len(podsNamed(ctx, tj, "node")) }
			gomega.Eventually(nodes).Should(gomega.Equal(1), "the trainer comes after its initializer")
			first := get(ctx, &jobset.JobSet{ObjectMeta: metav1.ObjectMeta{Namespace: tj.Namespace, Name: tj.Name}}).UID
			stopPolicy(ctx, g.queue, kueue.HoldAndDrain)
			gomega.Eventually(g.used(ctx)).Should(gomega.BeZero())
			gomega.Expect(objectsIn(ctx, g.namespace, "kube-root-ca.crt", "default", "lasting", "lost", localQueue)).NotTo(
				gomega.ContainElement(gomega.HavePrefix("JobSet")))
			gomega.Expect(g.list(ctx, &corev1.PodList{})).To(gomega.BeEmpty())
			stopPolicy(ctx, g.queue, kueue.None)
			gomega.Eventually(nodes).Should(gomega.Equal(1))
			js := get(ctx, &jobset.JobSet{ObjectMeta: metav1.ObjectMeta{Namespace: tj.Namespace, Name: tj.Name}})
			gomega.Expect(js.UID).NotTo(gomega.Equal(first))
			gomega.Expect(js.Spec.ReplicatedJobs).To(gomega.HaveLen(1+again), runtime)
			gomega.Expect(podsNamed(ctx, tj, "dataset-initializer")).To(gomega.HaveLen(again), runtime)
			gomega.Eventually(func() int32 { return succeeded(ctx, tj, "dataset-initializer") }).Should(
				gomega.BeEquivalentTo(1), "it still counts as done")
			gomega.Expect(watched.startsOf(tj)).To(gomega.Equal(2))
			gomega.Expect(user.Delete(ctx, tj)).To(gomega.Succeed())
			gomega.Eventually(g.used(ctx)).Should(gomega.BeZero())
		}
	})

	ginkgo.It("makes side objects with the JobSet, and takes them away with it", func(ctx context.Context) {
		installPodGroups(ctx)
		g := newGround(ctx, map[string]int64{"a100": 8})
		mpi := get(ctx, &api.ClusterTrainingRuntime{ObjectMeta: metav1.ObjectMeta{Name: "deepspeed-distributed"}})
		rt := &api.TrainingRuntime{
			ObjectMeta: metav1.ObjectMeta{Namespace: g.namespace, Name: "mpi"},
			Spec:       *mpi.Spec.DeepCopy(),
		}
		rt.Spec.PodGroupPolicy = &trainerapi.PodGroupPolicy{PodGroupPolicySource: trainerapi.PodGroupPolicySource{
			Coscheduling: &trainerapi.CoschedulingPodGroupPolicySource{},
		}}
		gomega.Expect(admin.Create(ctx, rt)).To(gomega.Succeed())
		tj := g.submit(ctx, g.trainJob("mpi", "mpi", 1, func(tj *api.TrainJob) {
			some := corev1.ResourceList{gpu: quantity("1")}
			tj.Spec.Trainer.ResourcesPerNode = &corev1.ResourceRequirements{Requests: some, Limits: some}
		}))
		side := func() []string {
			names := []string{}
			for _, o := range childrenOf(ctx, tj) {
				names = append(names, o.GetKind()+" "+o.GetName())
			}
			return names
		}
		gomega.Eventually(side).Should(gomega.ConsistOf(
			"PodGroup mpi", "Secret mpi-mpi-ssh-auth", "ConfigMap mpi-mpi-hostfile"))
		gomega.Eventually(func() []string { return g.list(ctx, &jobset.JobSetList{}) }).Should(gomega.HaveLen(1))
		stopPolicy(ctx, g.queue, kueue.HoldAndDrain)
		gomega.Eventually(g.used(ctx)).Should(gomega.BeZero())
		gomega.Expect(side()).To(gomega.BeEmpty())
		gomega.Expect(g.list(ctx, &jobset.JobSetList{})).To(gomega.BeEmpty())
		stopPolicy(ctx, g.queue, kueue.None)
		gomega.Eventually(side).Should(gomega.HaveLen(3))
		gomega.Expect(watched.startsOf(tj)).To(gomega.Equal(2))
	})

	ginkgo.It("validates runtimes as Kubeflow Trainer does", func(ctx context.Context) {
		for _, labels := range []map[string]string{nil, {"trainer.kubeflow.org/webhook-validation": "disabled"}} {
			rt := &api.ClusterTrainingRuntime{ObjectMeta: metav1.ObjectMeta{GenerateName: "e2e-", Labels: labels}}
			rt.Spec.Template.Spec.ReplicatedJobs = []jobset.ReplicatedJob{step("node", "trainer", "1s")}
			rt.Spec.Template.Spec.ReplicatedJobs[0].Template.Spec.Template.Spec.Containers[0].Name = "other"
			err := admin.Create(ctx, rt)
			if labels == nil {
				gomega.Expect(err).To(gomega.MatchError(gomega.ContainSubstring(
					"must contain the required container for the ancestor: trainer")))
				continue
			}
			gomega.Expect(err).NotTo(gomega.HaveOccurred())
			gomega.Expect(admin.Delete(ctx, rt)).To(gomega.Succeed())
		}
	})

	ginkgo.It("pins the runtime when the TrainJob starts: neither its edit nor its deletion changes anything, "+
		"evicted or not", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 8})
		rt := g.runtime(ctx, "torch", "forever")
		tj := g.submit(ctx, g.trainJob("pinned", "torch", 1))
		gomega.Eventually(bound(ctx, tj)).Should(gomega.Equal(1))
		gomega.Eventually(func() error {
			get(ctx, rt).Spec.Template.Spec.ReplicatedJobs[0].Template.Spec.Template.Spec.Containers[0].Image =
				"example.com/edited:2"
			return admin.Update(ctx, rt)
		}).Should(gomega.Succeed())
		again := func() {
			ginkgo.GinkgoHelper()
			stopPolicy(ctx, g.queue, kueue.HoldAndDrain)
			gomega.Eventually(g.used(ctx)).Should(gomega.BeZero())
			stopPolicy(ctx, g.queue, kueue.None)
			gomega.Eventually(bound(ctx, tj)).Should(gomega.Equal(1))
			gomega.Expect(podsOf(ctx, tj)[0].Spec.Containers[0].Image).To(gomega.Equal("example.com/train:1"))
		}
		again()
		gomega.Expect(admin.Delete(ctx, rt)).To(gomega.Succeed())
		again()
		gomega.Expect(watched.startsOf(tj)).To(gomega.Equal(3))

		// Nobody but the integration may say what a TrainJob is pinned to.
		pin := get(ctx, tj).Annotations[store.PinAnnotation]
		gomega.Expect(pin).NotTo(gomega.BeEmpty())
		for _, value := range []string{`null`, `"other"`} {
			patch := client.RawPatch("application/merge-patch+json",
				[]byte(`{"metadata":{"annotations":{"`+store.PinAnnotation+`":`+value+`}}}`))
			gomega.Expect(user.Patch(ctx, tj, patch)).To(gomega.Succeed())
			gomega.Expect(tj.Annotations[store.PinAnnotation]).To(gomega.Equal(pin))
		}
		forged := g.trainJob("forged", "torch", 1, func(tj *api.TrainJob) {
			tj.Annotations = map[string]string{store.PinAnnotation: pin}
		})
		g.runtime(ctx, "torch", "1s")
		gomega.Expect(user.Create(ctx, forged)).To(gomega.MatchError(gomega.ContainSubstring(
			"Signalbox alone writes this annotation")))
	})

	ginkgo.It("never runs a TrainJob again that has ended, whatever is deleted", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 16})
		g.runtime(ctx, "short", "1s")
		g.runtime(ctx, "broken", "1s", func(rt *api.TrainingRuntime) {
			template := &rt.Spec.Template.Spec.ReplicatedJobs[0].Template
			template.Spec.BackoffLimit = ptr.To[int32](0)
			template.Spec.Template.Annotations[fails] = "true"
			template.Spec.Template.Spec.RestartPolicy = corev1.RestartPolicyNever
		})
		var ended []*api.TrainJob
		for runtime, end := range map[string]api.TrainJobState{"short": api.StateComplete, "broken": api.StateFailed} {
			tj := g.submit(ctx, g.trainJob(runtime, runtime, 1))
			gomega.Eventually(state(ctx, tj)).Should(gomega.Equal(end))
			ended = append(ended, tj)
		}
		gomega.Eventually(g.used(ctx)).Should(gomega.BeZero())
		gomega.Expect(admin.DeleteAllOf(ctx, &jobset.JobSet{}, client.InNamespace(g.namespace),
			client.PropagationPolicy(metav1.DeletePropagationForeground))).To(gomega.Succeed())
		gomega.Eventually(func() []string { return g.list(ctx, &jobset.JobSetList{}) }).Should(gomega.BeEmpty())
		cluster.mustAct("restart", "signalbox")
		gomega.Consistently(func() []string { return g.list(ctx, &jobset.JobSetList{}) }).Should(gomega.BeEmpty())
		for _, tj := range ended {
			gomega.Expect(watched.startsOf(tj)).To(gomega.Equal(1))
		}
	})

	ginkgo.It("ends a TrainJob at its deadline, and leaves one to others that is theirs", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 8})
		g.runtime(ctx, "torch", "forever")
		tj := g.submit(ctx, g.trainJob("overdue", "torch", 1, func(tj *api.TrainJob) { tj.Spec.ActiveDeadlineSeconds = 3 }))
		gomega.Eventually(func() int { return watched.startsOf(tj) }).Should(gomega.Equal(1))
		gomega.Eventually(func() string { return told(ctx, tj, trainerapi.TrainJobFailed) }).Should(
			gomega.HavePrefix("True " + trainerapi.TrainJobDeadlineExceededReason))
		gomega.Eventually(func() []string { return g.list(ctx, &jobset.JobSetList{}) }).Should(gomega.BeEmpty())
		gomega.Eventually(g.used(ctx)).Should(gomega.BeZero())

		elsewhere := g.submit(ctx, g.trainJob("elsewhere", "torch", 1, func(tj *api.TrainJob) {
			tj.Labels, tj.Spec.Suspend, tj.Spec.ManagedBy = nil, ptr.To(false), ptr.To("kueue.x-k8s.io/multikueue")
		}))
		gomega.Consistently(func() []string { return g.list(ctx, &jobset.JobSetList{}) }).Should(gomega.BeEmpty())
		gomega.Expect(get(ctx, elsewhere).Status.Conditions).To(gomega.BeEmpty())
	})

	ginkgo.It("runs, stops and resumes a TrainJob that nobody queues, "+
		"on the runtime that it started on", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 8})
		rt := g.runtime(ctx, "torch", "forever", func(rt *api.TrainingRuntime) {
			pod := &rt.Spec.Template.Spec.ReplicatedJobs[0].Template.Spec.Template.Spec
			pod.Tolerations = append(pod.Tolerations, corev1.Toleration{Key: "gpu", Operator: corev1.TolerationOpExists})
		})
		tj := g.submit(ctx, g.trainJob("free", "torch", 1, func(tj *api.TrainJob) { tj.Labels = nil }))
		gomega.Eventually(state(ctx, tj)).Should(gomega.Equal(api.StateSuspended))
		suspend := func(value bool) {
			ginkgo.GinkgoHelper()
			patch := client.RawPatch("application/merge-patch+json", fmt.Appendf(nil, `{"spec":{"suspend":%t}}`, value))
			gomega.Expect(user.Patch(ctx, tj, patch)).To(gomega.Succeed())
		}
		suspend(false)
		gomega.Eventually(state(ctx, tj)).Should(gomega.Equal(api.StateRunning))
		gomega.Expect(admin.Delete(ctx, rt)).To(gomega.Succeed())
		suspend(true)
		gomega.Eventually(state(ctx, tj)).Should(gomega.Equal(api.StateSuspended))
		gomega.Eventually(func() []string { return g.list(ctx, &jobset.JobSetList{}) }).Should(gomega.BeEmpty())
		suspend(false)
		gomega.Eventually(state(ctx, tj)).Should(gomega.Equal(api.StateRunning))
		gomega.Expect(user.Delete(ctx, tj)).To(gomega.Succeed())
		gomega.Eventually(func() []string {
			return objectsIn(ctx, g.namespace, "kube-root-ca.crt", "default", localQueue)
		}).Should(gomega.BeEmpty(), "everything goes with it")
	})

	ginkgo.It("says why a JobSet can't be made, and takes no other's for the TrainJob's", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 8})
		g.runtime(ctx, "torch", "1s")
		foreign := &jobset.JobSet{
			ObjectMeta: metav1.ObjectMeta{Namespace: g.namespace, Name: "taken"},
			Spec: jobset.JobSetSpec{
				Suspend: ptr.To(true), ReplicatedJobs: []jobset.ReplicatedJob{step("node", "", "1s")},
			},
		}
		foreign.Spec.ReplicatedJobs[0].Replicas = 1
		foreign.Spec.ReplicatedJobs[0].Template.Spec.Template.Spec.RestartPolicy = corev1.RestartPolicyNever
		gomega.Expect(admin.Create(ctx, foreign)).To(gomega.Succeed())
		tj := g.submit(ctx, g.trainJob("taken", "torch", 1))
		gomega.Eventually(eventsOf(ctx, tj)).Should(gomega.ContainElement(gomega.And(
			gomega.HavePrefix("NameTaken: "),
			gomega.ContainSubstring("that is not the TrainJob's; delete it"))), "before it is queued")
		gomega.Expect(workloadOf(ctx, tj)).To(gomega.BeNil())
		gomega.Expect(get(ctx, foreign).Spec.Suspend).To(gomega.HaveValue(gomega.BeTrue()))
		gomega.Expect(admin.Delete(ctx, foreign)).To(gomega.Succeed())
		gomega.Eventually(complete(ctx, tj), "2m").Should(gomega.BeTrue())
	})
}
