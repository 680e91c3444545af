package e2e

import (
	"cmp"
	"context"
	"fmt"
	"os"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// podGroupAPI is scheduling.k8s.io in the version that the release of Kubernetes serves, with what differs between
// them.
type podGroupAPI struct {
	version string
	// template is where a PodGroup names its template, and workload its Workload.
	template, workload []string
	// lowersMinCount is whether minCount can change; wholeGroups, whether a group has one priority and may be preempted as
	// a whole; takesOrphans, whether a PodGroup may be created before its Workload.
	lowersMinCount, wholeGroups, takesOrphans bool
}

// podGroupAPIs are by release of Kubernetes; it has none where kube-scheduler acts on no PodGroups.
var podGroupAPIs = map[string]podGroupAPI{
	"1.36": {"v1alpha2", []string{"spec", "podGroupTemplateRef", "workload", "podGroupTemplateName"},
		[]string{"spec", "podGroupTemplateRef", "workload", "workloadName"}, false, false, false},
	"1.37": {"v1beta1", []string{"spec", "workloadRef", "templateName"}, []string{"spec", "workloadRef", "workloadName"},
		true, true, true},
}

// scheduling is the one that is served, until Kubernetes is upgraded.
var scheduling, servesPodGroups = podGroupAPIs[os.Getenv("SIGNALBOX_KUBERNETES")]

// On a control plane that was started with APIS another version may be served, in the same shape.
func init() { scheduling.version = cmp.Or(os.Getenv("SIGNALBOX_POD_GROUPS"), scheduling.version) }

// nextKubernetes is the release that the cluster can be upgraded to; "" for none.
var nextKubernetes = os.Getenv("SIGNALBOX_NEXT_KUBERNETES")

func (a podGroupAPI) kind(kind string) schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: "scheduling.k8s.io", Version: a.version, Kind: kind}
}

// empty returns an object of a kind.
func (a podGroupAPI) empty(kind, namespace, name string) *unstructured.Unstructured {
	o := &unstructured.Unstructured{}
	o.SetGroupVersionKind(a.kind(kind))
	o.SetNamespace(namespace)
	o.SetName(name)
	return o
}

// group returns a PodGroup; minCount 0 is for policy basic.
func (a podGroupAPI) group(namespace, name string, minCount int64) *unstructured.Unstructured {
	o := a.empty("PodGroup", namespace, name)
	policy := map[string]any{"basic": map[string]any{}}
	if minCount > 0 {
		policy = map[string]any{"gang": map[string]any{"minCount": minCount}}
	}
	gomega.Expect(unstructured.SetNestedMap(o.Object, policy, "spec", "schedulingPolicy")).To(gomega.Succeed())
	return o
}

// list returns the objects of a kind in a namespace.
func (a podGroupAPI) list(ctx context.Context, kind, namespace string) []unstructured.Unstructured {
	ginkgo.GinkgoHelper()
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(a.kind(kind + "List"))
	gomega.Expect(admin.List(ctx, list, client.InNamespace(namespace))).To(gomega.Succeed())
	return list.Items
}

// templates are those of a Workload.
func templates(workload unstructured.Unstructured) int {
	ginkgo.GinkgoHelper()
	all, _, err := unstructured.NestedSlice(workload.Object, "spec", "podGroupTemplates")
	gomega.Expect(err).NotTo(gomega.HaveOccurred())
	return len(all)
}

// text is a field of an object; "" where it isn't set.
func text(o unstructured.Unstructured, path ...string) string {
	ginkgo.GinkgoHelper()
	s, _, err := unstructured.NestedString(o.Object, path...)
	gomega.Expect(err).NotTo(gomega.HaveOccurred())
	return s
}

// podGroups are the PodGroups of a TrainJob, as "template=minCount".
func podGroups(ctx context.Context, tj *api.TrainJob) []string {
	ginkgo.GinkgoHelper()
	var found []string
	for _, pg := range scheduling.list(ctx, "PodGroup", tj.Namespace) {
		if !metav1.IsControlledBy(&pg, tj) {
			continue
		}
		count := "basic"
		minCount, gang, err := unstructured.NestedInt64(pg.Object, "spec", "schedulingPolicy", "gang", "minCount")
		gomega.Expect(err).NotTo(gomega.HaveOccurred())
		if gang {
			count = fmt.Sprint(minCount)
		}
		found = append(found, fmt.Sprintf("%s=%s", text(pg, scheduling.template...), count))
	}
	return found
}

// leftovers are the Workloads and PodGroups of a namespace.
func (g *ground) leftovers(ctx context.Context) func() []string {
	return func() []string {
		ginkgo.GinkgoHelper()
		var names []string
		for _, kind := range []string{"Workload", "PodGroup"} {
			if !servesPodGroups {
				continue
			}
			for _, o := range scheduling.list(ctx, kind, g.namespace) {
				names = append(names, o.GetName())
			}
		}
		return names
	}
}

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
