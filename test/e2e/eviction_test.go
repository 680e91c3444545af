package e2e

import (
	"context"
	"os"
	"slices"
	"strings"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/controller/constants"

	"github.com/signalbox-dev/signalbox/admission"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// makePriorities makes the priority classes low and high for one spec.
func makePriorities(ctx context.Context) (low, high string) {
	ginkgo.GinkgoHelper()
	for _, c := range []*kueue.WorkloadPriorityClass{
		{ObjectMeta: metav1.ObjectMeta{Name: "low"}, Value: 100}, {ObjectMeta: metav1.ObjectMeta{Name: "high"}, Value: 1000},
	} {
		gomega.Expect(admin.Create(ctx, c)).To(gomega.Succeed())
		ginkgo.DeferCleanup(func(ctx context.Context) { gomega.Expect(admin.Delete(ctx, c)).To(gomega.Succeed()) })
	}
	return "low", "high"
}

var _ = ginkgo.Describe("An evicted TrainJob", func() {
	ginkgo.It("is preempted, and runs again on the other flavor "+
		"with exactly that flavor's selectors and tolerations", func(ctx context.Context) {
		low, high := makePriorities(ctx)
		g := newGround(ctx, map[string]int64{"a100": 16, "h100": 16}, func(cq *kueue.ClusterQueue) {
			cq.Spec.FlavorFungibility = &kueue.FlavorFungibility{WhenCanPreempt: kueue.MayStopSearch}
		})
		g.runtime(ctx, "torch", "forever")
		victim := g.submit(ctx, g.trainJob("victim", "torch", 2, priority(low)))
		gomega.Eventually(bound(ctx, victim)).Should(gomega.Equal(2))
		gomega.Expect(flavor(ctx, victim)()).To(gomega.Equal("a100"))
		first := get(ctx, victim).ResourceVersion

		urgent := g.submit(ctx, g.trainJob("urgent", "torch", 2, priority(high)))
		gomega.Eventually(bound(ctx, urgent)).Should(gomega.Equal(2))
		gomega.Expect(flavor(ctx, urgent)()).To(gomega.Equal("a100"))
		gomega.Eventually(eventsOf(ctx, victim)).Should(gomega.ContainElement(
			gomega.HavePrefix("Stopped: Preempted to accommodate a workload")))

		gomega.Eventually(flavor(ctx, victim)).Should(gomega.Equal("h100"))
		gomega.Eventually(bound(ctx, victim)).Should(gomega.Equal(2))
		gomega.Expect(get(ctx, victim).ResourceVersion).NotTo(gomega.Equal(first))
		for _, p := range podsOf(ctx, victim) {
			gomega.Expect(p.Spec.NodeSelector).To(gomega.Equal(map[string]string{"gpu": "h100", "has-h100": "true"}))
			gomega.Expect(own(p.Spec.Tolerations)).To(gomega.ConsistOf(spot, corev1.Toleration{
				Key: "gpu", Operator: corev1.TolerationOpEqual, Value: "h100", Effect: corev1.TaintEffectNoSchedule,
			}))
		}
		gomega.Expect(watched.startsOf(victim)).To(gomega.Equal(2))
	})

	ginkgo.It("keeps its quota until the last of its pods is gone", func(ctx context.Context) {
		low, high := makePriorities(ctx)
		g := newGround(ctx, map[string]int64{"a100": 8})
		g.runtime(ctx, "torch", "1s")
		g.runtime(ctx, "slow", "forever", slowly(untilEnded))
		slow := g.submit(ctx, g.trainJob("slow", "slow", 1, priority(low)))
		gomega.Eventually(bound(ctx, slow)).Should(gomega.Equal(1))
		urgent := g.submit(ctx, g.trainJob("urgent", "torch", 1, priority(high)))
		gomega.Eventually(running(ctx, slow)).Should(gomega.BeFalse())
		gomega.Eventually(func() bool {
			pods := podsOf(ctx, slow)
			return len(pods) == 1 && pods[0].DeletionTimestamp != nil
		}).Should(gomega.BeTrue(), "the pod terminates")
		gomega.Consistently(flavor(ctx, urgent), "2s").Should(gomega.BeEmpty(), "its GPUs are still taken")
		gomega.Expect(podsOf(ctx, slow)).To(gomega.HaveLen(1))
		g.endTerminating(ctx)
		gomega.Eventually(complete(ctx, urgent)).Should(gomega.BeTrue())
		gomega.Eventually(bound(ctx, slow)).Should(gomega.Equal(1), "it runs again")
	})

	ginkgo.It("is stopped by hold and drain of its queue, "+
		"and runs again when the queue is opened", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 8})
		g.runtime(ctx, "torch", "forever")
		runs := g.submit(ctx, g.trainJob("runs", "torch", 1))
		gomega.Eventually(bound(ctx, runs)).Should(gomega.Equal(1))
		stopPolicy(ctx, g.queue, kueue.Hold)
		waits := g.submit(ctx, g.trainJob("waits", "torch", 1))
		gomega.Consistently(bound(ctx, runs)).Should(gomega.Equal(1), "hold lets it run")
		gomega.Expect(running(ctx, waits)()).To(gomega.BeFalse())
		stopPolicy(ctx, g.queue, kueue.HoldAndDrain)
		gomega.Eventually(running(ctx, runs)).Should(gomega.BeFalse())
		gomega.Eventually(g.used(ctx)).Should(gomega.BeZero())
		stopPolicy(ctx, g.queue, kueue.None)
		gomega.Eventually(func() int { return bound(ctx, runs)() + bound(ctx, waits)() }).Should(
			gomega.Equal(1), "one of the two fits")
	})

	ginkgo.It("follows its maximum execution time", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 8})
		g.runtime(ctx, "torch", "forever")
		tj := g.submit(ctx, g.trainJob("timed", "torch", 1, func(tj *api.TrainJob) {
			tj.Labels[constants.MaxExecTimeSecondsLabel] = "3"
		}))
		gomega.Eventually(func() int { return watched.startsOf(tj) }).Should(gomega.Equal(1))
		gomega.Eventually(condition(ctx, tj, kueue.WorkloadEvicted)).Should(gomega.HavePrefix("True/Deactivated"))
		gomega.Eventually(running(ctx, tj)).Should(gomega.BeFalse())
		gomega.Eventually(g.used(ctx)).Should(gomega.BeZero())
		gomega.Eventually(func() bool { return admission.IsNeutral(entryOf(get(ctx, tj))) }).Should(
			gomega.BeTrue(), "nothing of the admission is left in its entry")
	})
})

