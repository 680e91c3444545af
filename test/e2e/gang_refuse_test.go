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
