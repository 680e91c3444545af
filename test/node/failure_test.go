package node

import (
	"context"
	"strings"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/signalbox-dev/signalbox/admission/avoid"
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

var _ = ginkgo.Describe("A broken node", ginkgo.Ordered, ginkgo.ContinueOnFailure, func() {
	if !bundled() {
		return
	}

	ginkgo.BeforeAll(func(ctx context.Context) {
		helm := func(ctx context.Context, args ...string) {
			ginkgo.GinkgoHelper()
			_, err := command("helm", append(args, "--namespace", "signalbox-system", "--wait", "--timeout", "2m")...)
			gomega.Expect(err).NotTo(gomega.HaveOccurred())
			// A manager that is ending leads for some seconds, with the previous configuration.
			gomega.Eventually(func() string { return leader(managers(ctx)) }).ShouldNot(gomega.BeEmpty())
		}
		awaitManagers()
		ginkgo.DeferCleanup(func(ctx context.Context) { helm(ctx, "rollback", "signalbox") })
		helm(ctx, "upgrade", "signalbox", "charts/signalbox", "--reuse-values", "--set", "config.nodes.avoidFor=1h")
	})

	ginkgo.DescribeTable("fails a TrainJob once: the second try is on the other node",
		func(ctx context.Context, part string, breaks func(context.Context, *api.TrainJob, string), reason, message string) {
			bad, good := withoutKueue(ctx)
			if part += strings.TrimPrefix(bad, "node"); breaks == nil {
				act("break", part)
				ginkgo.DeferCleanup(act, "repair", part)
			}
			g := newGround(ctx, 4)
			g.runtime(ctx, "apart", peerImage, apart)
			tj := g.submit(ctx, "twice", "apart", 2, 2, peer("--steps", "600"))
			if breaks != nil {
				gomega.Eventually(places(ctx, tj)).Should(gomega.ConsistOf(bad, good))
				breaks(ctx, tj, part)
			}
			gomega.Eventually(places(ctx, tj)).Should(gomega.Equal([]string{good, good}))
			gomega.Eventually(logs(rank(ctx, tj, 0))).Should(gomega.ContainSubstring("step 1 of"))
			gomega.Expect(get(ctx, tj).Status.Avoided).To(gomega.ConsistOf(gomega.And(gomega.HaveField("Name", bad),
				gomega.HaveField("Reason", reason), gomega.HaveField("Message", message))))
			gomega.Expect(tj.Status.Lost).To(gomega.HaveValue(gomega.HaveField("Restarts", gomega.BeEquivalentTo(1))))
			gomega.Eventually(eventsOf(ctx, tj)).Should(gomega.ContainElements(
				gomega.And(gomega.HavePrefix("NodeAvoided: It keeps off node "+bad+" for 1h"), gomega.HaveSuffix("("+message+")")),
				gomega.MatchRegexp("^(Node)?Restarting: .*restart 1 of 3"),
				gomega.MatchRegexp("^KeepsOff: .*: "+bad+"$")))
			for _, p := range of(ctx, tj, "") {
				gomega.Expect(p.Spec.Affinity.PodAntiAffinity).NotTo(gomega.BeNil(), "the runtime's affinity stays")
			}
			gomega.Expect(g.used(ctx)()).To(gomega.BeEquivalentTo(4))
		},
		ginkgo.Entry("after its device plugin has rejected a pod", "gpus", nil, avoid.Rejected, "UnexpectedAdmissionError"),
		ginkgo.Entry("after it had no image", "images", nil, avoid.NotStarted, "ErrImageNeverPull"),
		ginkgo.Entry("after it was not ready", "kubelet", stopped, avoid.Lost, "DeletionByTaintManager"),
	)
})

// apart has the pods of a runtime prefer different nodes.
func apart(spec *trainerapi.TrainingRuntimeSpec) {
	trainerPod(spec).Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
		PreferredDuringSchedulingIgnoredDuringExecution: []corev1.WeightedPodAffinityTerm{{Weight: 100,
			PodAffinityTerm: corev1.PodAffinityTerm{TopologyKey: corev1.LabelHostname, LabelSelector: &metav1.LabelSelector{
				MatchExpressions: []metav1.LabelSelectorRequirement{
					{Key: jobset.JobSetNameKey, Operator: metav1.LabelSelectorOpExists}}}}}}}}
}

// stopped stops a kubelet until its node's pods are lost. Their containers run until it is back, and are ended then; so
// is the node itself, which is ready again before the second try.
func stopped(ctx context.Context, tj *api.TrainJob, kubelet string) {
	ginkgo.GinkgoHelper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: strings.Replace(kubelet, "kubelet", "node", 1)}}
	ginkgo.DeferCleanup(func(ctx context.Context) {
		if err := tryAct("start", kubelet); err != nil {
			gomega.Expect(err).To(gomega.MatchError(gomega.ContainSubstring("runs already")))
		}
		awaitNode(ctx, node.Name, corev1.ConditionTrue)
		gomega.Eventually(func() int64 { return get(ctx, node).Status.Allocatable.Name(gpu, resource.DecimalSI).Value() }).
			Should(gomega.BeEquivalentTo(4), "the device plugin is back, too")
		awaitManagers()
	})
	act("stop", kubelet)
	awaitNode(ctx, node.Name, corev1.ConditionUnknown)
	gomega.Eventually(func() []api.AvoidedNode { return get(ctx, tj).Status.Avoided }).ShouldNot(gomega.BeEmpty())
	act("start", kubelet)
}
