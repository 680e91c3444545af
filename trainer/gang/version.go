package gang

import (
	"fmt"
	"strings"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/kubernetes/pkg/apis/scheduling"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// group of the Workload and PodGroup API.
const group = "scheduling.k8s.io"

// partLabel is on all objects that this package creates; its values are the kinds of them.
const (
	partLabel    = "signalbox.dev/gang-part"
	partWorkload = "workload"
	partFirst    = "first" // a PodGroup whose pods are created at the start
	partLater    = "later" // a PodGroup whose pods are created after others
)

// maxTemplates is the number of templates that a Workload may hold (scheduling.k8s.io,
// WorkloadMaxPodGroupTemplates).
const maxTemplates = 8

// version is what distinguishes one version of the API. Its objects are unstructured, because one k8s.io/api has either
// the types of v1beta1 or those of v1alpha2.
type version struct {
	schema.GroupVersion
	// scheduled is kube-scheduler's condition of a PodGroup. It stays true once it is.
	scheduled string
	// templateRef returns the field of a PodGroup's spec that names its Workload and template, and its value.
	templateRef func(workload, template string) (field string, ref map[string]any)
	// priority is set if a PodGroup has a priority, and is preempted as a whole.
	priority bool
	// resizable is set if the minCount of a PodGroup may change. Where it may not, the PodGroup is replaced.
	resizable bool
}

// v1alpha2 is of Kubernetes 1.36, where no field of a PodGroup's spec can change. Kubernetes 1.37 serves the others, in
// one shape.
var (
	v1beta1, v1alpha3 = kubernetes137("v1beta1"), kubernetes137("v1alpha3")

	v1alpha2 = &version{
		GroupVersion: schema.GroupVersion{Group: group, Version: "v1alpha2"}, scheduled: "PodGroupScheduled",
		templateRef: func(workload, template string) (string, map[string]any) {
			ref := map[string]any{"workloadName": workload, "podGroupTemplateName": template}
			return "podGroupTemplateRef", map[string]any{"workload": ref}
		},
	}
)

func kubernetes137(name string) *version {
	return &version{
		GroupVersion: schema.GroupVersion{Group: group, Version: name}, scheduled: "PodGroupInitiallyScheduled",
		templateRef: func(workload, template string) (string, map[string]any) {
			return "workloadRef", map[string]any{"workloadName": workload, "templateName": template}
		},
		priority: true, resizable: true,
	}
}

// workloadSpec returns the spec of a Workload with the templates of the groups. No Kubernetes component acts on it.
func (v *version) workloadSpec(job *api.TrainJob, policy api.GangPolicy, groups []Group) map[string]any {
	templates := make([]any, len(groups))
	for i, g := range groups {
		template := v.shared(policy, g)
		template["name"] = g.Name
		templates[i] = template
	}
	return map[string]any{
		"controllerRef": map[string]any{
			"apiGroup": trainerapi.GroupVersion.Group, "kind": trainerapi.TrainJobKind, "name": job.Name,
		},
		"podGroupTemplates": templates,
	}
}

// podGroupSpec returns the spec of a PodGroup, which kube-scheduler acts on.
func (v *version) podGroupSpec(workload string, policy api.GangPolicy, g Group) map[string]any {
	spec := v.shared(policy, g)
	field, ref := v.templateRef(workload, g.Name)
	spec[field] = ref
	return spec
}

// shared returns what a template and its PodGroup have in common. Pods of a higher priority preempt a gang as a
// whole: what would be left of it would hold its GPUs and wait.
func (v *version) shared(policy api.GangPolicy, g Group) map[string]any {
	spec := map[string]any{"schedulingPolicy": map[string]any{"basic": map[string]any{}}}
	if policy != api.GangPolicyBasic {
		spec["schedulingPolicy"] = map[string]any{"gang": map[string]any{"minCount": int64(g.Pods)}}
		if v.priority {
			spec["disruptionMode"] = map[string]any{"all": map[string]any{}}
		}
	}
	if v.priority && g.priority.class != "" {
		spec["priorityClassName"] = g.priority.class
	}
	return spec
}

// object returns an object with nothing but its kind and its name.
func (v *version) object(kind string, key types.NamespacedName) *unstructured.Unstructured {
	o := &unstructured.Unstructured{}
	o.SetGroupVersionKind(v.WithKind(kind))
	o.SetNamespace(key.Namespace)
	o.SetName(key.Name)
	return o
}

// refuses returns why kube-scheduler would not place a group; nil if it would. All its pods must have the PodGroup's
// priority (Kubernetes 1.37, validatePodGroup), which is at most what users may give.
func (v *version) refuses(g Group) error {
	if !v.priority {
		return nil
	}
	if strings.HasPrefix(g.priority.class, scheduling.SystemPriorityClassPrefix) {
		return fmt.Errorf("replicatedJobs[%s].template.spec.template.spec.priorityClassName is %q, and a PodGroup's "+
			"priority is at most %d; name another class", g.Name, g.priority.class, scheduling.HighestUserDefinablePriority)
	}
	return g.mixed
}

// podGroupState is the version-independent state of a PodGroup.
type podGroupState struct {
	name       string
	uid        types.UID
	finalizers []string
	created    metav1.Time
	// later is true if the pods are created after others, not at the start of the TrainJob.
	later bool
	// minCount of a gang; 0 for policy basic.
	minCount int32
	// scheduled is kube-scheduler's condition; nil before kube-scheduler has tried to place the group.
	scheduled *metav1.Condition
}

// read returns the state of a PodGroup. Of one of another shape than the version's, only the metadata is known.
func (v *version) read(o *unstructured.Unstructured) podGroupState {
	s := podGroupState{
		name: o.GetName(), uid: o.GetUID(), finalizers: o.GetFinalizers(), created: o.GetCreationTimestamp(),
		later: o.GetLabels()[partLabel] == partLater,
	}
	var content struct {
		Spec struct {
			SchedulingPolicy struct {
				Gang struct {
					MinCount int32 `json:"minCount"`
				} `json:"gang"`
			} `json:"schedulingPolicy"`
		} `json:"spec"`
		Status struct {
			Conditions []metav1.Condition `json:"conditions"`
		} `json:"status"`
	}
	if runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &content) == nil {
		s.minCount = content.Spec.SchedulingPolicy.Gang.MinCount
		s.scheduled = apimeta.FindStatusCondition(content.Status.Conditions, v.scheduled)
	}
	return s
}

// placed reports whether kube-scheduler has placed the group.
func (s podGroupState) placed() bool {
	return s.scheduled != nil && s.scheduled.Status == metav1.ConditionTrue
}

// refused reports whether kube-scheduler can't place the group.
func (s podGroupState) refused() bool {
	return s.scheduled != nil && s.scheduled.Status == metav1.ConditionFalse
}
