package e2e

import (
	"context"
	"fmt"
	"time"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/controller/constants"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// boosting has Kueue count boosts.
func boosting(c map[string]any) { c["featureGates"].(map[string]any)["PriorityBoost"] = true }

// amongEquals lets Kueue preempt a newer TrainJob for an older one of the same priority.
func amongEquals(cq *kueue.ClusterQueue) {
	cq.Spec.Preemption.WithinClusterQueue = kueue.PreemptionPolicyLowerOrNewerEqualPriority
}

// boostOf returns what Kueue adds to the priority of a TrainJob's Workload; "" for nothing.
func boostOf(ctx context.Context, tj *api.TrainJob) func() string {
	return func() string { return workloadOf(ctx, tj).Annotations[boostAnnotation] }
}

var _ = ginkgo.Describe("A TrainJob within its minimum runtime", func() {
	ginkgo.It("isn't preempted for an equal, and is when that is over", func(ctx context.Context) {
		const minimum = 25 * time.Second
		cluster.configure(boosting, func(c map[string]any) {
			c["preemption"] = map[string]any{
				"minimumRuntime": map[string]any{"default": "1h", "priorityClasses": map[string]any{"low": minimum.String()}},
			}
		})
		low, high := makePriorities(ctx)
		g := newGround(ctx, map[string]int64{"a100": 8}, amongEquals)
		g.runtime(ctx, "torch", "forever")
		g.localQueue(ctx, "held", g.queue)
		hold := func(policy kueue.StopPolicy) {
			ginkgo.GinkgoHelper()
			gomega.Eventually(func() error {
				lq := get(ctx, &kueue.LocalQueue{ObjectMeta: metav1.ObjectMeta{Namespace: g.namespace, Name: "held"}})
				lq.Spec.StopPolicy = &policy
				return admin.Update(ctx, lq)
			}).Should(gomega.Succeed())
		}
		hold(kueue.Hold)
		older := g.submit(ctx, g.trainJob("older", "torch", 1, priority(low), func(tj *api.TrainJob) {
			tj.Labels[constants.QueueLabel] = "held"
		}))
		gomega.Eventually(func() *kueue.Workload { return workloadOf(ctx, older) }).ShouldNot(gomega.BeNil())
		gomega.Eventually(func() time.Duration { return time.Since(workloadOf(ctx, older).CreationTimestamp.Time) }).Should(
			gomega.BeNumerically(">", 2*time.Second), "it is older by Kueue's clock, which counts seconds")
		newer := g.submit(ctx, g.trainJob("newer", "torch", 1, priority(low)))
		gomega.Eventually(running(ctx, newer)).Should(gomega.BeTrue())
		gomega.Expect(boostOf(ctx, newer)()).To(gomega.Equal("4"), "it is boosted before it runs")
		gomega.Expect(boostOf(ctx, older)()).To(gomega.BeEmpty(), "one that waits isn't")
		gomega.Eventually(bound(ctx, newer)).Should(gomega.Equal(1))
		hold(kueue.None)
		gomega.Consistently(running(ctx, newer), "8s").Should(gomega.BeTrue(), "its equal waits")
		gomega.Expect(running(ctx, older)()).To(gomega.BeFalse())
		gomega.Expect(g.plugin(ctx, "", "explain", "newer").out).To(gomega.ContainSubstring("minimum runtime"))
		gomega.Eventually(running(ctx, older), 2*minimum).Should(gomega.BeTrue(), "its equal preempts it")
		gomega.Expect(running(ctx, newer)()).To(gomega.BeFalse())
		gomega.Expect(workloadOf(ctx, newer).Annotations).NotTo(gomega.HaveKey(gomega.ContainSubstring("priority-boost")),
			"nothing is left of its boost")
		gomega.Expect(boostOf(ctx, older)()).To(gomega.Equal("4"), "now that is protected")

		urgent := g.submit(ctx, g.trainJob("urgent", "torch", 1, priority(high)))
		gomega.Eventually(running(ctx, urgent)).Should(gomega.BeTrue(), "a higher priority preempts it at any time")
		gomega.Expect(boostOf(ctx, older)()).To(gomega.BeEmpty())
	})
})

func victimSpecs() {
	ginkgo.It("is preempted only if no equal loses less", func(ctx context.Context) {
		r := newReporter(ctx, boosting, map[string]any{"preemption": map[string]any{"cheapestVictim": true}})
		low, high := makePriorities(ctx)
		g := newGround(ctx, map[string]int64{"a100": 64}, amongEquals)
		g.runtime(ctx, "torch", "forever", func(rt *api.TrainingRuntime) {
			metav1.SetMetaDataAnnotation(&rt.ObjectMeta, api.CheckpointMetricAnnotation, "saved")
		})
		saves := func(tj *api.TrainJob, step int) {
			ginkgo.GinkgoHelper()
			value := fmt.Sprint(step)
			r.reports(ctx, tj, trainerapi.TrainerStatus{Metrics: []trainerapi.Metric{{Name: "saved", Value: value}}})
			gomega.Eventually(func() *api.Checkpoint { return get(ctx, tj).Status.Checkpoint }).Should(
				gomega.HaveField("Value", value))
		}
		small := g.submit(ctx, g.trainJob("small", "torch", 1, priority(low)))
		gomega.Eventually(state(ctx, small)).Should(gomega.Equal(api.StateRunning))
		large := g.submit(ctx, g.trainJob("large", "torch", 7, priority(low)))
		gomega.Eventually(state(ctx, large)).Should(gomega.Equal(api.StateRunning))
		saves(large, 1)
		waits := g.submit(ctx, g.trainJob("waits", "torch", 1, priority(low)))
		gomega.Eventually(func() int32 {
			return get(ctx, &kueue.ClusterQueue{ObjectMeta: metav1.ObjectMeta{Name: g.queue}}).Status.PendingWorkloads
		}).Should(gomega.BeEquivalentTo(1))
		gomega.Eventually(func() time.Duration { return time.Since(get(ctx, large).Status.Checkpoint.Time.Time) }).Should(
			gomega.BeNumerically(">", 6*time.Second), "56 GPUs lose four GPU minutes in five seconds")
		saves(small, 1)
		cluster.mustAct("restart", "signalbox") // which has looked at them a moment ago
		gomega.Eventually(boostOf(ctx, large)).Should(gomega.Equal("1"))
		gomega.Expect(boostOf(ctx, small)()).To(gomega.BeEmpty(), "it has saved its work")
		gomega.Expect(running(ctx, waits)()).To(gomega.BeFalse(), "it is the newest")

		urgent := g.submit(ctx, g.trainJob("urgent", "torch", 1, priority(high)))
		gomega.Eventually(running(ctx, urgent)).Should(gomega.BeTrue())
		gomega.Expect(ptr.Deref(get(ctx, small).Spec.Suspend, false)).To(gomega.BeTrue(), "it was admitted first")
		gomega.Expect(running(ctx, large)()).To(gomega.BeTrue())
	})
}
