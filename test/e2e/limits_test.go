package e2e

import (
	"context"
	"fmt"
	"strings"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// blockedBy is the condition Blocked of a TrainJob, as "Reason: message"; "" where it has none.
func blockedBy(ctx context.Context, tj *api.TrainJob) func() string {
	return func() string {
		ginkgo.GinkgoHelper()
		if c := apimeta.FindStatusCondition(get(ctx, tj).Status.Conditions, api.ConditionBlocked); c != nil {
			return c.Reason + ": " + c.Message
		}
		return ""
	}
}

// podSpec returns the pod of a runtime's first ReplicatedJob.
func podSpec(rt *api.TrainingRuntime) *corev1.PodSpec {
	return &rt.Spec.Template.Spec.ReplicatedJobs[0].Template.Spec.Template.Spec
}

var _ = ginkgo.Describe("One TrainJob is bounded", func() {
	ginkgo.It("in its pods and in its size, before anything is computed", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 8})
		g.runtime(ctx, "torch", "1s")
		for _, nodes := range []int32{5001, 1_500_000, 2_147_483_647} {
			gomega.Expect(user.Create(ctx, g.trainJob("many", "torch", nodes))).To(gomega.MatchError(gomega.And(
				gomega.ContainSubstring("spec.trainer.numNodes"), gomega.ContainSubstring(fmt.Sprint(nodes)),
				gomega.ContainSubstring("limits.pods"))))
		}
		large := g.trainJob("large", "torch", 1, func(tj *api.TrainJob) {
			for i := range 5000 {
				tj.Spec.Trainer.Env = append(tj.Spec.Trainer.Env,
					corev1.EnvVar{Name: fmt.Sprintf("V%d", i), Value: strings.Repeat("x", 60)})
			}
		})
		gomega.Expect(user.Create(ctx, large)).To(gomega.MatchError(gomega.ContainSubstring("limits.")))
	})

	if !cluster.bundled() {
		return
	}

	for name, c := range map[string]struct {
		change func(*api.TrainingRuntime)
		says   string
	}{
		"a grace period without bound": {func(rt *api.TrainingRuntime) {
			podSpec(rt).TerminationGracePeriodSeconds = ptr.To[int64](100_000_000)
		}, "terminationGracePeriodSeconds"},
		"no grace period": {func(rt *api.TrainingRuntime) {
			podSpec(rt).TerminationGracePeriodSeconds = ptr.To[int64](0)
		}, "must be 1 or more"},
		"a node of its own choice": {func(rt *api.TrainingRuntime) { podSpec(rt).NodeName = "a100-0" }, "nodeName"},
		"resources of the whole pod": {func(rt *api.TrainingRuntime) {
			podSpec(rt).Resources = &corev1.ResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("90")},
			}
		}, "resources"},
	} {
		ginkgo.It("in what its pods ask for: "+name, func(ctx context.Context) {
			g := newGround(ctx, map[string]int64{"a100": 8})
			g.runtime(ctx, "odd", "1s", c.change)
			tj := g.submit(ctx, g.trainJob("odd", "odd", 1))
			gomega.Eventually(blockedBy(ctx, tj)).Should(gomega.And(
				gomega.HavePrefix("LimitExceeded: "), gomega.ContainSubstring(c.says)))
			gomega.Consistently(running(ctx, tj), "1s").Should(gomega.BeFalse())
			gomega.Expect(g.used(ctx)()).To(gomega.BeZero())
		})
	}
})

