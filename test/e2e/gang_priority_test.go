package e2e

import (
	"context"
	"fmt"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// podPriority makes a PriorityClass of pods for the running spec.
func podPriority(ctx context.Context, value int32) string {
	ginkgo.GinkgoHelper()
	class := &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{GenerateName: "pods-"}, Value: value}
	gomega.Expect(admin.Create(ctx, class)).To(gomega.Succeed())
	ginkgo.DeferCleanup(func(ctx context.Context) { gomega.Expect(admin.Delete(ctx, class)).To(gomega.Succeed()) })
	return class.Name
}

// withPriority gives the pods of a runtime's first ReplicatedJob a PriorityClass.
func withPriority(class string) func(*api.TrainingRuntime) {
	return func(rt *api.TrainingRuntime) {
		rt.Spec.Template.Spec.ReplicatedJobs[0].Template.Spec.Template.Spec.PriorityClassName = class
	}
}

func gangPrioritySpecs() {
	ginkgo.It("are placed with the PriorityClass of their pods", func(ctx context.Context) {
		class := podPriority(ctx, 500)
		g := newGround(ctx, map[string]int64{"a100": 64})
		g.runtime(ctx, "torch", "1s", withPriority(class))
		tj := g.submit(ctx, g.trainJob("urgent", "torch", 3, gangs(api.GangRequired)))
		gomega.Eventually(complete(ctx, tj)).Should(gomega.BeTrue())
		gomega.Eventually(g.leftovers(ctx)).Should(gomega.BeEmpty())
	})

	if !scheduling.wholeGroups {
		return
	}

	ginkgo.It("of pods that differ in their PriorityClass are refused before they are queued", func(ctx context.Context) {
		class := podPriority(ctx, 500)
		g := newGround(ctx, map[string]int64{"a100": 64})
		g.runtime(ctx, "mixed", "1s", withPriority(class), func(rt *api.TrainingRuntime) {
			jobs := &rt.Spec.Template.Spec.ReplicatedJobs
			*jobs = append(*jobs, step("other", "", "1s"))
		})
		required := g.submit(ctx, g.trainJob("required", "mixed", 1, gangs(api.GangRequired)))
		gomega.Eventually(func() string { return told(ctx, required, api.ConditionBlocked) }).Should(gomega.And(
			gomega.HavePrefix("True InvalidGangScheduling: "), gomega.ContainSubstring(
				`replicatedJobs[other].template.spec.template.spec.priorityClassName is "", but that of replicatedJobs[node], `+
					`which starts with it, is "`+class+`"`)))
		gomega.Expect(workloadOf(ctx, required)).To(gomega.BeNil(), "it holds no quota")
		preferred := g.submit(ctx, g.trainJob("preferred", "mixed", 1, gangs(api.GangPreferred)))
		gomega.Eventually(complete(ctx, preferred)).Should(gomega.BeTrue())
	})

	ginkgo.It("are preempted as a whole by a pod of higher priority, say so, "+
		"and are placed again", func(ctx context.Context) {
		low, high := podPriority(ctx, 100), podPriority(ctx, 1000)
		g := newGround(ctx, map[string]int64{"a100": 64})
		g.runtime(ctx, "torch", "forever", withPriority(low), func(rt *api.TrainingRuntime) {
			// Else the Job counts each preempted pod as a failure, and has more of them than its backoffLimit.
			job := &rt.Spec.Template.Spec.ReplicatedJobs[0].Template.Spec
			job.Template.Spec.RestartPolicy = corev1.RestartPolicyNever
			job.PodFailurePolicy = &batchv1.PodFailurePolicy{Rules: []batchv1.PodFailurePolicyRule{{
				Action: batchv1.PodFailurePolicyActionIgnore,
				OnPodConditions: []batchv1.PodFailurePolicyOnPodConditionsPattern{{
					Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue}},
			}}}
		})
		// Two nodes, because the Job controller waits 10 s, doubled with each pod that was preempted, before it makes others.
		const size = 2
		takeNode := func(name string) *corev1.Pod {
			pod := g.member(name, nil)
			pod.Spec.PriorityClassName = high
			pod.Spec.NodeSelector = map[string]string{"gpu": "a100"}
			pod.Spec.Containers[0].Resources.Limits = corev1.ResourceList{gpu: resource.MustParse("8")}
			gomega.Expect(admin.Create(ctx, pod)).To(gomega.Succeed())
			ginkgo.DeferCleanup(func(ctx context.Context) {
				err := admin.Delete(ctx, pod, client.GracePeriodSeconds(0))
				gomega.Expect(client.IgnoreNotFound(err)).To(gomega.Succeed())
			})
			gomega.Eventually(func() string { return get(ctx, pod).Spec.NodeName }).ShouldNot(gomega.BeEmpty())
			return pod
		}
		for n := range nodesOfKind - size {
			takeNode(fmt.Sprintf("other-%d", n))
		}
		tj := g.submit(ctx, g.trainJob("whole", "torch", size, gangs(api.GangRequired)))
		gomega.Eventually(bound(ctx, tj)).Should(gomega.Equal(size))
		first := map[string]bool{}
		for _, name := range podsNamed(ctx, tj, "node") {
			first[name] = true
		}
		urgent := takeNode("urgent")
		gomega.Eventually(bound(ctx, tj)).Should(gomega.BeZero(), "what would be left of it holds no GPU")
		gomega.Eventually(func() string { return told(ctx, tj, api.ConditionGangScheduled) }).Should(gomega.Or(
			gomega.HavePrefix("False PreemptionByScheduler: gang node (2 pods) "),
			gomega.HavePrefix("False PodsMissing: gang node (2 pods) was placed, and 2 of its pods are gone")))
		gomega.Eventually(func() string { return told(ctx, tj, api.ConditionGangScheduled) }).Should(gomega.And(
			gomega.HavePrefix("False Unschedulable: gang node (2 pods) was placed, and new pods of it can't be, since 20"),
			gomega.ContainSubstring("nodes are available")))
		gomega.Expect(bound(ctx, tj)()).To(gomega.BeZero())
		gomega.Expect(admin.Delete(ctx, urgent, client.GracePeriodSeconds(0))).To(gomega.Succeed())
		gomega.Eventually(bound(ctx, tj)).Should(gomega.Equal(size))
		gomega.Eventually(func() string { return told(ctx, tj, api.ConditionGangScheduled) }).Should(
			gomega.Equal("True Scheduled: gang node (2 pods) is placed"))
		for _, name := range podsNamed(ctx, tj, "node") {
			gomega.Expect(first).NotTo(gomega.HaveKey(name), "all pods are new")
		}
	})
}
