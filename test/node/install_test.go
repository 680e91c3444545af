package node

import (
	"context"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

var _ = ginkgo.Describe("An installation by Helm", ginkgo.Label("trainers"), func() {
	ginkgo.It("runs two managers apart from each other, under Pod Security's level restricted", func(ctx context.Context) {
		both := managers(ctx)
		gomega.Expect(both).To(gomega.HaveLen(2))
		gomega.Expect(both[0].Spec.NodeName).NotTo(gomega.Equal(both[1].Spec.NodeName))
		for _, p := range both {
			gomega.Expect(p.Status.ContainerStatuses).To(gomega.HaveEach(gomega.HaveField("RestartCount", gomega.BeZero())),
				"%s serves without a restart", p.Name)
		}
		careless := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "signalbox-system", Name: "careless"},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "careless", Image: peerImage}}}}
		gomega.Expect(admin.Create(ctx, careless)).To(gomega.MatchError(gomega.ContainSubstring("PodSecurity")))
	})

	ginkgo.It("has what keeps it up and others out", func(ctx context.Context) {
		for _, list := range []client.ObjectList{&policyv1.PodDisruptionBudgetList{}, &networkingv1.NetworkPolicyList{}} {
			gomega.Expect(admin.List(ctx, list, client.InNamespace("signalbox-system"))).To(gomega.Succeed())
			gomega.Expect(list).To(gomega.HaveField("Items", gomega.HaveLen(1)))
		}
		leader := kubectl("-n", "signalbox-system", "get", "lease", "signalbox.signalbox.dev",
			"-o", "jsonpath={.spec.holderIdentity}")
		gomega.Expect(leader).To(gomega.HavePrefix("signalbox-"))
	})

	ginkgo.It("serves its webhooks by the Service: a TrainJob that can't be is refused with its path",
		func(ctx context.Context) {
			g := newGround(ctx, 4)
			g.runtime(ctx, "peer", peerImage)
			tj := g.submit(ctx, "fine", "peer", 1, 1, peer())
			gomega.Eventually(is(ctx, tj, trainerapi.TrainJobComplete)).Should(gomega.BeTrue())
			tj = get(ctx, tj)
			tj.Spec.Trainer.NumNodes = ptr.To[int32](3)
			gomega.Expect(user.Update(ctx, tj)).To(gomega.MatchError(gomega.ContainSubstring("spec.trainer")))
		})
})
