package e2e

import (
	"context"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// Pods that would harm others aren't queued. Each case stands for what its comment in overrides/limits_pods.go says.

func init() {
	if cluster.bundled() {
		ginkgo.Describe("One TrainJob harms no other", harmSpecs)
		return
	}
	ginkgo.Describe("One TrainJob's tolerations", tolerationSpecs)
}

// everywhere keeps pods of all namespaces with a label from a node.
func everywhere(topology string) *corev1.Affinity {
	return &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
			LabelSelector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
				{Key: jobset.JobSetNameKey, Operator: metav1.LabelSelectorOpExists}}},
			NamespaceSelector: &metav1.LabelSelector{}, TopologyKey: topology,
		}},
	}}
}

// requests sets what a node of a TrainJob requests.
func requests(name corev1.ResourceName, quantity string) func(*api.TrainJob) {
	return func(tj *api.TrainJob) {
		list := corev1.ResourceList{name: resource.MustParse(quantity)}
		tj.Spec.Trainer.ResourcesPerNode = &corev1.ResourceRequirements{Requests: list, Limits: list}
	}
}

// inTemplate is an entry for the JobSet's metadata.
func inTemplate(meta metav1.ObjectMeta) func(*api.TrainJob) {
	return func(tj *api.TrainJob) {
		tj.Spec.RuntimePatches = append(tj.Spec.RuntimePatches, trainerapi.RuntimePatch{Manager: "example.com/team",
			TrainingRuntimeSpec: &trainerapi.TrainingRuntimeSpecPatch{
				Template: &trainerapi.JobSetTemplatePatch{Metadata: &meta}}})
	}
}

