package e2e

import (
	"context"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"

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
