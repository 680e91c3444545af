package e2e

import (
	"context"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides"
)

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
