package node

import (
	"context"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

var _ = ginkgo.Describe("A training process that fails", func() {
	if !bundled() {
		return
	}

	// fails holds that a TrainJob has failed and says which of its jobs did, and that Kueue has its quota back.
	fails := func(ctx context.Context, g *ground, tj *api.TrainJob) {
		ginkgo.GinkgoHelper()
		gomega.Eventually(is(ctx, tj, trainerapi.TrainJobFailed)).Should(gomega.BeTrue())
		condition := apimeta.FindStatusCondition(get(ctx, tj).Status.Conditions, trainerapi.TrainJobFailed)
		gomega.Expect(condition.Message).To(gomega.ContainSubstring(tj.Name + "-node-0"))
		gomega.Eventually(g.used(ctx)).Should(gomega.BeZero())
		var workloads kueue.WorkloadList
		gomega.Expect(admin.List(ctx, &workloads, client.InNamespace(g.namespace))).To(gomega.Succeed())
		gomega.Expect(workloads.Items).To(gomega.HaveLen(1))
		finished := apimeta.FindStatusCondition(workloads.Items[0].Status.Conditions, kueue.WorkloadFinished)
		gomega.Expect(finished).To(gomega.HaveField("Reason", kueue.WorkloadFinishedReasonFailed))
	}

	ginkgo.DescribeTable("ends its TrainJob, and its quota comes back",
		func(ctx context.Context, image string, command []string, memory, reason string) {
			g := newGround(ctx, 4)
			g.runtime(ctx, "peer", image)
			tj := g.submit(ctx, "fails", "peer", 1, 4, command, func(tj *api.TrainJob) {
				if memory != "" {
					tj.Spec.Trainer.ResourcesPerNode.Limits[corev1.ResourceMemory] = resource.MustParse(memory)
				}
			})
			fails(ctx, g, tj)
			state := rank(ctx, tj, 0).Status.ContainerStatuses[0].State.Terminated
			gomega.Expect(state).To(gomega.HaveField("Reason", reason))
		},
		ginkgo.Entry("by itself", peerImage, peer("--exit", "1"), "", "Error"),
		ginkgo.Entry("for memory", peerImage, peer("--eat", "200"), "64Mi", "OOMKilled"),
		ginkgo.Entry("because there is no such command", peerImage, []string{"/no-such-program"}, "", "StartError"),
	)

	ginkgo.It("because its image can't be pulled holds its quota, and says that it isn't ready, until it is deleted",
		func(ctx context.Context) {
			g := newGround(ctx, 4)
			g.runtime(ctx, "absent", "signalbox.test/no-such-image:1", func(spec *trainerapi.TrainingRuntimeSpec) {
				trainerPod(spec).Containers[0].ImagePullPolicy = corev1.PullIfNotPresent
			})
			tj := g.submit(ctx, "waits", "absent", 1, 4, peer())
			gomega.Eventually(func() string {
				for _, p := range of(ctx, tj, "") {
					for _, s := range p.Status.ContainerStatuses {
						if s.State.Waiting != nil {
							return s.State.Waiting.Reason
						}
					}
				}
				return ""
			}).Should(gomega.Equal("ImagePullBackOff"))
			gomega.Expect(get(ctx, tj).Status.State).To(gomega.Equal(api.StateStarting))
			gomega.Expect(g.used(ctx)()).To(gomega.BeEquivalentTo(4))
			gomega.Expect(admin.Delete(ctx, tj)).To(gomega.Succeed())
			gomega.Eventually(g.used(ctx)).Should(gomega.BeZero())
		})
})
