package e2e

import (
	"context"
	"fmt"
	"time"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/controller/constants"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	usageapi "github.com/signalbox-dev/signalbox/api/usage/v1alpha1"
)

func usageSpecs() {
	ginkgo.It("records who used what, and what of it was lost", func(ctx context.Context) {
		r := newReporter(ctx, unchanged, map[string]any{"usage": map[string]any{"enabled": true, "teamLabel": "team"}})
		low, high := makePriorities(ctx)
		g := newGround(ctx, map[string]int64{"a100": 8})
		g.runtime(ctx, "torch", "forever", func(rt *api.TrainingRuntime) {
			metav1.SetMetaDataAnnotation(&rt.ObjectMeta, api.CheckpointMetricAnnotation, "saved")
		})
		saves := g.submit(ctx, g.trainJob("saves", "torch", 1, priority(low), func(tj *api.TrainJob) {
			tj.Labels["team"] = "vision"
			tj.Annotations = map[string]string{api.UserAnnotation: "somebody-else"}
		}))
		gomega.Expect(saves.Annotations).To(gomega.HaveKeyWithValue(api.UserAnnotation, "user"))
		g.cannotForge(ctx, g.submit(ctx, g.trainJob("unqueued", "torch", 1, func(tj *api.TrainJob) { tj.Labels = nil })))

		began, reserved := g.runs(ctx, saves), reservedAt(ctx, saves)
		g.lasts(began, 3*time.Second)
		r.reports(ctx, saves, trainerapi.TrainerStatus{Metrics: []trainerapi.Metric{{Name: "saved", Value: "100"}}})
		gomega.Eventually(func() *api.Checkpoint { return get(ctx, saves).Status.Checkpoint }).ShouldNot(gomega.BeNil())
		saved := get(ctx, saves).Status.Checkpoint.Time.Time
		g.lasts(saved, 3*time.Second)
		urgent := g.submit(ctx, g.trainJob("urgent", "torch", 1, priority(high)))
		g.runs(ctx, urgent)
		released := apimeta.FindStatusCondition(workloadOf(ctx, saves).Status.Conditions, kueue.WorkloadQuotaReserved)
		gomega.Expect(released.Status).To(gomega.Equal(metav1.ConditionFalse))
		gomega.Expect(admin.Delete(ctx, urgent)).To(gomega.Succeed())

		again, reservedAgain := g.runs(ctx, saves), reservedAt(ctx, saves)
		g.lasts(again, 2*time.Second)
		for _, p := range podsOf(ctx, saves) {
			metav1.SetMetaDataAnnotation(&p.ObjectMeta, runFor, "1s")
			gomega.Expect(admin.Update(ctx, &p)).To(gomega.Succeed())
		}
		gomega.Eventually(complete(ctx, saves)).Should(gomega.BeTrue())
		ended := apimeta.FindStatusCondition(get(ctx, saves).Status.Conditions, trainerapi.TrainJobComplete)

		useful := saved.Sub(began) + ended.LastTransitionTime.Sub(again)
		lost := released.LastTransitionTime.Sub(saved)
		idle := began.Sub(reserved) + again.Sub(reservedAgain)
		near := func(d time.Duration) gomega.OmegaMatcher {
			const perPod = 1.5 // seconds: Kubernetes cuts times to whole ones at both ends
			return gomega.BeNumerically("~", d.Seconds()*gpusPerNode*1000, 2*perPod*gpusPerNode*1000)
		}
		gomega.Eventually(func(e gomega.Gomega) {
			row := g.rowOf(ctx, admin, "vision")
			e.Expect(row.Useful).To(near(useful))
			e.Expect(row.Lost).To(near(lost))
			e.Expect(row.Idle).To(near(idle))
			e.Expect(row.Unknown).To(gomega.BeZero())
			e.Expect(row.User).To(gomega.Equal("user"))
			e.Expect(row.ClusterQueue).To(gomega.Equal(g.queue))
		}).Should(gomega.Succeed())
		before := g.rowOf(ctx, admin, "vision")
		gomega.Expect(admin.Delete(ctx, saves)).To(gomega.Succeed())
		gomega.Eventually(func() []string { return g.list(ctx, &kueue.WorkloadList{}) }).Should(gomega.BeEmpty())

		viewer := g.viewer(ctx)
		gomega.Eventually(func() error {
			return viewer.List(ctx, &usageapi.QuotaUsageList{}, client.InNamespace(g.namespace))
		}).Should(gomega.Succeed(), "who may edit the namespace may read it")
		gomega.Expect(g.rowOf(ctx, viewer, "vision")).To(gomega.Equal(before), "it is there, and counted once")
		var records usageapi.QuotaUsageList
		gomega.Expect(viewer.List(ctx, &records, client.InNamespace(g.namespace))).To(gomega.Succeed())
		forged := records.Items[0].DeepCopy()
		forged.Rows = nil
		isForbidden := gomega.MatchError(apierrors.IsForbidden, "IsForbidden")
		gomega.Expect(viewer.Update(ctx, forged)).To(isForbidden)
		gomega.Expect(viewer.Delete(ctx, forged)).To(isForbidden)
		forged.ObjectMeta = metav1.ObjectMeta{Namespace: g.namespace, Name: "forged"}
		gomega.Expect(viewer.Create(ctx, forged)).To(isForbidden)
		shown := g.plugin(ctx, "", "usage", "--by", "team,user", "-o", "csv").out
		gomega.Expect(shown).To(gomega.ContainSubstring("vision,user,nvidia.com/gpu,"))
	})
}

