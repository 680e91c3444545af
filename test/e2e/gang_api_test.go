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
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
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

func gangConfigSpecs() {
	ginkgo.It("are made for TrainJobs that don't say, and not for one that says off", func(ctx context.Context) {
		cluster.configure(func(map[string]any) {}, func(c map[string]any) {
			c["trainer"].(map[string]any)["gangScheduling"] = map[string]any{"mode": "preferred"}
		})
		g := newGround(ctx, map[string]int64{"a100": 64})
		g.runtime(ctx, "torch", "forever")
		says, off := g.submit(ctx, g.trainJob("silent", "torch", 2)),
			g.submit(ctx, g.trainJob("off", "torch", 2, gangs(api.GangOff)))
		gomega.Eventually(g.boundOf(ctx, "")).Should(gomega.Equal(4))
		gomega.Expect(podGroups(ctx, says)).To(gomega.ConsistOf("node=2"))
		gomega.Expect(podGroups(ctx, off)).To(gomega.BeEmpty())
		gomega.Eventually(cluster.metrics).Should(gomega.MatchRegexp(`signalbox_gang_wait_seconds_count [1-9]`))
	})
}

func gangsUnavailableSpecs() {
	ginkgo.It("are refused where they are required, with what to upgrade, "+
		"and done without where they are preferred", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 64})
		g.runtime(ctx, "torch", "1s")
		what := "the API server doesn't serve Workloads and PodGroups"
		if servesPodGroups {
			what = "upgrade JobSet to v0.12 or later"
		}
		required := g.submit(ctx, g.trainJob("required", "torch", 1, gangs(api.GangRequired)))
		gomega.Eventually(func() string { return told(ctx, required, api.ConditionBlocked) }).Should(gomega.And(
			gomega.HavePrefix("True GangSchedulingUnavailable: "), gomega.ContainSubstring(what)))
		preferred := g.submit(ctx, g.trainJob("preferred", "torch", 1, gangs(api.GangPreferred)))
		gomega.Eventually(complete(ctx, preferred)).Should(gomega.BeTrue())
		gomega.Eventually(eventsOf(ctx, preferred)).Should(gomega.ContainElement(gomega.And(
			gomega.HavePrefix("GangSchedulingSkipped: Its pods are placed one by one: "), gomega.ContainSubstring(what))))
		gomega.Expect(running(ctx, required)()).To(gomega.BeFalse())
	})
}

func noGangSpecs() {
	ginkgo.It("are refused where they are required, and done without where they are preferred", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 64})
		g.runtime(ctx, "torch", "1s")
		g.runtime(ctx, "ganged", "1s", func(rt *api.TrainingRuntime) {
			rt.Annotations = map[string]string{api.GangModeAnnotation: string(api.GangRequired)}
		})
		const why = "but the JobSets of an installed Kubeflow Trainer are not Signalbox's to build"
		required, byRuntime := g.submit(ctx, g.trainJob("required", "torch", 1, gangs(api.GangRequired))),
			g.submit(ctx, g.trainJob("by-runtime", "ganged", 1))
		gomega.Eventually(func() string { return told(ctx, required, api.ConditionBlocked) }).Should(gomega.And(
			gomega.HavePrefix("True GangSchedulingUnavailable: gang scheduling is required "+
				"(metadata.annotations[signalbox.dev/gang-scheduling])"),
			gomega.ContainSubstring(why)))
		gomega.Eventually(func() string { return told(ctx, byRuntime, api.ConditionBlocked) }).Should(gomega.And(
			gomega.HavePrefix("True GangSchedulingUnavailable: gang scheduling is required "+
				"(runtime ganged.metadata.annotations"),
			gomega.ContainSubstring(why)))
		preferred := g.submit(ctx, g.trainJob("preferred", "torch", 1, gangs(api.GangPreferred)))
		gomega.Eventually(complete(ctx, preferred)).Should(gomega.BeTrue())
		gomega.Expect(running(ctx, required)()).To(gomega.BeFalse())
	})
}

