package e2e

import (
	"context"
	"fmt"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
)

var gpuKinds = []string{"a100", "h100"}

// makeNodes makes eight nodes of each GPU kind. All carry a taint of their kind, and one ("spot") that only runtimes
// tolerate.
func makeNodes(ctx context.Context) {
	for _, kind := range gpuKinds {
		for i := range nodesOfKind {
			makeNode(ctx, kind, i)
		}
	}
}

func makeNode(ctx context.Context, kind string, i int) *corev1.Node {
	ginkgo.GinkgoHelper()
	capacity := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("96"), corev1.ResourceMemory: resource.MustParse("1Ti"),
		corev1.ResourcePods: resource.MustParse("110"), gpu: resource.MustParse(fmt.Sprint(gpusPerNode)),
	}
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%d", kind, i), Labels: map[string]string{
			"gpu": kind, "has-" + kind: "true", "rack": fmt.Sprintf("%s-rack-%d", kind, i/nodesOfRack),
			corev1.LabelHostname: fmt.Sprintf("%s-%d", kind, i),
		}},
		Spec: corev1.NodeSpec{Taints: []corev1.Taint{
			{Key: "gpu", Value: kind, Effect: corev1.TaintEffectNoSchedule},
			{Key: "spot", Value: "true", Effect: corev1.TaintEffectNoSchedule},
		}},
		Status: corev1.NodeStatus{Allocatable: capacity, Capacity: capacity},
	}
	gomega.Expect(admin.Create(ctx, node)).To(gomega.Succeed())
	node.Status = corev1.NodeStatus{Allocatable: capacity, Capacity: capacity}
	gomega.Expect(admin.Status().Update(ctx, node)).To(gomega.Or(gomega.Succeed(), gomega.Satisfy(apierrors.IsConflict)))
	return node
}

// makeFlavors makes a flavor of each GPU kind. Each has a node label of its own beside the common one, and a
// toleration, so that what one flavor leaves behind shows under another.
func makeFlavors(ctx context.Context) {
	for _, kind := range gpuKinds {
		gomega.Expect(admin.Create(ctx, &kueue.ResourceFlavor{
			ObjectMeta: metav1.ObjectMeta{Name: kind},
			Spec: kueue.ResourceFlavorSpec{
				NodeLabels: map[string]string{"gpu": kind, "has-" + kind: "true"},
				Tolerations: []corev1.Toleration{
					{Key: "gpu", Operator: corev1.TolerationOpEqual, Value: kind, Effect: corev1.TaintEffectNoSchedule}},
			},
		})).To(gomega.Succeed())
	}
}

var spot = corev1.Toleration{Key: "spot", Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule}
