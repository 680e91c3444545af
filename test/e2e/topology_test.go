package e2e

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	kueueconstants "sigs.k8s.io/kueue/pkg/constants"
	utiltas "sigs.k8s.io/kueue/pkg/util/tas"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/integration"
	"github.com/signalbox-dev/signalbox/overrides"
)

// asks gives the pods of ReplicatedJobs annotations, of all if none is named.
func asks(annotations map[string]string, replicatedJobs ...string) func(*api.TrainingRuntime) {
	return func(rt *api.TrainingRuntime) {
		for i := range rt.Spec.Template.Spec.ReplicatedJobs {
			rj := &rt.Spec.Template.Spec.ReplicatedJobs[i]
			rj.Template.Spec.Template.Annotations[runFor] = "forever"
			if len(replicatedJobs) > 0 && !slices.Contains(replicatedJobs, rj.Name) {
				continue
			}
			for key, value := range annotations {
				rj.Template.Spec.Template.Annotations[key] = value
			}
		}
	}
}

// placements are the nodes of a TrainJob's pods by ReplicatedJob and rank, as Kueue has assigned them and as they are.
func placements(ctx context.Context, tj *api.TrainJob) (assigned, actual map[string]string) {
	ginkgo.GinkgoHelper()
	assigned, actual = map[string]string{}, map[string]string{}
	wl := workloadOf(ctx, tj)
	if wl == nil || wl.Status.Admission == nil {
		return assigned, actual
	}
	for _, assignment := range wl.Status.Admission.PodSetAssignments {
		if assignment.TopologyAssignment == nil {
			continue
		}
		rank := 0
		for domain := range utiltas.InternalSeqFrom(assignment.TopologyAssignment) {
			for range domain.Count {
				assigned[fmt.Sprintf("%s-%d", assignment.Name, rank)] = domain.Values[len(domain.Values)-1]
				rank++
			}
		}
	}
	for _, p := range podsOf(ctx, tj) {
		if p.DeletionTimestamp == nil && p.Spec.NodeName != "" {
			rank, err := strconv.Atoi(p.Labels[batchv1.JobCompletionIndexAnnotation])
			gomega.Expect(err).NotTo(gomega.HaveOccurred())
			actual[fmt.Sprintf("%s-%d", p.Labels[kueueconstants.PodSetLabel], rank)] = p.Spec.NodeName
		}
	}
	return assigned, actual
}

// expectRanked waits until so many pods are on the nodes that Kueue assigned to their ranks.
func expectRanked(ctx context.Context, tj *api.TrainJob, pods int) map[string]string {
	ginkgo.GinkgoHelper()
	var nodes map[string]string
	gomega.Eventually(func(e gomega.Gomega) {
		assigned, actual := placements(ctx, tj)
		e.Expect(assigned).To(gomega.HaveLen(pods))
		e.Expect(actual).To(gomega.Equal(assigned))
		nodes = actual
	}, "2m").Should(gomega.Succeed())
	return nodes
}

// rackOf is the rack of a node.
func rackOf(ctx context.Context, node string) string {
	ginkgo.GinkgoHelper()
	return get(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}).Labels["rack"]
}

// loseNode deletes a node for the running spec, and returns its name.
func loseNode(ctx context.Context, name string) string {
	ginkgo.GinkgoHelper()
	lost := get(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}})
	gomega.Expect(admin.Delete(ctx, lost)).To(gomega.Succeed())
	ginkgo.DeferCleanup(func(ctx context.Context) {
		status := lost.Status
		lost.ObjectMeta = metav1.ObjectMeta{Name: lost.Name, Labels: lost.Labels, Annotations: lost.Annotations}
		gomega.Expect(admin.Create(ctx, lost)).To(gomega.Succeed())
		gomega.Eventually(func() error {
			lost.Status.Allocatable, lost.Status.Capacity = status.Allocatable, status.Capacity
			if err := admin.Status().Update(ctx, lost); err != nil {
				return admin.Get(ctx, types.NamespacedName{Name: lost.Name}, lost)
			}
			return nil
		}).Should(gomega.Succeed())
	})
	return name
}

