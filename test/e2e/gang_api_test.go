package e2e

import (
	"context"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// What docs/gang-scheduling.md says of Kubernetes itself, on the API server and the scheduler that it is said of.
func init() {
	if cluster.bundled() && servesPodGroups {
		ginkgo.Describe("The PodGroup API", gangAPISpecs)
	}
}

// member returns a pod that names a PodGroup; nil names none.
func (g *ground) member(name string, group *corev1.PodSchedulingGroup) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: g.namespace, Name: name, Annotations: map[string]string{runFor: "forever"}},
		Spec: corev1.PodSpec{
			SchedulingGroup: group, Containers: []corev1.Container{{Name: "c", Image: "example.com/pause:1"}},
			Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}}, AutomountServiceAccountToken: ptr.To(false),
		},
	}
}

func gangAPISpecs() {
	nodeOf := func(ctx context.Context, pod *corev1.Pod) func() string {
		return func() string { return get(ctx, pod).Spec.NodeName }
	}
	phaseOf := func(ctx context.Context, pod *corev1.Pod) func() corev1.PodPhase {
		return func() corev1.PodPhase { return get(ctx, pod).Status.Phase }
	}
	remove := func(ctx context.Context, pods ...*corev1.Pod) {
		for _, pod := range pods {
			gomega.Expect(admin.Delete(ctx, pod, client.GracePeriodSeconds(0))).To(gomega.Succeed())
		}
	}

	ginkgo.It("refuses an empty schedulingGroup, and takes a pod without one", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 8})
		gomega.Expect(admin.Create(ctx, g.member("empty", &corev1.PodSchedulingGroup{}))).To(gomega.MatchError(
			gomega.ContainSubstring("spec.schedulingGroup.podGroupName: Invalid value: null: " +
				"must specify one of: `podGroupName`")))
		alone := g.member("alone", nil)
		gomega.Expect(admin.Create(ctx, alone)).To(gomega.Succeed())
		gomega.Eventually(nodeOf(ctx, alone)).ShouldNot(gomega.BeEmpty())
		remove(ctx, alone)
	})

	ginkgo.It("lets pods wait for a PodGroup that comes late, and needs no Workload for it", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 8})
		named := &corev1.PodSchedulingGroup{PodGroupName: ptr.To("late")}
		first, second := g.member("first", named), g.member("second", named)
		gomega.Expect(admin.Create(ctx, first)).To(gomega.Succeed())
		gomega.Expect(admin.Create(ctx, second)).To(gomega.Succeed())
		gomega.Consistently(nodeOf(ctx, first)).Should(gomega.BeEmpty())
		late := scheduling.group(g.namespace, "late", 2)
		gomega.Expect(admin.Create(ctx, late)).To(gomega.Succeed())
		gomega.Eventually(nodeOf(ctx, first)).ShouldNot(gomega.BeEmpty())
		gomega.Eventually(nodeOf(ctx, second)).ShouldNot(gomega.BeEmpty())

		gomega.Expect(get(ctx, late).GetFinalizers()).NotTo(gomega.BeEmpty(), "the API server protects it")
		gomega.Expect(admin.Delete(ctx, late)).To(gomega.Succeed())
		gomega.Consistently(func() error { return admin.Get(ctx, client.ObjectKeyFromObject(late), late) }).Should(
			gomega.Succeed(), "as long as its pods are there")
		remove(ctx, first, second)
		gomega.Eventually(func() error {
			return ignoreNotFound(admin.Get(ctx, client.ObjectKeyFromObject(late), late))
		}).Should(gomega.Succeed())
		gomega.Eventually(g.leftovers(ctx)).Should(gomega.BeEmpty())
	})

	ginkgo.It("refuses a PodGroup whose Workload isn't there, until Kubernetes 1.37, "+
		"and a change of what it was made with", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 8})
		pg := scheduling.group(g.namespace, "orphan", 2)
		for value, path := range map[string][]string{"none": scheduling.workload, "node": scheduling.template} {
			gomega.Expect(unstructured.SetNestedField(pg.Object, value, path...)).To(gomega.Succeed())
		}
		orphaned := gomega.MatchError(gomega.ContainSubstring(`Workload "none" not found`))
		if scheduling.takesOrphans {
			orphaned = gomega.Succeed()
		}
		gomega.Expect(admin.Create(ctx, pg)).To(orphaned)
		fixed := scheduling.group(g.namespace, "fixed", 2)
		gomega.Expect(admin.Create(ctx, fixed)).To(gomega.Succeed())
		change := func(value any, path ...string) error {
			changed := get(ctx, fixed.DeepCopy())
			gomega.Expect(unstructured.SetNestedField(changed.Object, value, path...)).To(gomega.Succeed())
			return admin.Update(ctx, changed)
		}
		refused := gomega.MatchError(gomega.ContainSubstring("immutable"))
		if scheduling.lowersMinCount {
			gomega.Expect(change("other", "spec", "priorityClassName")).To(refused)
			refused = gomega.Succeed()
		}
		gomega.Expect(change(int64(1), "spec", "schedulingPolicy", "gang", "minCount")).To(refused)
	})

	ginkgo.It("does not count a pod that has succeeded: "+
		"one that comes for a failed one waits for the rest for ever", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 8})
		gomega.Expect(admin.Create(ctx, scheduling.group(g.namespace, "two", 2))).To(gomega.Succeed())
		named := &corev1.PodSchedulingGroup{PodGroupName: ptr.To("two")}
		first, second, third := g.member("first", named), g.member("second", named), g.member("third", named)
		gomega.Expect(admin.Create(ctx, first)).To(gomega.Succeed())
		gomega.Expect(admin.Create(ctx, second)).To(gomega.Succeed())
		// What runs them must have made them Running before they end here: its patch of a pod that it still took for Pending
		// would make an ended pod run again, and the scheduler count it.
		for _, pod := range []*corev1.Pod{first, second} {
			gomega.Eventually(phaseOf(ctx, pod)).Should(gomega.Equal(corev1.PodRunning))
		}
		for phase, pod := range map[corev1.PodPhase]*corev1.Pod{corev1.PodSucceeded: first, corev1.PodFailed: second} {
			gomega.Eventually(func() error {
				get(ctx, pod).Status.Phase = phase
				return admin.Status().Update(ctx, pod)
			}).Should(gomega.Succeed())
		}
		gomega.Expect(admin.Create(ctx, third)).To(gomega.Succeed())
		gomega.Consistently(nodeOf(ctx, third), "5s").Should(gomega.BeEmpty())
		gomega.Expect(phaseOf(ctx, first)()).To(gomega.Equal(corev1.PodSucceeded))
		gomega.Expect(phaseOf(ctx, second)()).To(gomega.Equal(corev1.PodFailed))
		remove(ctx, first, second, third)
	})
}