var _ = ginkgo.Describe("What can't be built isn't queued", func() {
	if !cluster.bundled() {
		return
	}

	ginkgo.It("because its names would be too long, its JobSet is refused, "+
		"or its runtime is too large to pin", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 24})
		g.runtime(ctx, "torch", "1s")
		g.runtime(ctx, "odd", "1s", func(rt *api.TrainingRuntime) {
			podSpec(rt).Volumes = []corev1.Volume{{
				Name: "Not_A_Label", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}},
			}}
			rt.Spec.Template.Spec.Network = &jobset.Network{Subdomain: "Not_A_Domain"}
		})
		long := g.submit(ctx, g.trainJob(strings.Repeat("a", 63), "torch", 1))
		gomega.Eventually(blockedBy(ctx, long)).Should(gomega.And(
			gomega.HavePrefix("InvalidJobSet: metadata.name"), gomega.ContainSubstring("shorter name")))
		odd := g.submit(ctx, g.trainJob("odd", "odd", 1))
		gomega.Eventually(blockedBy(ctx, odd)).Should(gomega.And(
			gomega.HavePrefix("InvalidJobSet: what is built of"), gomega.ContainSubstring("subdomain")))
		full := g.submit(ctx, g.trainJob("full", "torch", 1, func(tj *api.TrainJob) {
			tj.Annotations = map[string]string{"example.com/large": strings.Repeat("x", 255<<10)}
		}))
		gomega.Eventually(blockedBy(ctx, full)).Should(gomega.HavePrefix("TooLarge: "))
		gomega.Expect(g.used(ctx)()).To(gomega.BeZero())
	})

	ginkgo.It("because a name is taken, by a JobSet or by another TrainJob's Job, "+
		"and starts when it is free", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 24})
		g.runtime(ctx, "torch", "forever")
		g.runtime(ctx, "odd", "1s", func(rt *api.TrainingRuntime) {
			rt.Spec.Template.Spec.ReplicatedJobs[0].Name = "model-node"
		})
		js := &jobset.JobSet{ObjectMeta: metav1.ObjectMeta{Namespace: g.namespace, Name: "mine"},
			Spec: jobset.JobSetSpec{Suspend: ptr.To(true), ReplicatedJobs: []jobset.ReplicatedJob{step("other", "", "1s")}}}
		gomega.Expect(admin.Create(ctx, js)).To(gomega.Succeed())
		mine := g.submit(ctx, g.trainJob("mine", "torch", 1))
		gomega.Eventually(blockedBy(ctx, mine)).Should(gomega.And(
			gomega.HavePrefix("NameTaken: "), gomega.ContainSubstring(`JobSet "mine"`)))
		first := g.submit(ctx, g.trainJob("my-model", "torch", 1))
		gomega.Eventually(running(ctx, first)).Should(gomega.BeTrue())
		second := g.submit(ctx, g.trainJob("my", "odd", 1))
		gomega.Eventually(blockedBy(ctx, second)).Should(gomega.And(
			gomega.HavePrefix("NameTaken: "), gomega.ContainSubstring(`"my-model-node-0"`)))
		gomega.Expect(admin.Delete(ctx, js)).To(gomega.Succeed())
		gomega.Eventually(running(ctx, mine)).Should(gomega.BeTrue())
	})

	ginkgo.It("and takes over nothing of anybody's: "+
		"a ConfigMap and a Secret of the names stay as they are", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 24})
		mpiRuntime(ctx, g, "mpi")
		secret := &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: g.namespace, Name: "theirs-mpi-ssh-auth"},
			Type:       corev1.SecretTypeSSHAuth,
			Data:       map[string][]byte{corev1.SSHAuthPrivateKey: []byte("known"), "ssh-publickey": []byte("known")},
		}
		files := &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: g.namespace, Name: "files-mpi-hostfile"},
			Data:       map[string]string{"mine": "kept"},
		}
		gomega.Expect(admin.Create(ctx, secret)).To(gomega.Succeed())
		gomega.Expect(admin.Create(ctx, files)).To(gomega.Succeed())
		for _, name := range []string{"theirs", "files"} {
			tj := g.submit(ctx, g.trainJob(name, "mpi", 1))
			gomega.Eventually(eventsOf(ctx, tj)).Should(gomega.ContainElement(
				gomega.ContainSubstring("that is not the TrainJob's")))
			gomega.Expect(podsOf(ctx, tj)).To(gomega.BeEmpty())
		}
		gomega.Expect(get(ctx, secret).Data).To(gomega.HaveKeyWithValue(corev1.SSHAuthPrivateKey, []byte("known")))
		gomega.Expect(get(ctx, files).Data).To(gomega.Equal(map[string]string{"mine": "kept"}))
	})
})

// mpiRuntime makes a runtime of MPI's: a launcher, and nodes.
func mpiRuntime(ctx context.Context, g *ground, name string) {
	ginkgo.GinkgoHelper()
	g.runtime(ctx, name, "forever", func(rt *api.TrainingRuntime) {
		rt.Spec.MLPolicy = &trainerapi.MLPolicy{
			NumNodes:       ptr.To[int32](1),
			MLPolicySource: trainerapi.MLPolicySource{MPI: &trainerapi.MPIMLPolicySource{}},
		}
		launcher := step("launcher", "", "1s")
		launcher.Template.Spec.Template.Spec.Containers[0].Name = "node"
		rt.Spec.Template.Spec.ReplicatedJobs = append([]jobset.ReplicatedJob{launcher},
			rt.Spec.Template.Spec.ReplicatedJobs...)
	})
}

