package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides"
)

func init() {
	if cluster.bundled() {
		ginkgo.Describe("A TrainJob that is resized", resizeSpecs)
		ginkgo.Describe("A TrainJob that may start with fewer nodes", partialSpecs)
	} else {
		ginkgo.Describe("The size of a TrainJob beside Kubeflow Trainer", fixedSizeSpecs)
	}
}

// resize asks for another size of a TrainJob as the user.
func resize(ctx context.Context, tj *api.TrainJob, trainer string) error {
	patch := client.RawPatch(types.MergePatchType, []byte(`{"spec":{"trainer":`+trainer+`}}`))
	return user.Patch(ctx, tj.DeepCopy(), patch)
}

// least lets a TrainJob start with so many nodes.
func least(nodes string) func(*api.TrainJob) {
	return func(tj *api.TrainJob) {
		metav1.SetMetaDataAnnotation(&tj.ObjectMeta, overrides.MinParallelismAnnotation, nodes)
	}
}

func resizeSpecs() {
	ginkgo.It("keeps its place in the queue while it waits, and keeps its size while it runs", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 16}, func(cq *kueue.ClusterQueue) {
			cq.Spec.StopPolicy = ptr.To(kueue.Hold)
		})
		g.runtime(ctx, "torch", "forever")
		first := g.submit(ctx, g.trainJob("first", "torch", 4))
		gomega.Eventually(func() any { return workloadOf(ctx, first) }).ShouldNot(gomega.BeNil())
		queued := workloadOf(ctx, first)
		gomega.Eventually(func() time.Duration { return time.Since(queued.CreationTimestamp.Time) }).Should(
			gomega.BeNumerically(">", time.Second), "Kueue's order is by the second")
		second := g.submit(ctx, g.trainJob("second", "torch", 2))
		gomega.Eventually(func() any { return workloadOf(ctx, second) }).ShouldNot(gomega.BeNil())

		gomega.Expect(resize(ctx, first, `{"numNodes":2,"resourcesPerNode":{"limits":{"nvidia.com/gpu":4},`+
			`"requests":{"nvidia.com/gpu":4}}}`)).To(gomega.Succeed())
		gomega.Eventually(func() int32 { return workloadOf(ctx, first).Spec.PodSets[0].Count }).Should(
			gomega.BeEquivalentTo(2))
		gomega.Expect(workloadOf(ctx, first).UID).To(gomega.Equal(queued.UID))
		gomega.Expect(resize(ctx, first, `{"image":"example.com/other:1"}`)).To(gomega.MatchError(
			gomega.ContainSubstring("image is immutable")))
		gomega.Expect(resize(ctx, first, `{"numNodes":100000}`)).To(gomega.MatchError(
			gomega.ContainSubstring("a TrainJob may have at most")))

		stopPolicy(ctx, g.queue, kueue.None)
		gomega.Eventually(bound(ctx, first)).Should(gomega.Equal(2))
		gomega.Eventually(g.used(ctx)).Should(gomega.BeEquivalentTo(8))
		gomega.Consistently(running(ctx, second), "2s").Should(gomega.BeFalse(), "8 of 16 GPUs are left, and it needs 16")
		gomega.Expect(resize(ctx, first, `{"numNodes":1}`)).To(gomega.MatchError(
			gomega.MatchRegexp("spec.trainer: .*trainer may change only while the TrainJob is suspended")))

		stopPolicy(ctx, g.queue, kueue.HoldAndDrain)
		gomega.Eventually(func() error { return resize(ctx, first, `{"numNodes":3}`) }).Should(gomega.Succeed())
		gomega.Eventually(g.used(ctx)).Should(gomega.BeZero())
		gomega.Expect(user.Delete(ctx, second)).To(gomega.Succeed())
		stopPolicy(ctx, g.queue, kueue.None)
		gomega.Eventually(bound(ctx, first)).Should(gomega.Equal(3), "an evicted one may be resized too")
		gomega.Expect(watched.startsOf(first)).To(gomega.Equal(2))
	})
}

// nodesOfEnv is the number of nodes that the training processes are told.
func nodesOfEnv(ctx context.Context, tj *api.TrainJob) []string {
	ginkgo.GinkgoHelper()
	var told []string
	for _, p := range podsOf(ctx, tj) {
		for _, e := range p.Spec.Containers[0].Env {
			if e.Name == "PET_NNODES" {
				told = append(told, e.Value)
			}
		}
	}
	slices.Sort(told)
	return slices.Compact(told)
}

