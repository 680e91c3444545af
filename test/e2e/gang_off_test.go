package e2e

import (
	"context"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

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
