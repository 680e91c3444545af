package e2e

import (
	"context"
	"time"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/controller/constants"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

func init() {
	if cluster.bundled() { // they don't depend on the Trainer
		ginkgo.Describe("Kueue's features", ginkgo.Label("kueue"), sharingSpecs)
	}
}

// inCohort puts a ClusterQueue in the cohort of a ground, in which it takes back what others borrow.
func inCohort(name string) func(*kueue.ClusterQueue) {
	return func(cq *kueue.ClusterQueue) {
		cq.Spec.CohortName = kueue.CohortReference(name)
		cq.Spec.Preemption = &kueue.ClusterQueuePreemption{ReclaimWithinCohort: kueue.PreemptionPolicyAny}
	}
}

// queuedAt names the queue of a TrainJob.
func queuedAt(queue string) func(*api.TrainJob) {
	return func(tj *api.TrainJob) { tj.Labels[constants.QueueLabel] = queue }
}

// evictedFor is why a TrainJob was evicted.
func evictedFor(ctx context.Context, tj *api.TrainJob) func() string {
	return func() string {
		ginkgo.GinkgoHelper()
		wl := workloadOf(ctx, tj)
		if wl == nil {
			return ""
		}
		if c := apimeta.FindStatusCondition(wl.Status.Conditions, kueue.WorkloadPreempted); c != nil {
			return c.Reason
		}
		return ""
	}
}

func sharingSpecs() {
	ginkgo.It("borrow within a cohort, and the quota is reclaimed", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 8}, func(cq *kueue.ClusterQueue) { inCohort(cq.Name)(cq) })
		g.clusterQueue(ctx, g.queue+"-lender", map[string]int64{"a100": 8}, inCohort(g.queue))
		g.localQueue(ctx, "lender", g.queue+"-lender")
		g.runtime(ctx, "torch", "forever")
		borrower := g.submit(ctx, g.trainJob("borrower", "torch", 2))
		gomega.Eventually(bound(ctx, borrower)).Should(gomega.Equal(2))
		owner := g.submit(ctx, g.trainJob("owner", "torch", 1, queuedAt("lender")))
		gomega.Eventually(evictedFor(ctx, borrower)).Should(gomega.Equal(kueue.InCohortReclamationReason))
		gomega.Eventually(bound(ctx, owner)).Should(gomega.Equal(1))
		gomega.Eventually(state(ctx, borrower)).Should(gomega.Equal(api.StateQueued))
		gomega.Expect(user.Delete(ctx, owner)).To(gomega.Succeed())
		gomega.Eventually(bound(ctx, borrower)).Should(gomega.Equal(2))
		gomega.Expect(watched.startsOf(borrower)).To(gomega.Equal(2))
	})

	ginkgo.It("share a cohort fairly", func(ctx context.Context) {
		cluster.configure(func(c map[string]any) {
			c["fairSharing"] = map[string]any{
				"preemptionStrategies": []any{"LessThanOrEqualToFinalShare", "LessThanInitialShare"},
			}
		}, func(map[string]any) {})
		g := newGround(ctx, map[string]int64{"a100": 0}, func(cq *kueue.ClusterQueue) { inCohort(cq.Name)(cq) })
		for _, name := range []string{"other", "lender"} {
			quota := map[string]int64{"other": 0, "lender": 32}[name]
			g.clusterQueue(ctx, g.queue+"-"+name, map[string]int64{"a100": quota}, inCohort(g.queue))
			g.localQueue(ctx, name, g.queue+"-"+name)
		}
		g.runtime(ctx, "torch", "forever")
		var first []*api.TrainJob
		for _, name := range []string{"a", "b", "c", "d"} {
			first = append(first, g.submit(ctx, g.trainJob(name, "torch", 1)))
		}
		for _, tj := range first {
			gomega.Eventually(bound(ctx, tj)).Should(gomega.Equal(1))
		}
		late := g.submit(ctx, g.trainJob("late", "torch", 1, queuedAt("other")))
		gomega.Eventually(bound(ctx, late)).Should(gomega.Equal(1))
		evicted := 0
		for _, tj := range first {
			if evictedFor(ctx, tj)() == kueue.InCohortFairSharingReason {
				evicted++
			}
		}
		gomega.Expect(evicted).To(gomega.Equal(1))
	})

	ginkgo.It("hold and drain a LocalQueue", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 8})
		g.runtime(ctx, "torch", "forever")
		policy := func(p kueue.StopPolicy) {
			ginkgo.GinkgoHelper()
			gomega.Eventually(func() error {
				lq := get(ctx, &kueue.LocalQueue{ObjectMeta: metav1.ObjectMeta{Namespace: g.namespace, Name: localQueue}})
				lq.Spec.StopPolicy = &p
				return admin.Update(ctx, lq)
			}).Should(gomega.Succeed())
		}
		policy(kueue.Hold)
		tj := g.submit(ctx, g.trainJob("held", "torch", 1))
		gomega.Eventually(state(ctx, tj)).Should(gomega.Equal(api.StateQueued))
		gomega.Consistently(running(ctx, tj)).Should(gomega.BeFalse())
		policy(kueue.None)
		gomega.Eventually(bound(ctx, tj)).Should(gomega.Equal(1))
		policy(kueue.HoldAndDrain)
		gomega.Eventually(g.used(ctx)).Should(gomega.BeZero())
		gomega.Eventually(state(ctx, tj)).Should(gomega.Equal(api.StateQueued))
		policy(kueue.None)
		gomega.Eventually(bound(ctx, tj)).Should(gomega.Equal(1))
	})

	ginkgo.It("count the execution time before an eviction", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 8})
		g.runtime(ctx, "torch", "forever")
		tj := g.submit(ctx, g.trainJob("timed", "torch", 1, func(tj *api.TrainJob) {
			tj.Labels[constants.MaxExecTimeSecondsLabel] = "20"
		}))
		gomega.Eventually(bound(ctx, tj)).Should(gomega.Equal(1))
		admitted := apimeta.FindStatusCondition(workloadOf(ctx, tj).Status.Conditions, kueue.WorkloadAdmitted)
		gomega.Eventually(func() time.Duration { return time.Since(admitted.LastTransitionTime.Time) }).Should(
			gomega.BeNumerically(">", 8*time.Second))
		stopPolicy(ctx, g.queue, kueue.HoldAndDrain)
		gomega.Eventually(g.used(ctx)).Should(gomega.BeZero())
		gomega.Eventually(func() int32 {
			return ptr.Deref(workloadOf(ctx, tj).Status.AccumulatedPastExecutionTimeSeconds, 0)
		}).Should(gomega.BeNumerically(">=", 8))
		stopPolicy(ctx, g.queue, kueue.None)
		gomega.Eventually(bound(ctx, tj)).Should(gomega.Equal(1))
		again := apimeta.FindStatusCondition(workloadOf(ctx, tj).Status.Conditions, kueue.WorkloadAdmitted)
		gomega.Eventually(condition(ctx, tj, kueue.WorkloadEvicted)).Should(gomega.HavePrefix("True/Deactivated"))
		evicted := apimeta.FindStatusCondition(workloadOf(ctx, tj).Status.Conditions, kueue.WorkloadEvicted)
		gomega.Expect(evicted.LastTransitionTime.Sub(again.LastTransitionTime.Time)).To(
			gomega.BeNumerically("<=", 16*time.Second), "20 s in all, of which 8 or more were before")
		gomega.Eventually(g.used(ctx)).Should(gomega.BeZero())
	})

	ginkgo.It("delete finished Workloads, and nothing runs again", func(ctx context.Context) {
		cluster.configure(func(c map[string]any) {
			c["objectRetentionPolicies"] = map[string]any{"workloads": map[string]any{"afterFinished": "2s"}}
		}, func(map[string]any) {})
		g := newGround(ctx, map[string]int64{"a100": 8})
		g.runtime(ctx, "torch", "1s")
		tj := g.submit(ctx, g.trainJob("done", "torch", 1))
		gomega.Eventually(complete(ctx, tj)).Should(gomega.BeTrue())
		gomega.Eventually(func() bool {
			wl := workloadOf(ctx, tj)
			return wl == nil || !wl.DeletionTimestamp.IsZero()
		}, "2m").Should(gomega.BeTrue())
		gomega.Consistently(func() int { return watched.startsOf(tj) }, "3s").Should(gomega.Equal(1))
		gomega.Eventually(state(ctx, tj)).Should(gomega.Equal(api.StateComplete))
		gomega.Eventually(g.used(ctx)).Should(gomega.BeZero())
	})
}