// gangRefusalSpecs are of gangs that are refused, or skipped where they are preferred.
func gangRefusalSpecs() {
	ginkgo.It("say what they refuse: with the path, the value and the way out", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 64})
		rt := g.runtime(ctx, "grouped", "forever", func(rt *api.TrainingRuntime) {
			other := step("other", "", "forever")
			other.Template.Spec.Template.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{PodGroupName: ptr.To("mine")}
			rt.Spec.Template.Spec.ReplicatedJobs = append(rt.Spec.Template.Spec.ReplicatedJobs, other)
		})
		err := user.Create(ctx, g.trainJob("wrong", "grouped", 1, gangs("always")))
		gomega.Expect(err).To(gomega.MatchError(gomega.ContainSubstring(`metadata.annotations[signalbox.dev/gang-scheduling]: Unsupported value: "always": supported values: "required", "preferred", "off"`)))
		get(ctx, rt)
		metav1.SetMetaDataAnnotation(&rt.ObjectMeta, api.GangPolicyAnnotation, "some")
		gomega.Expect(admin.Update(ctx, rt)).To(gomega.MatchError(gomega.ContainSubstring(`metadata.annotations[signalbox.dev/gang-scheduling-policy]: Unsupported value: "some"`)))

		g.runtime(ctx, "exclusive", "forever", func(rt *api.TrainingRuntime) {
			rt.Spec.Template.Annotations = map[string]string{jobset.ExclusiveKey: "rack"}
		})
		exclusive := g.submit(ctx, g.trainJob("exclusive", "exclusive", 2, gangs(api.GangRequired)))
		gomega.Eventually(func() string { return told(ctx, exclusive, api.ConditionBlocked) }).Should(gomega.ContainSubstring(`annotations[alpha.jobset.sigs.k8s.io/exclusive-topology]: Invalid value: "rack"`))

		required := g.submit(ctx, g.trainJob("required", "grouped", 1, gangs(api.GangRequired)))
		gomega.Eventually(func() string { return told(ctx, required, api.ConditionBlocked) }).Should(gomega.And(
			gomega.HavePrefix(
				"True InvalidGangScheduling: gang scheduling is required (metadata.annotations[signalbox.dev/gang-scheduling])"),
			gomega.ContainSubstring(`replicatedJobs[other].template.spec.template.spec.schedulingGroup.podGroupName is "mine"`), gomega.HaveSuffix("or set it to off")))
		gomega.Expect(workloadOf(ctx, required)).To(gomega.BeNil(), "it holds no quota")
		gomega.Expect(admin.Create(ctx, scheduling.group(g.namespace, "mine", 0))).To(gomega.Succeed())
		preferred := g.submit(ctx, g.trainJob("preferred", "grouped", 1, gangs(api.GangPreferred)))
		gomega.Eventually(bound(ctx, preferred)).Should(gomega.Equal(2))
		gomega.Eventually(eventsOf(ctx, preferred)).Should(
			gomega.ContainElement(gomega.HavePrefix(
				"GangSchedulingSkipped: Its pods are placed one by one: replicatedJobs[other]")))
		gomega.Expect(groupsOfPods(ctx, preferred)).To(gomega.Equal(map[string]int{"mine": 1}))
		gomega.Expect(g.leftovers(ctx)()).To(gomega.ConsistOf("mine"))

		g.runtime(ctx, "torch", "forever")
		basic := g.submit(ctx, g.trainJob("basic", "torch", 2, gangs(api.GangRequired), func(tj *api.TrainJob) {
			tj.Annotations[api.GangPolicyAnnotation] = string(api.GangPolicyBasic)
		}))
		gomega.Eventually(bound(ctx, basic)).Should(gomega.Equal(2))
		gomega.Expect(podGroups(ctx, basic)).To(gomega.ConsistOf("node=basic"))
	})
}