var _ = ginkgo.Describe("Topology", func() {
	ginkgo.It("puts each pod on the node of its rank", func(ctx context.Context) {
		for name, annotations := range map[string]map[string]string{
			"preferred":     {kueue.PodSetPreferredTopologyAnnotation: "rack"},
			"unconstrained": {kueue.PodSetUnconstrainedTopologyAnnotation: "true"},
			"nothing":       {},
		} {
			g := onRacks(ctx)
			g.runtime(ctx, "torch", "forever", asks(annotations))
			tj := g.submit(ctx, g.trainJob(name, "torch", 6))
			expectRanked(ctx, tj, 6)
			gomega.Expect(user.Delete(ctx, tj)).To(gomega.Succeed())
			gomega.Eventually(g.used(ctx)).Should(gomega.BeZero())
		}
	})

	ginkgo.It("keeps the pods of a slice together, by rank", func(ctx context.Context) {
		g := onRacks(ctx)
		g.runtime(ctx, "torch", "forever", asks(map[string]string{
			kueue.PodSetSliceRequiredTopologyAnnotation: "rack", kueue.PodSetSliceSizeAnnotation: "2",
		}))
		tj := g.submit(ctx, g.trainJob("sliced", "torch", 6))
		nodes := expectRanked(ctx, tj, 6)
		for first := 0; first < 6; first += 2 {
			gomega.Expect(rackOf(ctx, nodes[fmt.Sprintf("node-%d", first)])).To(gomega.Equal(
				rackOf(ctx, nodes[fmt.Sprintf("node-%d", first+1)])), "ranks %d and %d", first, first+1)
		}
	})

	ginkgo.It("places MPI's launcher with its workers where it is a node", func(ctx context.Context) {
		g := onRacks(ctx)
		g.runtime(ctx, "mpi", "forever", mpiAsNode, asks(map[string]string{kueue.PodSetRequiredTopologyAnnotation: "rack"},
			"node"))
		tj := g.submit(ctx, g.trainJob("mpi", "mpi", nodesOfRack))
		nodes := expectRanked(ctx, tj, nodesOfRack)
		racks := map[string]bool{}
		for _, node := range nodes {
			racks[rackOf(ctx, node)] = true
		}
		gomega.Expect(racks).To(gomega.HaveLen(1), "%v", nodes)
		gomega.Expect(nodes).To(gomega.HaveKey("launcher-0"))
	})

	ginkgo.It("refuses what Kueue would ignore or never admit", func(ctx context.Context) {
		g := onRacks(ctx)
		g.runtime(ctx, "torch", "1s", asks(map[string]string{
			kueue.PodSetRequiredTopologyAnnotation: "rack", kueue.PodSetGroupName: "alone",
		}))
		tj := g.submit(ctx, g.trainJob("refused", "torch", 2))
		gomega.Eventually(blocked(ctx, tj)).Should(gomega.Equal(integration.ReasonInvalidRuntime))
		gomega.Eventually(eventsOf(ctx, tj)).Should(gomega.ContainElement(gomega.And(
			gomega.HavePrefix(integration.ReasonInvalidRuntime+": "),
			gomega.ContainSubstring("replicatedJobs[node].template.spec.template.metadata.annotations"),
			gomega.ContainSubstring("groups of exactly 2 pod sets"))))
	})

	ginkgo.It("replaces a node that is lost, without an eviction", ginkgo.Label("kueue"), func(ctx context.Context) {
		g := onRacks(ctx)
		g.runtime(ctx, "torch", "forever", asks(map[string]string{kueue.PodSetRequiredTopologyAnnotation: "rack"}))
		tj := g.submit(ctx, g.trainJob("moves", "torch", nodesOfRack-1))
		before := expectRanked(ctx, tj, nodesOfRack-1)
		lost := loseNode(ctx, before["node-1"])
		// Kueue sorts the nodes of an assignment, so that the ranks of pods that run on may differ from it afterwards.
		gomega.Eventually(func(e gomega.Gomega) {
			assigned, actual := placements(ctx, tj)
			e.Expect(slices.Sorted(maps.Values(actual))).To(gomega.Equal(slices.Sorted(maps.Values(assigned))))
			e.Expect(actual).To(gomega.And(gomega.HaveLen(nodesOfRack-1),
				gomega.HaveKeyWithValue("node-0", before["node-0"]), gomega.HaveKeyWithValue("node-2", before["node-2"])))
			e.Expect(actual["node-1"]).NotTo(gomega.Equal(lost))
			e.Expect(rackOf(ctx, actual["node-1"])).To(gomega.Equal(rackOf(ctx, before["node-0"])))
		}, "2m").Should(gomega.Succeed())
		gomega.Expect(condition(ctx, tj, kueue.WorkloadEvicted)()).To(gomega.BeEmpty())
		gomega.Expect(watched.startsOf(tj)).To(gomega.Equal(1))
		gomega.Expect(ptr.Deref(get(ctx, tj).Spec.Suspend, true)).To(gomega.BeFalse())
	})
})

