package e2e

import (
	"context"
	"encoding/json"
	"fmt"

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

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

var _ = ginkgo.Describe("Quota follows the pods", func() {
	for name, options := range map[string][]client.DeleteOption{
		"in the background": {client.PropagationPolicy(metav1.DeletePropagationBackground)},
		"in the foreground": {client.PropagationPolicy(metav1.DeletePropagationForeground)},
	} {
		ginkgo.It("of a TrainJob that is deleted "+name, func(ctx context.Context) {
			g := newGround(ctx, map[string]int64{"a100": 8})
			g.runtime(ctx, "slow", "forever", slowly(untilEnded))
			g.runtime(ctx, "torch", "1s")
			first := g.submit(ctx, g.trainJob("first", "slow", 1))
			gomega.Eventually(bound(ctx, first)).Should(gomega.Equal(1))
			gomega.Expect(user.Delete(ctx, first, options...)).To(gomega.Succeed())
			g.waitsFor(ctx, g.submit(ctx, g.trainJob("next", "torch", 1)), 8)
			gomega.Eventually(g.used(ctx)).Should(gomega.BeZero())
		})
	}

	ginkgo.It("of a TrainJob that a user's finalizer keeps", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 8})
		g.runtime(ctx, "slow", "forever", slowly(untilEnded))
		g.runtime(ctx, "torch", "1s")
		first := g.submit(ctx, g.trainJob("first", "slow", 1, func(tj *api.TrainJob) {
			tj.Finalizers = []string{"example.com/mine"}
		}))
		gomega.Eventually(bound(ctx, first)).Should(gomega.Equal(1))
		gomega.Expect(user.Delete(ctx, first)).To(gomega.Succeed())
		ginkgo.DeferCleanup(func(ctx context.Context) {
			gomega.Expect(ignoreNotFound(admin.Patch(ctx, first,
				client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))))).To(gomega.Succeed())
		})
		g.waitsFor(ctx, g.submit(ctx, g.trainJob("next", "torch", 1)), 8)
	})

	ginkgo.It("of a deleted TrainJob that a user's finalizer keeps, and that its user starts", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 8})
		g.runtime(ctx, "torch", "forever")
		holder := g.submit(ctx, g.trainJob("holder", "torch", 1))
		gomega.Eventually(bound(ctx, holder)).Should(gomega.Equal(1))
		waits := g.submit(ctx, g.trainJob("waits", "torch", 1, func(tj *api.TrainJob) {
			tj.Finalizers = []string{"example.com/mine"}
		}))
		ginkgo.DeferCleanup(func(ctx context.Context) {
			gomega.Expect(ignoreNotFound(admin.Patch(ctx, waits,
				client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))))).To(gomega.Succeed())
		})
		for _, tj := range []*api.TrainJob{holder, waits} {
			gomega.Expect(user.Delete(ctx, tj)).To(gomega.Succeed())
		}
		gomega.Eventually(func() bool { return get(ctx, waits).DeletionTimestamp.IsZero() }).Should(gomega.BeFalse())
		start := client.RawPatch(types.MergePatchType, []byte(`{"spec":{"suspend":false}}`))
		gomega.Expect(user.Patch(ctx, waits.DeepCopy(), start)).To(gomega.Succeed())
		gomega.Expect(ptr.Deref(get(ctx, waits).Spec.Suspend, false)).To(gomega.BeTrue(), "only an admission starts it")
		gomega.Consistently(bound(ctx, waits), "3s").Should(gomega.BeZero())
	})

	ginkgo.It("of a TrainJob that is applied as if it were being deleted", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 8})
		g.runtime(ctx, "torch", "forever")
		holder := g.submit(ctx, g.trainJob("holder", "torch", 1))
		gomega.Eventually(bound(ctx, holder)).Should(gomega.Equal(1))
		born := g.trainJob("born", "torch", 1, func(tj *api.TrainJob) {
			tj.TypeMeta = metav1.TypeMeta{APIVersion: trainerapi.GroupVersion.String(), Kind: trainerapi.TrainJobKind}
			tj.Spec.Suspend = ptr.To(false)
			tj.Finalizers = []string{"example.com/mine"}
			tj.DeletionTimestamp = ptr.To(metav1.Now())
		})
		ginkgo.DeferCleanup(func(ctx context.Context) {
			gomega.Expect(ignoreNotFound(admin.Patch(ctx, born,
				client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))))).To(gomega.Succeed())
		})
		applied, err := json.Marshal(born)
		gomega.Expect(err).NotTo(gomega.HaveOccurred())
		gomega.Expect(user.Patch(ctx, born, client.RawPatch(types.ApplyPatchType, applied),
			client.FieldOwner("kubectl"))).To(gomega.Succeed())
		gomega.Expect(ptr.Deref(born.Spec.Suspend, false)).To(gomega.BeTrue(), "only an admission starts it")
		gomega.Consistently(bound(ctx, born), "3s").Should(gomega.BeZero())
	})

	ginkgo.It("of a TrainJob that is created again by the same name", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 16})
		g.runtime(ctx, "slow", "forever", slowly(untilEnded))
		g.runtime(ctx, "torch", "1s")
		first := g.submit(ctx, g.trainJob("same", "slow", 2))
		gomega.Eventually(bound(ctx, first)).Should(gomega.Equal(2))
		gomega.Expect(user.Delete(ctx, first)).To(gomega.Succeed())
		var again *api.TrainJob
		gomega.Eventually(func() error {
			again = g.trainJob("same", "torch", 1)
			return user.Create(ctx, again)
		}).Should(gomega.Succeed())
		g.waitsFor(ctx, g.submit(ctx, g.trainJob("next", "torch", 1)), 16)
		gomega.Eventually(complete(ctx, again)).Should(gomega.BeTrue())
		gomega.Eventually(g.used(ctx)).Should(gomega.BeZero())
	})

	ginkgo.It("of a TrainJob that is created again by the same name and queued by nobody", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 8})
		g.runtime(ctx, "slow", "forever", slowly(untilEnded))
		g.runtime(ctx, "torch", "1s")
		first := g.submit(ctx, g.trainJob("same", "slow", 1))
		gomega.Eventually(bound(ctx, first)).Should(gomega.Equal(1))
		gomega.Expect(user.Delete(ctx, first)).To(gomega.Succeed())
		gomega.Eventually(func() error {
			return user.Create(ctx, g.trainJob("same", "torch", 1, func(tj *api.TrainJob) { tj.Labels = nil }))
		}).Should(gomega.Succeed())
		g.waitsFor(ctx, g.submit(ctx, g.trainJob("next", "torch", 1)), 8)
		gomega.Eventually(g.used(ctx)).Should(gomega.BeZero())
	})

	ginkgo.It("of a TrainJob that exceeds its deadline", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 8})
		g.runtime(ctx, "slow", "forever", slowly(untilEnded))
		g.runtime(ctx, "torch", "1s")
		first := g.submit(ctx, g.trainJob("first", "slow", 1, func(tj *api.TrainJob) { tj.Spec.ActiveDeadlineSeconds = 8 }))
		gomega.Eventually(bound(ctx, first)).Should(gomega.Equal(1))
		next := g.submit(ctx, g.trainJob("next", "torch", 1))
		gomega.Eventually(func() bool {
			return apimeta.IsStatusConditionTrue(get(ctx, first).Status.Conditions, trainerapi.TrainJobFailed)
		}).Should(gomega.BeTrue())
		g.waitsFor(ctx, next, 8)
		gomega.Eventually(condition(ctx, first, kueue.WorkloadFinished)).Should(gomega.Equal("True/Failed"))
	})

	ginkgo.It("of a TrainJob whose success policy ends it while other pods run", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 16})
		g.runtime(ctx, "slow", "forever", slowly(untilEnded), func(rt *api.TrainingRuntime) {
			spec := &rt.Spec.Template.Spec
			first := step("first", "", "2s")
			spec.ReplicatedJobs = append(spec.ReplicatedJobs, first)
			spec.SuccessPolicy = &jobset.SuccessPolicy{Operator: jobset.OperatorAll, TargetReplicatedJobs: []string{"first"}}
		})
		g.runtime(ctx, "torch", "1s")
		first := g.submit(ctx, g.trainJob("first", "slow", 2))
		gomega.Eventually(bound(ctx, first)).Should(gomega.Equal(3))
		next := g.submit(ctx, g.trainJob("next", "torch", 1))
		gomega.Eventually(complete(ctx, first)).Should(gomega.BeTrue())
		g.waitsFor(ctx, next, 16)
		gomega.Eventually(condition(ctx, first, kueue.WorkloadFinished)).Should(gomega.Equal("True/Succeeded"))
	})

	ginkgo.It("of a TrainJob whose Workload is deactivated", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 8})
		g.runtime(ctx, "slow", "forever", slowly(untilEnded))
		g.runtime(ctx, "torch", "1s")
		first := g.submit(ctx, g.trainJob("first", "slow", 1))
		gomega.Eventually(bound(ctx, first)).Should(gomega.Equal(1))
		active := func(value bool) {
			ginkgo.GinkgoHelper()
			gomega.Expect(admin.Patch(ctx, workloadOf(ctx, first),
				client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"active":%t}}`, value)))).To(gomega.Succeed())
		}
		active(false)
		g.waitsFor(ctx, g.submit(ctx, g.trainJob("next", "torch", 1)), 8)
		gomega.Eventually(func() bool { return ptr.Deref(workloadOf(ctx, first).Spec.Active, true) }).Should(gomega.BeFalse())
		gomega.Eventually(condition(ctx, first, kueue.WorkloadEvicted)).Should(gomega.HavePrefix("True/Deactivated"))
		gomega.Consistently(running(ctx, first)).Should(gomega.BeFalse())
		active(true)
		gomega.Eventually(bound(ctx, first)).Should(gomega.Equal(1), "it is active again")
	})

	ginkgo.It("and can't be left behind: nothing of a TrainJob is orphaned", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 8})
		g.runtime(ctx, "torch", "forever")
		editor := g.editor(ctx)
		tj := g.submit(ctx, g.trainJob("first", "torch", 1))
		gomega.Eventually(bound(ctx, tj)).Should(gomega.Equal(1))
		js := &jobset.JobSet{ObjectMeta: metav1.ObjectMeta{Namespace: g.namespace, Name: tj.Name}}
		orphan := client.PropagationPolicy(metav1.DeletePropagationOrphan)
		gomega.Expect(user.Delete(ctx, tj, orphan)).To(gomega.MatchError(gomega.ContainSubstring("--cascade=orphan")))
		gomega.Expect(editor.Patch(ctx, tj.DeepCopy(),
			client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":["orphan"]}}`)))).To(
			gomega.MatchError(gomega.ContainSubstring("metadata.finalizers")))
		gomega.Expect(editor.Delete(ctx, js, orphan)).To(gomega.MatchError(
			gomega.ContainSubstring("created and deleted with it")))
		gomega.Expect(editor.Delete(ctx, js)).To(gomega.MatchError(gomega.ContainSubstring("created and deleted with it")))
		gomega.Eventually(g.used(ctx)).Should(gomega.Equal(int64(8)))
		gomega.Expect(podsOf(ctx, tj)).To(gomega.HaveLen(1))
	})

	ginkgo.It("of an initializer that may run again", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 16})
		g.runtime(ctx, "staged", "3s", func(rt *api.TrainingRuntime) {
			spec := &rt.Spec.Template.Spec
			init := step("dataset-initializer", "dataset-initializer", "2s")
			init.Template.Spec.Template.Spec.Containers[0].Resources.Requests[gpu] = resource.MustParse("8")
			init.Template.Spec.Template.Spec.Containers[0].Resources.Limits = corev1.ResourceList{gpu: resource.MustParse("8")}
			node := &spec.ReplicatedJobs[0]
			node.DependsOn = []jobset.DependsOn{{Name: "dataset-initializer", Status: jobset.DependencyComplete}}
			node.Template.Spec.BackoffLimit = ptr.To[int32](0)
			node.Template.Spec.Template.Annotations[fails] = "true"
			spec.ReplicatedJobs = []jobset.ReplicatedJob{init, *node}
			spec.FailurePolicy = &jobset.FailurePolicy{MaxRestarts: 1}
		})
		g.runtime(ctx, "torch", "forever")
		staged := g.submit(ctx, g.trainJob("staged", "staged", 1))
		gomega.Eventually(bound(ctx, staged)).Should(gomega.Equal(1), "its JobSet is there then")
		next := g.submit(ctx, g.trainJob("next", "torch", 1))
		failed := func() bool {
			gomega.Expect(g.inUse(ctx)()).To(gomega.BeNumerically("<=", 16))
			return apimeta.IsStatusConditionTrue(get(ctx, staged).Status.Conditions, trainerapi.TrainJobFailed)
		}
		restarted := func() int32 {
			gomega.Expect(flavor(ctx, next)()).To(gomega.BeEmpty(), "the initializer may run again")
			js := &jobset.JobSet{ObjectMeta: metav1.ObjectMeta{Namespace: g.namespace, Name: staged.Name}}
			return get(ctx, js).Status.Restarts
		}
		gomega.Eventually(restarted).Should(gomega.Equal(int32(1)))
		gomega.Eventually(failed).Should(gomega.BeTrue())
		gomega.Eventually(bound(ctx, next)).Should(gomega.Equal(1))
	})
})