func harmSpecs() {
	const uncountable = "more nvidia.com/gpu than can be counted"
	exclusive := map[string]string{jobset.ExclusiveKey: "has-a100"}
	for name, c := range map[string]struct {
		runtime  func(*api.TrainingRuntime)
		trainJob func(*api.TrainJob)
		says     string
	}{
		"by a finalizer in its runtime's pods": {runtime: func(rt *api.TrainingRuntime) {
			rt.Spec.Template.Spec.ReplicatedJobs[0].Template.Spec.Template.Finalizers = []string{"example.com/kept"}
		}, says: `replicatedJobs[node].template.spec.template.metadata.finalizers: Invalid value: ["example.com/kept"]`},
		"by anti-affinity of its runtime to every namespace": {runtime: func(rt *api.TrainingRuntime) {
			podSpec(rt).Affinity = everywhere("has-a100")
		}, says: "requiredDuringSchedulingIgnoredDuringExecution[0].namespaceSelector"},
		"by anti-affinity of an entry to every namespace": {trainJob: entryFor("example.com/team", "node",
			func(_ *metav1.ObjectMeta, pod *trainerapi.PodSpecPatch) { pod.Affinity = everywhere("has-a100") }),
			says: "requiredDuringSchedulingIgnoredDuringExecution[0].namespaceSelector"},
		"by anti-affinity to a namespace": {runtime: func(rt *api.TrainingRuntime) {
			podSpec(rt).Affinity = everywhere("has-a100")
			term := &podSpec(rt).Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution[0]
			term.NamespaceSelector, term.Namespaces = nil, []string{"team-b"}
		}, says: `[0].namespaces: Invalid value: ["team-b"]`},
		"by JobSet's exclusive placement of its runtime": {runtime: func(rt *api.TrainingRuntime) {
			rt.Spec.Template.Annotations = exclusive
		}, says: "exclusive-topology"},
		"by JobSet's exclusive placement of an entry": {trainJob: inTemplate(metav1.ObjectMeta{Annotations: exclusive}),
			says: "exclusive-topology"},
		"by a negative request": {trainJob: requests(gpu, "-8"),
			says: `containers[node].resources.limits[nvidia.com/gpu]: Invalid value: "-8"`},
		"by half a GPU":                       {trainJob: requests(gpu, "500m"), says: "must be a whole number"},
		"by more requests than can be summed": {trainJob: requests(gpu, "9223372036854775807"), says: uncountable},
	} {
		ginkgo.It(name, func(ctx context.Context) {
			g := newGround(ctx, map[string]int64{"a100": 16})
			g.runtime(ctx, "odd", "forever", func(rt *api.TrainingRuntime) {
				if c.runtime != nil {
					c.runtime(rt)
				}
			})
			g.runtime(ctx, "torch", "1s")
			nodes := int32(1)
			if c.says == uncountable {
				nodes = 2
			}
			tj := g.submit(ctx, g.trainJob("odd", "odd", nodes, func(tj *api.TrainJob) {
				if c.trainJob != nil {
					c.trainJob(tj)
				}
			}))
			gomega.Eventually(blockedBy(ctx, tj)).Should(gomega.And(
				gomega.HavePrefix("LimitExceeded: "), gomega.ContainSubstring(c.says)))
			gomega.Expect(workloadOf(ctx, tj)).To(gomega.BeNil())
			gomega.Expect(g.used(ctx)()).To(gomega.BeZero())
			other := newGround(ctx, map[string]int64{"a100": 8})
			other.runtime(ctx, "torch", "1s")
			gomega.Eventually(complete(ctx, other.submit(ctx, other.trainJob("other", "torch", 1)))).Should(gomega.BeTrue())
		})
	}

	ginkgo.It("nor itself by a number that computing with takes hours", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 8})
		g.runtime(ctx, "torch", "1s")
		err := user.Create(ctx, g.trainJob("huge", "torch", 1, requests(corev1.ResourceCPU, "1e1000000002")))
		gomega.Expect(err).To(gomega.MatchError(gomega.And(
			gomega.ContainSubstring("spec.trainer.resourcesPerNode.limits.cpu: the quantity 1e1000000002 has too many digits"),
			gomega.ContainSubstring("an exponent of at most 3 digits"))))
		err = user.Create(ctx, g.trainJob("huge", "torch", 1, requests(corev1.ResourceCPU, "1e102")))
		gomega.Expect(err).To(gomega.MatchError(gomega.And(
			gomega.ContainSubstring("spec.trainer.resourcesPerNode.limits[cpu]: Invalid value: \"1e102\""),
			gomega.ContainSubstring("request less"))))
		odd := g.runtime(ctx, "huge", "1s", func(rt *api.TrainingRuntime) {
			podSpec(rt).Containers[0].Resources.Requests[corev1.ResourceMemory] = resource.MustParse("1e102")
		})
		gomega.Expect(user.Create(ctx, g.trainJob("huge", odd.Name, 1))).To(gomega.MatchError(
			gomega.ContainSubstring("resources.requests[memory]: Invalid value: \"1e102\"")))
	})
}

func tolerationSpecs() {
	ginkgo.It("can't have its pods evicted and replaced while they terminate, "+
		"unless its runtime replaces what has ended", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 16})
		evicting := func(rt *api.TrainingRuntime) {
			podSpec(rt).Tolerations = append(podSpec(rt).Tolerations, corev1.Toleration{
				Key: "evicts", Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute,
				TolerationSeconds: ptr.To[int64](1)})
		}
		g.runtime(ctx, "evicted", "1s", evicting)
		g.runtime(ctx, "replaced", "1s", evicting, replacesEnded)
		tj := g.submit(ctx, g.trainJob("evicted", "evicted", 1))
		gomega.Eventually(eventsOf(ctx, tj)).Should(gomega.ContainElement(gomega.And(
			gomega.HavePrefix("LimitExceeded: "), gomega.ContainSubstring("tolerations[1].tolerationSeconds: Invalid value: 1"),
			gomega.ContainSubstring("podReplacementPolicy: Failed"))))
		gomega.Expect(workloadOf(ctx, tj)).To(gomega.BeNil())
		gomega.Eventually(complete(ctx, g.submit(ctx, g.trainJob("replaced", "replaced", 1)))).Should(gomega.BeTrue())
	})
}