func partialSpecs() {
	for _, mode := range []api.GangMode{api.GangOff, api.GangRequired} {
		if mode == api.GangRequired && !hasGangs {
			continue
		}
		ginkgo.It(fmt.Sprintf("runs with those that there is quota for, and queues for all again (gangs %s)", mode),
			func(ctx context.Context) {
				low, high := makePriorities(ctx)
				g := newGround(ctx, map[string]int64{"a100": 40})
				g.runtime(ctx, "torch", "forever")
				other := g.submit(ctx, g.trainJob("other", "torch", 2, priority(high)))
				gomega.Eventually(running(ctx, other)).Should(gomega.BeTrue())
				tj := g.submit(ctx, g.trainJob("part", "torch", 5, priority(low), least("2"), gangs(mode)))
				gomega.Eventually(bound(ctx, tj)).Should(gomega.Equal(3))
				gomega.Eventually(state(ctx, tj)).Should(gomega.Equal(api.StateRunning))
				gomega.Expect(get(ctx, tj).Status.Nodes).To(gomega.Equal("3 of 5"))
				gomega.Eventually(func() string { return told(ctx, tj, api.ConditionAdmitted) }).Should(
					gomega.HaveSuffix(", with 3 of 5 nodes"))
				gomega.Expect(nodesOfEnv(ctx, tj)).To(gomega.Equal([]string{"3"}))
				gomega.Expect(*get(ctx, tj).Spec.Trainer.NumNodes).To(gomega.BeEquivalentTo(5))
				gomega.Eventually(g.used(ctx)).Should(gomega.BeEquivalentTo(40))

				urgent := g.submit(ctx, g.trainJob("urgent", "torch", 3, priority(high)))
				gomega.Eventually(bound(ctx, urgent)).Should(gomega.Equal(3))
				gomega.Eventually(state(ctx, tj)).Should(gomega.Equal(api.StateQueued))
				gomega.Expect(workloadOf(ctx, tj).Spec.PodSets[0].Count).To(gomega.BeEquivalentTo(5))
				stopPolicy(ctx, g.queue, kueue.Hold) // it would start with what is free first
				gomega.Expect(user.Delete(ctx, other)).To(gomega.Succeed())
				gomega.Expect(user.Delete(ctx, urgent)).To(gomega.Succeed())
				gomega.Eventually(g.used(ctx)).Should(gomega.BeZero())
				stopPolicy(ctx, g.queue, kueue.None)
				gomega.Eventually(bound(ctx, tj)).Should(gomega.Equal(5))
				gomega.Expect(nodesOfEnv(ctx, tj)).To(gomega.Equal([]string{"5"}))
				gomega.Eventually(func() string { return get(ctx, tj).Status.Nodes }).Should(gomega.BeEmpty())
				gomega.Expect(watched.startsOf(tj)).To(gomega.Equal(2))
			})
	}

	ginkgo.It("takes the runtime's minimum, with MPI's launcher as a node", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 32})
		g.runtime(ctx, "mpi", "forever", func(rt *api.TrainingRuntime) {
			mpiAsNode(rt)
			metav1.SetMetaDataAnnotation(&rt.ObjectMeta, overrides.MinParallelismAnnotation, "3")
			for i := range rt.Spec.Template.Spec.ReplicatedJobs {
				rt.Spec.Template.Spec.ReplicatedJobs[i].Template.Spec.Template.Annotations[runFor] = "forever"
			}
		})
		tj := g.submit(ctx, g.trainJob("mpi", "mpi", 6))
		gomega.Eventually(bound(ctx, tj)).Should(gomega.Equal(4))
		gomega.Expect(podsNamed(ctx, tj, "launcher")).To(gomega.HaveLen(1))
		gomega.Eventually(func() string { return get(ctx, tj).Status.Nodes }).Should(gomega.Equal("4 of 6"))
		hosts := get(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: g.namespace, Name: "mpi-mpi-hostfile"}})
		gomega.Expect(strings.Count(hosts.Data["hostfile"], " slots=8")).To(gomega.Equal(4), hosts.Data["hostfile"])
	})

	ginkgo.It("is refused where the minimum is none", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 8})
		g.runtime(ctx, "torch", "1s")
		for value, says := range map[string]string{
			"half": "must be a whole number of nodes", "0": "1 or more", "2": "must be below the number of nodes",
		} {
			err := user.Create(ctx, g.trainJob("refused", "torch", 2, least(value)))
			gomega.Expect(err).To(gomega.MatchError(gomega.And(gomega.ContainSubstring(says),
				gomega.ContainSubstring("metadata.annotations["+overrides.MinParallelismAnnotation+"]"))))
		}
	})
}

func fixedSizeSpecs() {
	ginkgo.It("can't change, and can't be less than it asks for", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 8})
		g.runtime(ctx, "torch", "1s")
		gomega.Expect(user.Create(ctx, g.trainJob("part", "torch", 2, least("1")))).To(gomega.MatchError(
			gomega.ContainSubstring("only the Trainer that Signalbox bundles")))
		if !current().Keyed() {
			return // to Kubeflow Trainer before v2.2 the number of nodes is mutable
		}
		tj := g.submit(ctx, g.trainJob("fixed", "torch", 2))
		gomega.Expect(resize(ctx, tj, `{"numNodes":1}`)).To(gomega.MatchError(
			gomega.ContainSubstring("; create another TrainJob. The Trainer that Signalbox bundles")))
	})
}