var _ = ginkgo.Describe("A TrainJob that asks for one rack", func() {
	ginkgo.It("gets all its pods placed in one, after they were gated", func(ctx context.Context) {
		g := onRacks(ctx)
		g.runtime(ctx, "torch", "forever", func(rt *api.TrainingRuntime) {
			pod := &rt.Spec.Template.Spec.ReplicatedJobs[0].Template.Spec.Template
			pod.Annotations[kueue.PodSetRequiredTopologyAnnotation] = "rack"
		})
		tj := g.submit(ctx, g.trainJob("racked", "torch", nodesOfRack))
		gomega.Eventually(bound(ctx, tj)).Should(gomega.Equal(nodesOfRack))
		gomega.Expect(workloadOf(ctx, tj).Spec.PodSets[0].TopologyRequest.Required).To(gomega.HaveValue(gomega.Equal("rack")))
		_, spec := overrides.PodPatch(entryOf(get(ctx, tj)).TrainingRuntimeSpec, "node")
		gomega.Expect(spec.SchedulingGates).To(gomega.ConsistOf(corev1.PodSchedulingGate{Name: kueue.TopologySchedulingGate}))
		for _, p := range podsOf(ctx, tj) {
			gomega.Expect(p.Spec.SchedulingGates).To(gomega.BeEmpty())
		}
		gomega.Expect(racksOf(ctx, tj)).To(gomega.HaveLen(1), "racks in use")
	})
})

// onRacks is a ground whose a100 nodes are in racks.
func onRacks(ctx context.Context) *ground {
	ginkgo.GinkgoHelper()
	racks := &kueue.Topology{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "racks-"},
		Spec:       kueue.TopologySpec{Levels: []kueue.TopologyLevel{{NodeLabel: "rack"}, {NodeLabel: corev1.LabelHostname}}},
	}
	gomega.Expect(admin.Create(ctx, racks)).To(gomega.Succeed())
	flavor := get(ctx, &kueue.ResourceFlavor{ObjectMeta: metav1.ObjectMeta{Name: "a100"}}).DeepCopy()
	flavor.ObjectMeta = metav1.ObjectMeta{GenerateName: "a100-racks-"}
	flavor.Spec.TopologyName = ptr.To(kueue.TopologyReference(racks.Name))
	gomega.Expect(admin.Create(ctx, flavor)).To(gomega.Succeed())
	ginkgo.DeferCleanup(func(ctx context.Context) {
		gomega.Expect(admin.Delete(ctx, flavor)).To(gomega.Succeed())
		gomega.Expect(admin.Delete(ctx, racks)).To(gomega.Succeed())
	})
	return newGround(ctx, map[string]int64{"a100": 64}, func(cq *kueue.ClusterQueue) {
		cq.Spec.ResourceGroups[0].Flavors[0].Name = kueue.ResourceFlavorReference(flavor.Name)
	})
}

// racksOf is how many pods of a TrainJob are in each rack.
func racksOf(ctx context.Context, tj *api.TrainJob) map[string]int {
	ginkgo.GinkgoHelper()
	used := map[string]int{}
	for _, p := range podsOf(ctx, tj) {
		used[get(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: p.Spec.NodeName}}).Labels["rack"]]++
	}
	return used
}