var _ = ginkgo.Describe("Quota is held by what uses it", ginkgo.Ordered, ginkgo.ContinueOnFailure, func() {
	ginkgo.BeforeAll(func() {
		cluster.configure(func(map[string]any) {}, func(c map[string]any) {
			c["limits"] = map[string]any{"podsWithin": "15s"}
		})
	})

	ginkgo.It("and released where a scheduling gate that nothing opens "+
		"keeps the pods of a started TrainJob", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 8})
		g.runtime(ctx, "gated", "1s", func(rt *api.TrainingRuntime) {
			podSpec(rt).SchedulingGates = []corev1.PodSchedulingGate{{Name: "example.com/mine"}}
		})
		g.runtime(ctx, "torch", "1s")
		tj := g.submit(ctx, g.trainJob("gated", "gated", 1))
		gomega.Eventually(blockedBy(ctx, tj)).Should(gomega.And(
			gomega.HavePrefix("SchedulingGated: "), gomega.ContainSubstring("example.com/mine")))
		next := g.submit(ctx, g.trainJob("next", "torch", 1))
		gomega.Eventually(complete(ctx, next)).Should(gomega.BeTrue())
	})

	ginkgo.It("and released where a started TrainJob has no pods", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 8})
		g.runtime(ctx, "torch", "1s")
		// A Job of the name that the JobSet's is to have: JobSet can't make its own.
		gomega.Expect(admin.Create(ctx, &batchv1.Job{
			ObjectMeta: metav1.ObjectMeta{Namespace: g.namespace, Name: "mine-node-0"},
			Spec: batchv1.JobSpec{
				Suspend: ptr.To(true),
				Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
					RestartPolicy: corev1.RestartPolicyNever,
					Containers:    []corev1.Container{{Name: "c", Image: "example.com/none:1"}},
				}},
			},
		})).To(gomega.Succeed())
		tj := g.submit(ctx, g.trainJob("mine", "torch", 1))
		gomega.Eventually(blockedBy(ctx, tj)).Should(gomega.HavePrefix("NoPods: "))
		next := g.submit(ctx, g.trainJob("next", "torch", 1))
		gomega.Eventually(complete(ctx, next)).Should(gomega.BeTrue())
	})

	ginkgo.It("and said to be where a pod runs on after its grace period", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 8})
		g.runtime(ctx, "slow", "forever", func(rt *api.TrainingRuntime) {
			rt.Spec.Template.Spec.ReplicatedJobs[0].Template.Spec.Template.Annotations[stopAfter] = "10m"
			podSpec(rt).TerminationGracePeriodSeconds = ptr.To[int64](1)
		})
		tj := g.submit(ctx, g.trainJob("slow", "slow", 1))
		gomega.Eventually(bound(ctx, tj)).Should(gomega.Equal(1))
		pod := podsOf(ctx, tj)[0]
		gomega.Expect(admin.Patch(ctx, &pod, client.RawPatch(types.JSONPatchType,
			[]byte(`[{"op": "add", "path": "/metadata/finalizers/-", "value": "example.com/kept"}]`)))).To(gomega.Succeed())
		letGo := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))
		ginkgo.DeferCleanup(func(ctx context.Context) {
			gomega.Expect(client.IgnoreNotFound(admin.Patch(ctx, &pod, letGo))).To(gomega.Succeed())
		})
		stopPolicy(ctx, g.queue, kueue.HoldAndDrain)
		gomega.Eventually(func() bool {
			return apimeta.IsStatusConditionTrue(get(ctx, tj).Status.Conditions, api.ConditionStopOverdue)
		}).Should(gomega.BeTrue())
		gomega.Expect(g.used(ctx)()).To(gomega.Equal(int64(8)), "its GPUs are in use")
		gomega.Expect(admin.Status().Patch(ctx, &pod, client.RawPatch(
			types.MergePatchType, []byte(`{"status":{"phase":"Failed"}}`)))).To(gomega.Succeed())
		gomega.Eventually(g.used(ctx)).Should(gomega.BeZero(), "what has ended uses nothing, whatever keeps it")
		if cluster.bundled() {
			gomega.Eventually(blockedBy(ctx, tj)).Should(gomega.HavePrefix("LastRunKept: "))
		}
		gomega.Eventually(func() bool {
			return apimeta.IsStatusConditionTrue(get(ctx, tj).Status.Conditions, api.ConditionStopOverdue)
		}).Should(gomega.BeFalse())
		gomega.Expect(admin.Patch(ctx, &pod, letGo)).To(gomega.Succeed())
	})
})
