package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/controller/constants"
	"sigs.k8s.io/kueue/pkg/workload"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// mergeInto patches metadata or spec of an object by a merge patch.
func mergeInto(ctx context.Context, by client.Client, o client.Object, of string, with map[string]any) error {
	ginkgo.GinkgoHelper()
	patch, err := json.Marshal(map[string]any{of: with})
	gomega.Expect(err).NotTo(gomega.HaveOccurred())
	return merge(ctx, by, o, "", string(patch))
}

// filling returns labels of so many bytes.
func filling(size int) map[string]any {
	labels := map[string]any{}
	for i := range size / 128 {
		labels[fmt.Sprintf("fill.example.com/%040d", i)] = strings.Repeat("x", 60)
	}
	return labels
}

var _ = ginkgo.Describe("What stops a TrainJob and frees its quota", func() {
	finalizers := func(names ...string) map[string]any { return map[string]any{"finalizers": names} }
	letGoAtEnd := func(o client.Object) {
		ginkgo.DeferCleanup(func(ctx context.Context) {
			gomega.Expect(ignoreNotFound(mergeInto(ctx, admin, o, "metadata", finalizers()))).To(gomega.Succeed())
		})
	}

	ginkgo.It("has room in a TrainJob that its user fills", func(ctx context.Context) {
		low, high := makePriorities(ctx)
		g := newGround(ctx, map[string]int64{"a100": 8})
		g.runtime(ctx, "torch", "forever")
		tj := g.submit(ctx, g.trainJob("filled", "torch", 1, priority(low)))
		gomega.Eventually(bound(ctx, tj)).Should(gomega.Equal(1))
		fill := func(size int) error {
			return mergeInto(ctx, user, tj, "metadata", map[string]any{"labels": filling(size)})
		}
		size := 1_400_000
		gomega.Expect(fill(size)).To(gomega.MatchError(gomega.ContainSubstring("bytes")),
			"there must be room for what Signalbox writes")
		for fill(size) != nil {
			size -= 50_000
		}
		ginkgo.AddReportEntry(fmt.Sprintf("filled: with %d bytes", size))
		urgent := g.submit(ctx, g.trainJob("urgent", "torch", 1, priority(high)))
		gomega.Eventually(bound(ctx, urgent)).Should(gomega.Equal(1), "it is preempted")
		gomega.Eventually(bound(ctx, tj)).Should(gomega.BeZero())
		g.end(ctx, "urgent-")
		gomega.Eventually(bound(ctx, tj)).Should(gomega.Equal(1), "it runs again")
		g.end(ctx, "filled-")
		gomega.Eventually(complete(ctx, tj)).Should(gomega.BeTrue(), "its end is written")
		gomega.Eventually(g.used(ctx)).Should(gomega.BeZero())
	})

	ginkgo.It("doesn't wait for what keeps its JobSet or its Workload", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 24})
		g.runtime(ctx, "slow", "forever", slowly(untilEnded))
		g.runtime(ctx, "torch", "1s")
		all := map[string]*api.TrainJob{}
		for _, name := range []string{"finalizer", "dependent", "workload"} {
			all[name] = g.submit(ctx, g.trainJob(name, "slow", 1))
		}
		for _, tj := range all {
			gomega.Eventually(bound(ctx, tj)).Should(gomega.Equal(1))
		}
		jobSetOf := func(name string) *jobset.JobSet {
			ginkgo.GinkgoHelper()
			return get(ctx, &jobset.JobSet{ObjectMeta: metav1.ObjectMeta{Namespace: g.namespace, Name: name}})
		}
		js := jobSetOf("finalizer")
		gomega.Expect(mergeInto(ctx, admin, js, "metadata",
			finalizers(append(js.Finalizers, "example.com/mine")...))).To(gomega.Succeed())
		letGoAtEnd(js)
		blocked := jobSetOf("dependent")
		blocker := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
			Namespace: g.namespace, Name: "blocker", Finalizers: []string{"example.com/mine"},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: jobset.GroupVersion.String(), Kind: "JobSet", Name: blocked.Name, UID: blocked.UID,
				BlockOwnerDeletion: ptr.To(true),
			}},
		}}
		gomega.Expect(admin.Create(ctx, blocker)).To(gomega.Succeed())
		letGoAtEnd(blocker)
		wl := workloadOf(ctx, all["workload"])
		gomega.Expect(mergeInto(ctx, admin, wl, "metadata",
			finalizers(append(wl.Finalizers, "example.com/mine")...))).To(gomega.Succeed())
		letGoAtEnd(wl)
		foreground := client.PropagationPolicy(metav1.DeletePropagationForeground)
		for _, tj := range all {
			gomega.Expect(user.Delete(ctx, tj, foreground)).To(gomega.Succeed())
		}
		g.waitsFor(ctx, g.submit(ctx, g.trainJob("next", "torch", 3)), 24)
		gomega.Eventually(g.used(ctx), "2m").Should(gomega.BeZero())
	})

	ginkgo.It("is decided by admins, also while its user has stopped it", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 8})
		g.runtime(ctx, "torch", "forever")
		tj := g.submit(ctx, g.trainJob("job", "torch", 1))
		gomega.Eventually(bound(ctx, tj)).Should(gomega.Equal(1))
		stop := func(value any) {
			ginkgo.GinkgoHelper()
			gomega.Expect(mergeInto(ctx, user, tj, "metadata",
				map[string]any{"annotations": map[string]any{api.StopAnnotation: value}})).To(gomega.Succeed())
		}
		gomega.Eventually(g.used(ctx)).Should(gomega.Equal(int64(8)))
		stop("true")
		gomega.Eventually(g.used(ctx)).Should(gomega.BeZero())
		active := func(value bool) {
			ginkgo.GinkgoHelper()
			gomega.Expect(mergeInto(ctx, admin, workloadOf(ctx, tj), "spec", map[string]any{"active": value})).To(
				gomega.Succeed())
		}
		active(false)
		stop(nil)
		gomega.Consistently(running(ctx, tj), "5s").Should(gomega.BeFalse(), "an admin has deactivated it")
		gomega.Expect(workload.IsActive(workloadOf(ctx, tj))).To(gomega.BeFalse())
		active(true)
		gomega.Eventually(bound(ctx, tj)).Should(gomega.Equal(1))
	})

	ginkgo.DescribeTable("doesn't depend on what its user changes after its end",
		func(ctx context.Context, change func(context.Context, *ground, *api.TrainJob)) {
			g := newGround(ctx, map[string]int64{"a100": 8})
			g.localQueue(ctx, "other", g.queue)
			g.runtime(ctx, "slow", "forever", slowly(untilEnded))
			g.runtime(ctx, "torch", "1s")
			tj := g.submit(ctx, g.trainJob("ended", "slow", 1, func(tj *api.TrainJob) { tj.Spec.ActiveDeadlineSeconds = 8 }))
			gomega.Eventually(bound(ctx, tj)).Should(gomega.Equal(1))
			next := g.submit(ctx, g.trainJob("next", "torch", 1))
			gomega.Eventually(func() bool {
				return apimeta.IsStatusConditionTrue(get(ctx, tj).Status.Conditions, trainerapi.TrainJobFailed)
			}).Should(gomega.BeTrue())
			change(ctx, g, tj)
			g.waitsFor(ctx, next, 8)
			gomega.Eventually(g.used(ctx)).Should(gomega.BeZero())
		},
		ginkgo.Entry("the queue label and suspend", func(ctx context.Context, _ *ground, tj *api.TrainJob) {
			patch := fmt.Appendf(nil, `{"metadata":{"labels":{%q:null}},"spec":{"suspend":true}}`, constants.QueueLabel)
			// Whether it is accepted is another spec's to hold.
			_ = user.Patch(ctx, tj.DeepCopy(), client.RawPatch(types.MergePatchType, patch))
		}),
		ginkgo.Entry("the queue", func(ctx context.Context, _ *ground, tj *api.TrainJob) {
			_ = mergeInto(ctx, user, tj, "metadata", map[string]any{"labels": map[string]any{constants.QueueLabel: "other"}})
		}),
		ginkgo.Entry("its deletion", func(ctx context.Context, _ *ground, tj *api.TrainJob) {
			gomega.Expect(user.Delete(ctx, tj)).To(gomega.Succeed())
		}),
	)

	ginkgo.It("isn't Kueue's resizing: no TrainJob is elastic", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 16})
		g.runtime(ctx, "torch", "forever")
		elastic := map[string]string{"kueue.x-k8s.io/elastic-job": "true"}
		unqueued := func(tj *api.TrainJob) { tj.Labels = nil }
		gomega.Expect(user.Create(ctx, g.trainJob("created", "torch", 1, unqueued, func(tj *api.TrainJob) {
			tj.Annotations = elastic
		}))).To(gomega.MatchError(gomega.ContainSubstring("elastic")))
		tj := g.trainJob("changed", "torch", 1, unqueued)
		gomega.Expect(user.Create(ctx, tj)).To(gomega.Succeed())
		// Whether each is accepted is another spec's to hold.
		_ = mergeInto(ctx, user, tj, "metadata", map[string]any{"annotations": elastic})
		_ = mergeInto(ctx, user, tj, "metadata", map[string]any{"labels": map[string]any{constants.QueueLabel: localQueue}})
		_ = mergeInto(ctx, user, tj, "spec", map[string]any{"trainer": map[string]any{"numNodes": 2}})
		gomega.Expect(user.Delete(ctx, tj)).To(gomega.Succeed())
		gomega.Eventually(g.used(ctx)).Should(gomega.BeZero())
		gomega.Eventually(func() []string { return g.list(ctx, &kueue.WorkloadList{}) }).Should(gomega.BeEmpty())
	})

	ginkgo.It("follows the one Workload that Signalbox has made", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 16})
		g.runtime(ctx, "torch", "forever")
		tj := g.submit(ctx, g.trainJob("job", "torch", 1))
		gomega.Eventually(bound(ctx, tj)).Should(gomega.Equal(1))
		own := workloadOf(ctx, tj)
		for _, name := range []string{"a-second", "zz-second"} {
			second := &kueue.Workload{
				ObjectMeta: metav1.ObjectMeta{
					Namespace: g.namespace, Name: name, OwnerReferences: own.OwnerReferences,
					Labels: own.Labels, Finalizers: own.Finalizers,
				},
				Spec: *own.Spec.DeepCopy(),
			}
			gomega.Expect(admin.Create(ctx, second)).To(gomega.Succeed())
		}
		gomega.Consistently(func() int { // it is looked at again and again, with the Workloads in any order
			look := fmt.Sprintf(`{"metadata":{"annotations":{"example.com/at":%q}}}`, time.Now())
			gomega.Expect(user.Patch(ctx, tj, client.RawPatch(types.MergePatchType, []byte(look)))).To(gomega.Succeed())
			return bound(ctx, tj)()
		}, "5s").Should(gomega.Equal(1), "it runs on")
		gomega.Expect(user.Delete(ctx, tj)).To(gomega.Succeed())
		gomega.Eventually(g.used(ctx)).Should(gomega.BeZero())
	})

	ginkgo.It("doesn't count pods of nobody", func(ctx context.Context) {
		low, high := makePriorities(ctx)
		g := newGround(ctx, map[string]int64{"a100": 8})
		g.runtime(ctx, "torch", "forever")
		tj := g.submit(ctx, g.trainJob("victim", "torch", 1, priority(low)))
		gomega.Eventually(bound(ctx, tj)).Should(gomega.Equal(1))
		real := podsOf(ctx, tj)[0]
		for name, uid := range map[string]types.UID{"no-job": "never-was", "no-owner": ""} {
			forged := &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{
					Namespace: g.namespace, Name: name, Labels: real.Labels, Annotations: real.Annotations,
				},
				Spec: corev1.PodSpec{
					NodeName: real.Spec.NodeName, TerminationGracePeriodSeconds: ptr.To[int64](100_000_000),
					Containers: []corev1.Container{{Name: "c", Image: "example.com/none:1", Resources: corev1.ResourceRequirements{
						Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1m")},
					}}},
				},
			}
			if uid != "" {
				forged.OwnerReferences = []metav1.OwnerReference{*metav1.GetControllerOf(&real)}
				forged.OwnerReferences[0].UID, forged.OwnerReferences[0].Name = uid, "never-was"
			}
			gomega.Expect(admin.Create(ctx, forged)).To(gomega.Succeed())
			ginkgo.DeferCleanup(func(ctx context.Context) {
				gomega.Expect(ignoreNotFound(admin.Delete(ctx, forged, client.GracePeriodSeconds(0)))).To(gomega.Succeed())
			})
		}
		urgent := g.submit(ctx, g.trainJob("urgent", "torch", 1, priority(high)))
		gomega.Eventually(bound(ctx, urgent)).Should(gomega.Equal(1))
	})
})