// cannotForge holds that the user can't have another name in a TrainJob, nor none, however that is sent.
func (g *ground) cannotForge(ctx context.Context, tj *api.TrainJob) {
	ginkgo.GinkgoHelper()
	for way, send := range ways {
		for _, forged := range []map[string]string{{api.UserAnnotation: "somebody-else"}, nil} {
			gomega.Eventually(func() error {
				before := raw(ctx, tj)
				after := before.DeepCopy()
				after.SetAnnotations(forged)
				return send(ctx, user, before, after)
			}).Should(gomega.Succeed(), way)
			gomega.Expect(get(ctx, tj).Annotations).To(gomega.HaveKeyWithValue(api.UserAnnotation, "user"), way)
		}
	}
}

// runs waits until the pod of a TrainJob runs, and returns since when.
func (g *ground) runs(ctx context.Context, tj *api.TrainJob) (since time.Time) {
	ginkgo.GinkgoHelper()
	gomega.Eventually(func(e gomega.Gomega) {
		pods := podsOf(ctx, tj)
		e.Expect(pods).To(gomega.HaveLen(1))
		e.Expect(pods[0].Status.Phase).To(gomega.Equal(corev1.PodRunning))
		e.Expect(pods[0].DeletionTimestamp).To(gomega.BeNil())
		since = pods[0].Status.StartTime.Time
	}).Should(gomega.Succeed())
	return since
}

// lasts waits until a time has passed since another.
func (g *ground) lasts(since time.Time, d time.Duration) {
	ginkgo.GinkgoHelper()
	gomega.Eventually(func() time.Duration { return time.Since(since) }).Should(gomega.BeNumerically(">", d))
}

// reservedAt returns since when a TrainJob holds quota.
func reservedAt(ctx context.Context, tj *api.TrainJob) time.Time {
	ginkgo.GinkgoHelper()
	c := apimeta.FindStatusCondition(workloadOf(ctx, tj).Status.Conditions, kueue.WorkloadQuotaReserved)
	gomega.Expect(c.Status).To(gomega.Equal(metav1.ConditionTrue))
	return c.LastTransitionTime.Time
}

// rowOf returns what a team has held of GPUs, on all days.
func (g *ground) rowOf(ctx context.Context, as client.Client, team string) (sum usageapi.Row) {
	ginkgo.GinkgoHelper()
	var records usageapi.QuotaUsageList
	gomega.Expect(as.List(ctx, &records, client.InNamespace(g.namespace))).To(gomega.Succeed())
	for _, record := range records.Items {
		for _, row := range record.Rows {
			if row.Team != team || row.Resource != string(gpu) {
				continue
			}
			row.Useful, row.Lost = row.Useful+sum.Useful, row.Lost+sum.Lost
			row.Idle, row.Unknown = row.Idle+sum.Idle, row.Unknown+sum.Unknown
			sum = row
		}
	}
	return sum
}

// viewer may edit the namespace, and has what the chart adds to that (templates/aggregate.yaml).
func (g *ground) viewer(ctx context.Context) client.Client {
	ginkgo.GinkgoHelper()
	role := &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: "signalbox-usage-viewer",
			Labels: map[string]string{"rbac.authorization.k8s.io/aggregate-to-view": "true"}},
		Rules: []rbacv1.PolicyRule{{APIGroups: []string{usageapi.GroupVersion.Group}, Resources: []string{"quotausages"},
			Verbs: []string{"get", "list", "watch"}}},
	}
	gomega.Expect(admin.Create(ctx, role)).To(gomega.Succeed())
	ginkgo.DeferCleanup(func(ctx context.Context) { gomega.Expect(admin.Delete(ctx, role)).To(gomega.Succeed()) })
	return g.as(ctx, "viewer", []rbacv1.PolicyRule{}, "edit")
}

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

var _ = ginkgo.Describe("A TrainJob within its minimum runtime", waitsForTime, func() {
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
