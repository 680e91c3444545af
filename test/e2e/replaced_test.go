package e2e

import (
	"context"
	"fmt"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/store"
)

func init() {
	if cluster.bundled() {
		ginkgo.Describe("A TrainJob has never more pods than were admitted", replacedSpecs)
	}
}

// replacesEnded has the Job controller replace a pod when it has ended.
func replacesEnded(rt *api.TrainingRuntime) {
	rt.Spec.Template.Spec.ReplicatedJobs[0].Template.Spec.PodReplacementPolicy = ptr.To(batchv1.Failed)
}

// endsSlowly lets pods take their time to terminate, and asks for their replacement meanwhile, which the Job controller
// makes ten seconds after it has counted a failure.
func endsSlowly(rt *api.TrainingRuntime) {
	job := &rt.Spec.Template.Spec.ReplicatedJobs[0].Template.Spec
	job.PodReplacementPolicy = ptr.To(batchv1.TerminatingOrFailed)
	job.Template.Annotations[stopAfter] = untilEnded
	job.Template.Spec.TerminationGracePeriodSeconds = ptr.To[int64](60)
}

// alive returns the names of a TrainJob's pods that haven't ended, and how many of them terminate.
func alive(ctx context.Context, tj *api.TrainJob) (names []string, terminating int) {
	ginkgo.GinkgoHelper()
	for _, p := range podsOf(ctx, tj) {
		if store.PodEnded(&p) {
			continue
		}
		names = append(names, p.Name)
		if !p.DeletionTimestamp.IsZero() {
			terminating++
		}
	}
	return names, terminating
}

func replacedSpecs() {
	// small is a TrainJob of pods with a GPU each, so that there is room for more of them.
	small := func(ctx context.Context, pods int32, change ...func(*api.TrainingRuntime)) *api.TrainJob {
		ginkgo.GinkgoHelper()
		g := newGround(ctx, map[string]int64{"a100": 8})
		g.runtime(ctx, "slow", "forever", append(change, endsSlowly)...)
		tj := g.submit(ctx, g.trainJob("slow", "slow", pods, requests(gpu, "1")))
		gomega.Eventually(bound(ctx, tj)).Should(gomega.BeEquivalentTo(pods))
		return tj
	}
	// replaced holds that a pod is replaced when it has ended, and not before.
	replaced := func(ctx context.Context, tj *api.TrainJob, pods int) {
		ginkgo.GinkgoHelper()
		before, _ := alive(ctx, tj)
		gomega.Eventually(func() int { _, n := alive(ctx, tj); return n }).Should(gomega.BeNumerically(">", 0))
		gomega.Consistently(func() []string { names, _ := alive(ctx, tj); return names }, "14s", "100ms").Should(
			gomega.And(gomega.HaveLen(pods), gomega.ConsistOf(before)), "it terminates, and is on quota")
		g := &ground{namespace: tj.Namespace}
		gomega.Eventually(func(e gomega.Gomega) {
			g.endTerminating(ctx)
			names, terminating := alive(ctx, tj)
			e.Expect(names).To(gomega.HaveLen(pods))
			e.Expect(names).NotTo(gomega.ConsistOf(before))
			e.Expect(terminating).To(gomega.Or(gomega.BeZero(), gomega.Equal(pods)), "it may be evicted again")
		}).Should(gomega.Succeed())
	}

	ginkgo.It("when a taint that they tolerate for a second evicts them", func(ctx context.Context) {
		node := makeNode(ctx, "a100", 99)
		ginkgo.DeferCleanup(func(ctx context.Context) { gomega.Expect(admin.Delete(ctx, node)).To(gomega.Succeed()) })
		taint := []byte(`[{"op": "add", "path": "/spec/taints/-",
			"value": {"key": "evicts", "value": "true", "effect": "NoExecute"}}]`)
		gomega.Expect(admin.Patch(ctx, node, client.RawPatch(types.JSONPatchType, taint))).To(gomega.Succeed())
		tj := small(ctx, 1, func(rt *api.TrainingRuntime) {
			podSpec(rt).NodeSelector = map[string]string{corev1.LabelHostname: node.Name}
			podSpec(rt).Tolerations = append(podSpec(rt).Tolerations, corev1.Toleration{
				Key: "evicts", Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute,
				TolerationSeconds: ptr.To[int64](1)})
		})
		replaced(ctx, tj, 1)
	})

	ginkgo.It("when a pod's completion index changes", func(ctx context.Context) {
		tj := small(ctx, 2)
		for _, p := range podsOf(ctx, tj) {
			if p.Annotations[batchv1.JobCompletionIndexAnnotation] == "1" {
				index := fmt.Sprintf(`{"metadata": {"annotations": {%q: "0"}}}`, batchv1.JobCompletionIndexAnnotation)
				gomega.Expect(admin.Patch(ctx, &p, client.RawPatch(types.MergePatchType, []byte(index)))).To(gomega.Succeed())
			}
		}
		replaced(ctx, tj, 2)
	})

	ginkgo.It("when a pod is drained", func(ctx context.Context) {
		tj := small(ctx, 2)
		pod := podsOf(ctx, tj)[0]
		gomega.Expect(admin.SubResource("eviction").Create(ctx, &pod, &policyv1.Eviction{
			ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name}})).To(gomega.Succeed())
		replaced(ctx, tj, 2)
	})

	ginkgo.It("unless it has no queue", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 8})
		g.runtime(ctx, "slow", "forever", endsSlowly, func(rt *api.TrainingRuntime) {
			podSpec(rt).Tolerations = append(podSpec(rt).Tolerations,
				corev1.Toleration{Key: "gpu", Operator: corev1.TolerationOpExists})
		})
		tj := g.submit(ctx, g.trainJob("free", "slow", 1, requests(gpu, "1"), func(tj *api.TrainJob) {
			tj.Labels, tj.Spec.Suspend = nil, nil
		}))
		gomega.Eventually(bound(ctx, tj)).Should(gomega.Equal(1))
		pod := podsOf(ctx, tj)[0]
		gomega.Expect(admin.Delete(ctx, &pod)).To(gomega.Succeed())
		gomega.Eventually(func() []string { names, _ := alive(ctx, tj); return names }).Should(gomega.HaveLen(2), "as before")
	})
}
