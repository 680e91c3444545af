package e2e

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

func init() {
	if cluster.bundled() { // they don't depend on the Trainer
		ginkgo.Describe("Kueue's features behind gates", ginkgo.Label("kueue"), gatedSpecs)
	}
}

// withGate turns a feature gate of Kueue on for the running spec.
func withGate(name string) {
	ginkgo.GinkgoHelper()
	cluster.configure(turnOn(name), func(map[string]any) {})
}

// turnOn turns feature gates of Kueue on, beside those of the control plane.
func turnOn(names ...string) change {
	return func(c map[string]any) {
		gates, _ := c["featureGates"].(map[string]any)
		if gates == nil {
			gates = map[string]any{}
		}
		for _, name := range names {
			gates[name] = true
		}
		c["featureGates"] = gates
	}
}

// concurrently lets Kueue try all flavors of a ClusterQueue at once.
func concurrently(mode kueue.ConcurrentAdmissionMigrationMode) func(*kueue.ClusterQueue) {
	return func(cq *kueue.ClusterQueue) {
		cq.Spec.ConcurrentAdmissionPolicy = &kueue.ConcurrentAdmissionPolicy{
			Migration: kueue.ConcurrentAdmissionMigration{Mode: mode},
		}
	}
}

func gatedSpecs() {
	ginkgo.It("admit first from the LocalQueue that has used less", func(ctx context.Context) {
		cluster.configure(func(c map[string]any) {
			c["admissionFairSharing"] = map[string]any{"usageHalfLifeTime": "10m", "usageSamplingInterval": "1s"}
		}, func(map[string]any) {})
		g := newGround(ctx, map[string]int64{"a100": 8}, func(cq *kueue.ClusterQueue) {
			cq.Spec.AdmissionScope = &kueue.AdmissionScope{AdmissionMode: kueue.UsageBasedAdmissionFairSharing}
		})
		g.localQueue(ctx, "frugal", g.queue)
		g.runtime(ctx, "torch", "forever")
		heavy := g.submit(ctx, g.trainJob("heavy", "torch", 1))
		gomega.Eventually(bound(ctx, heavy)).Should(gomega.Equal(1))
		used := func() float64 {
			lq := get(ctx, &kueue.LocalQueue{ObjectMeta: metav1.ObjectMeta{Namespace: g.namespace, Name: localQueue}})
			if lq.Status.FairSharing == nil || lq.Status.FairSharing.AdmissionFairSharingStatus == nil {
				return 0
			}
			consumed := lq.Status.FairSharing.AdmissionFairSharingStatus.ConsumedResources[gpu]
			return consumed.AsApproximateFloat64()
		}
		gomega.Eventually(used).Should(gomega.BeNumerically(">", 0))
		second := g.submit(ctx, g.trainJob("second", "torch", 1))
		gomega.Eventually(state(ctx, second)).Should(gomega.Equal(api.StateQueued))
		frugal := g.submit(ctx, g.trainJob("frugal", "torch", 1, queuedAt("frugal")))
		gomega.Eventually(state(ctx, frugal)).Should(gomega.Equal(api.StateQueued))
		gomega.Expect(user.Delete(ctx, heavy)).To(gomega.Succeed())
		gomega.Eventually(bound(ctx, frugal)).Should(gomega.Equal(1), "it came later")
		gomega.Expect(running(ctx, second)()).To(gomega.BeFalse())
	})

	ginkgo.It("try all flavors at once, and stay on the first that has room", func(ctx context.Context) {
		withGate("ConcurrentAdmission")
		both := map[string]int64{"a100": 8, "h100": 8}
		g := newGround(ctx, both, concurrently(kueue.ConcurrentAdmissionRetainFirstAdmission))
		g.runtime(ctx, "torch", "forever")
		first := g.submit(ctx, g.trainJob("first", "torch", 1))
		gomega.Eventually(bound(ctx, first)).Should(gomega.Equal(1))
		second := g.submit(ctx, g.trainJob("second", "torch", 1))
		gomega.Eventually(bound(ctx, second)).Should(gomega.Equal(1))
		gomega.Expect(podsOf(ctx, second)[0].Spec.NodeSelector).To(gomega.HaveKeyWithValue("gpu", "h100"))
		gomega.Expect(user.Delete(ctx, first)).To(gomega.Succeed())
		gomega.Consistently(func() int { return watched.startsOf(second) }, "3s").Should(gomega.Equal(1))
		gomega.Expect(user.Delete(ctx, second)).To(gomega.Succeed())
		gomega.Eventually(g.used(ctx)).Should(gomega.BeZero())
		gomega.Eventually(func() []string { return g.list(ctx, &kueue.WorkloadList{}) }).Should(gomega.BeEmpty(), "variants")
	})

	// The label is for make test-gates, which leaves it out: docs/kueue.md says why.
	ginkgo.It("try all flavors at once, and move to a better one", ginkgo.Label("migration"), func(ctx context.Context) {
		withGate("ConcurrentAdmission")
		both := map[string]int64{"a100": 8, "h100": 8}
		g := newGround(ctx, both, concurrently(kueue.ConcurrentAdmissionTryPreferredFlavors))
		g.runtime(ctx, "torch", "forever")
		first := g.submit(ctx, g.trainJob("first", "torch", 1))
		gomega.Eventually(flavor(ctx, first)).Should(gomega.Equal("a100"))
		second := g.submit(ctx, g.trainJob("second", "torch", 1))
		gomega.Eventually(bound(ctx, second)).Should(gomega.Equal(1))
		gomega.Expect(podsOf(ctx, second)[0].Spec.NodeSelector).To(gomega.HaveKeyWithValue("gpu", "h100"))
		gomega.Expect(user.Delete(ctx, first)).To(gomega.Succeed())
		gomega.Eventually(func(e gomega.Gomega) {
			pods := podsOf(ctx, second)
			e.Expect(pods).To(gomega.HaveLen(1))
			e.Expect(pods[0].Spec.NodeName).NotTo(gomega.BeEmpty())
			e.Expect(pods[0].Spec.NodeSelector).To(gomega.HaveKeyWithValue("gpu", "a100"))
		}, "2m").Should(gomega.Succeed())
		gomega.Expect(watched.startsOf(second)).To(gomega.Equal(2))
		gomega.Eventually(g.used(ctx)).Should(gomega.BeEquivalentTo(8))
	})

	ginkgo.It("balance the pods between nodes", func(ctx context.Context) {
		withGate("TASBalancedPlacement")
		g := onRacks(ctx)
		g.runtime(ctx, "torch", "forever", asks(map[string]string{kueue.PodSetPreferredTopologyAnnotation: "rack"}))
		tj := g.submit(ctx, g.trainJob("balanced", "torch", 12, gpusEach(1)))
		nodes := expectRanked(ctx, tj, 12)
		perNode := map[string]int{}
		for _, node := range nodes {
			perNode[node]++
		}
		gomega.Expect(slices.Sorted(maps.Values(perNode))).To(gomega.Equal([]int{6, 6}), "a node has 8 GPUs: %v", nodes)
	})

	ginkgo.It("follow a topology that changes while a TrainJob waits", func(ctx context.Context) {
		g := onRacks(ctx)
		g.runtime(ctx, "torch", "forever", asks(map[string]string{kueue.PodSetRequiredTopologyAnnotation: "rack"}))
		tj := g.submit(ctx, g.trainJob("wide", "torch", nodesOfRack+1))
		gomega.Eventually(state(ctx, tj)).Should(gomega.Equal(api.StateQueued))
		gomega.Consistently(running(ctx, tj)).Should(gomega.BeFalse(), "a rack has %d nodes", nodesOfRack)
		moved := get(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("a100-%d", 0)}})
		from := moved.Labels["rack"]
		var to string
		for i := range nodesOfKind {
			if rack := rackOf(ctx, fmt.Sprintf("a100-%d", i)); rack != from {
				to = rack
			}
		}
		label := func(ctx context.Context, rack string) {
			ginkgo.GinkgoHelper()
			patch := fmt.Sprintf(`{"metadata":{"labels":{"rack":%q}}}`, rack)
			gomega.Expect(admin.Patch(ctx, moved, client.RawPatch(types.MergePatchType, []byte(patch)))).To(gomega.Succeed())
		}
		label(ctx, to)
		ginkgo.DeferCleanup(func(ctx context.Context) { label(ctx, from) })
		nodes := expectRanked(ctx, tj, nodesOfRack+1)
		for _, node := range nodes {
			gomega.Expect(rackOf(ctx, node)).To(gomega.Equal(to))
		}
	})

	ginkgo.It("queue a TrainJob again that has lost several nodes", func(ctx context.Context) {
		g := onRacks(ctx)
		g.runtime(ctx, "torch", "forever", asks(map[string]string{kueue.PodSetRequiredTopologyAnnotation: "rack"}))
		tj := g.submit(ctx, g.trainJob("loses", "torch", nodesOfRack-1))
		before := expectRanked(ctx, tj, nodesOfRack-1)
		for _, rank := range []string{"node-0", "node-1"} {
			loseNode(ctx, before[rank])
		}
		var after map[string]string
		gomega.Eventually(func(e gomega.Gomega) {
			_, after = placements(ctx, tj)
			e.Expect(after).To(gomega.HaveLen(nodesOfRack - 1))
			e.Expect(slices.Collect(maps.Values(after))).NotTo(gomega.ContainElements(before["node-0"]))
			e.Expect(slices.Collect(maps.Values(after))).NotTo(gomega.ContainElements(before["node-1"]))
		}, "3m").Should(gomega.Succeed())
		gomega.Expect(watched.startsOf(tj)).To(gomega.Equal(2), "it was evicted, and started in the other rack")
		gomega.Eventually(g.used(ctx)).Should(gomega.BeEquivalentTo(8 * (nodesOfRack - 1)))
	})

	ginkgo.It("can't grow a TrainJob that runs: JobSet refuses", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 32})
		g.runtime(ctx, "torch", "forever")
		tj := g.submit(ctx, g.trainJob("elastic", "torch", 2))
		gomega.Eventually(bound(ctx, tj)).Should(gomega.Equal(2))
		js := get(ctx, &jobset.JobSet{ObjectMeta: metav1.ObjectMeta{Namespace: g.namespace, Name: tj.Name}})
		grown := js.DeepCopy()
		job := &grown.Spec.ReplicatedJobs[0].Template.Spec
		job.Parallelism, job.Completions = ptr.To[int32](3), ptr.To[int32](3)
		gomega.Expect(admin.Patch(ctx, grown, client.MergeFrom(js))).To(gomega.MatchError(gomega.And(
			gomega.ContainSubstring("spec.replicatedJobs"), gomega.ContainSubstring("immutable"))))
	})
}
