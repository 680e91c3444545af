package e2e

import (
	"context"
	"time"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

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