func init() {
	// Kueue 0.18 doesn't wait for pods by default, and a gate of 0.19 turns it off.
	if os.Getenv("SIGNALBOX_KUEUE") == "0.18" ||
		strings.Contains(os.Getenv("SIGNALBOX_KUEUE_GATES"), "DisableWaitForPodsReady") {
		return
	}
	ginkgo.Describe("Kueue that waits for pods by default", ginkgo.Label("kueue"), func() {
		ginkgo.It("learns within minutes that they are ready", func(ctx context.Context) {
			g := newGround(ctx, map[string]int64{"a100": 16})
			g.runtime(ctx, "torch", "forever")
			tj := g.submit(ctx, g.trainJob("ready", "torch", 1))
			gomega.Eventually(running(ctx, tj)).Should(gomega.BeTrue())
			gomega.Eventually(condition(ctx, tj, kueue.WorkloadPodsReady), "7m", "1s").Should(gomega.Equal("True/Started"))
			gomega.Expect(watched.startsOf(tj)).To(gomega.Equal(1))
		})
	})
}

var _ = ginkgo.Describe("With waitForPodsReady", ginkgo.Ordered, ginkgo.ContinueOnFailure, func() {
	ginkgo.BeforeAll(func() {
		cluster.configure(func(c map[string]any) {
			c["waitForPodsReady"] = map[string]any{
				"timeout": "5s", "blockAdmission": false,
				"requeuingStrategy": map[string]any{"backoffBaseSeconds": 1, "backoffMaxSeconds": 2},
			}
		}, func(c map[string]any) { c["kueue"].(map[string]any)["waitForPodsReady"] = true })
	})

	ginkgo.It("says when the pods are ready", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 8})
		g.runtime(ctx, "torch", "forever")
		tj := g.submit(ctx, g.trainJob("ready", "torch", 1))
		gomega.Eventually(condition(ctx, tj, kueue.WorkloadPodsReady)).Should(gomega.Equal("True/Started"))
		gomega.Eventually(cluster.metrics).Should(gomega.MatchRegexp(
			`kueue_admitted_until_ready_wait_time_seconds_count\{cluster_queue="` + g.queue + `"[^}]*\} 1`))
	})

	if hasGangs {
		ginkgo.It("evicts a TrainJob whose gang can't be placed in time, "+
			"and leaves nothing of it", func(ctx context.Context) {
			g := newGround(ctx, map[string]int64{"a100": 72})
			g.runtime(ctx, "torch", "forever")
			tj := g.submit(ctx, g.trainJob("nine", "torch", 9, gangs(api.GangRequired)))
			gomega.Eventually(func() string { return told(ctx, tj, api.ConditionGangScheduled) }).Should(
				gomega.HavePrefix("False Unschedulable: gang node (9 pods)"))
			first := g.leftovers(ctx)()
			gomega.Expect(first).To(gomega.HaveLen(2))
			gomega.Eventually(eventsOf(ctx, tj)).Should(gomega.ContainElement(
				gomega.HavePrefix("Stopped: Exceeded the PodsReady timeout")))
			gomega.Eventually(g.leftovers(ctx)).Should(gomega.And(gomega.HaveLen(2),
				gomega.Not(gomega.ContainElements(first[0])), gomega.Not(gomega.ContainElement(first[1]))),
				"the next start has others")
			stopPolicy(ctx, g.queue, kueue.HoldAndDrain)
			gomega.Eventually(g.leftovers(ctx)).Should(gomega.BeEmpty())
			gomega.Eventually(func() string { return told(ctx, tj, api.ConditionGangScheduled) }).Should(gomega.BeEmpty())
		})
	}

	ginkgo.It("evicts a TrainJob whose pods don't become ready in time, and starts it again", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 8})
		g.runtime(ctx, "stuck", "forever", func(rt *api.TrainingRuntime) {
			rt.Spec.Template.Spec.ReplicatedJobs[0].Template.Spec.Template.Annotations[readyAfter] = "never"
		})
		tj := g.submit(ctx, g.trainJob("stuck", "stuck", 1))
		gomega.Eventually(bound(ctx, tj)).Should(gomega.Equal(1))
		gomega.Eventually(eventsOf(ctx, tj)).Should(gomega.ContainElement(
			gomega.HavePrefix("Stopped: Exceeded the PodsReady timeout")))
		gomega.Eventually(func() int { return watched.startsOf(tj) }).Should(
			gomega.BeNumerically(">=", 2), "it is started again after the back-off")
		gomega.Eventually(bound(ctx, tj)).Should(gomega.Equal(1))
	})
})

// own leaves out the tolerations that Kubernetes adds to every pod.
func own(tolerations []corev1.Toleration) []corev1.Toleration {
	return slices.DeleteFunc(slices.Clone(tolerations), func(t corev1.Toleration) bool {
		return t.Key == corev1.TaintNodeNotReady || t.Key == corev1.TaintNodeUnreachable
	})
}

func stopPolicy(ctx context.Context, clusterQueue string, policy kueue.StopPolicy) {
	ginkgo.GinkgoHelper()
	gomega.Eventually(func() error {
		cq := get(ctx, &kueue.ClusterQueue{ObjectMeta: metav1.ObjectMeta{Name: clusterQueue}})
		cq.Spec.StopPolicy = &policy
		return admin.Update(ctx, cq)
	}).Should(gomega.Succeed())
	gomega.Eventually(func() bool {
		cq := get(ctx, &kueue.ClusterQueue{ObjectMeta: metav1.ObjectMeta{Name: clusterQueue}})
		return apimeta.IsStatusConditionTrue(cq.Status.Conditions, kueue.ClusterQueueActive) == (policy == kueue.None)
	}).Should(gomega.BeTrue())
}
