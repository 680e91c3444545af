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
	"k8s.io/kubernetes/pkg/apis/scheduling"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// kubernetes137 is scheduling.k8s.io of Kubernetes 1.37, which serves v1beta1 and v1alpha3 in one shape. Its types are
// those of this file, with the fields that are used, because one k8s.io/api has either them or v1alpha2.
type kubernetes137 struct{ version string }

var _ version = kubernetes137{}

var (
	v1beta1  = kubernetes137{"v1beta1"}
	v1alpha3 = kubernetes137{"v1alpha3"}
)

// initiallyScheduled is kube-scheduler's condition of a PodGroup. It stays true once it is.
const initiallyScheduled = "PodGroupInitiallyScheduled"

type (
	workloadSpec struct {
		ControllerRef     typedLocalObjectReference `json:"controllerRef"`
		PodGroupTemplates []podGroupTemplate        `json:"podGroupTemplates"`
	}
	typedLocalObjectReference struct {
		APIGroup string `json:"apiGroup"`
		Kind     string `json:"kind"`
		Name     string `json:"name"`
	}
	podGroupTemplate struct {
		Name            string `json:"name"`
		podGroupSharing `json:",inline"`
	}
	podGroupSpec struct {
		WorkloadRef     workloadRef `json:"workloadRef"`
		podGroupSharing `json:",inline"`
	}
	workloadRef struct {
		WorkloadName string `json:"workloadName"`
		TemplateName string `json:"templateName"`
	}
	// podGroupSharing is what a PodGroup has from its template.
	podGroupSharing struct {
		SchedulingPolicy  schedulingPolicy `json:"schedulingPolicy"`
		DisruptionMode    *disruptionMode  `json:"disruptionMode,omitempty"`
		PriorityClassName string           `json:"priorityClassName,omitempty"`
	}
	schedulingPolicy struct {
		Basic *struct{}             `json:"basic,omitempty"`
		Gang  *gangSchedulingPolicy `json:"gang,omitempty"`
	}
	gangSchedulingPolicy struct {
		MinCount int32 `json:"minCount"`
	}
	disruptionMode struct {
		All *struct{} `json:"all,omitempty"`
	}
)

func (v kubernetes137) groupVersion() schema.GroupVersion {
	return schema.GroupVersion{Group: group, Version: v.version}
}

// sharing returns what a template and its PodGroup have in common. Pods of a higher priority preempt a gang as a whole:
// what would be left of it would hold its GPUs and wait.
func (kubernetes137) sharing(policy api.GangPolicy, g Group) podGroupSharing {
	shared := podGroupSharing{PriorityClassName: g.priority.class}
	if policy == api.GangPolicyBasic {
		shared.SchedulingPolicy.Basic = &struct{}{}
		return shared
	}
	shared.SchedulingPolicy.Gang = &gangSchedulingPolicy{MinCount: g.Pods}
	shared.DisruptionMode = &disruptionMode{All: &struct{}{}}
	return shared
}

func (v kubernetes137) workload(meta metav1.ObjectMeta, job *api.TrainJob, policy api.GangPolicy,
	groups []Group) client.Object {
	spec := workloadSpec{ControllerRef: typedLocalObjectReference{
		APIGroup: trainerapi.GroupVersion.Group, Kind: trainerapi.TrainJobKind, Name: job.Name}}
	for _, g := range groups {
		spec.PodGroupTemplates = append(spec.PodGroupTemplates,
			podGroupTemplate{Name: g.Name, podGroupSharing: v.sharing(policy, g)})
	}
	return v.object("Workload", meta, &spec)
}

func (v kubernetes137) podGroup(meta metav1.ObjectMeta, workload string, policy api.GangPolicy, g Group) client.Object {
	return v.object("PodGroup", meta, &podGroupSpec{
		WorkloadRef:     workloadRef{WorkloadName: workload, TemplateName: g.Name},
		podGroupSharing: v.sharing(policy, g),
	})
}

// object returns an object of a kind with a spec, which is a pointer to a struct of this file.
func (v kubernetes137) object(kind string, meta metav1.ObjectMeta, spec any) client.Object {
	o := v.empty(kind)
	o.SetNamespace(meta.Namespace)
	o.SetName(meta.Name)
	o.SetLabels(meta.Labels)
	o.SetOwnerReferences(meta.OwnerReferences)
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(spec)
	if err != nil {
		panic(err) // strings and numbers can't fail
	}
	o.Object["spec"] = content
	return o
}

func (v kubernetes137) empty(kind string) *unstructured.Unstructured {
	o := &unstructured.Unstructured{}
	o.SetGroupVersionKind(v.groupVersion().WithKind(kind))
	return o
}

func (v kubernetes137) emptyPodGroup() (client.Object, client.ObjectList) {
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(v.groupVersion().WithKind("PodGroupList"))
	return v.empty("PodGroup"), list
}

func (kubernetes137) read(o client.Object) podGroupState {
	var content struct {
		Spec struct {
			SchedulingPolicy schedulingPolicy `json:"schedulingPolicy"`
		} `json:"spec"`
		Status struct {
			Conditions []metav1.Condition `json:"conditions"`
		} `json:"status"`
	}
	s := podGroupState{
		name: o.GetName(), uid: o.GetUID(), finalizers: o.GetFinalizers(), created: o.GetCreationTimestamp(),
		later: o.GetLabels()[partLabel] == partLater,
	}
	err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.(*unstructured.Unstructured).Object, &content)
	if err != nil {
		return s // another shape than the version's; nothing is known of its state
	}
	s.scheduled = apimeta.FindStatusCondition(content.Status.Conditions, initiallyScheduled)
	if gang := content.Spec.SchedulingPolicy.Gang; gang != nil {
		s.minCount = gang.MinCount
	}
	return s
}

// refuses returns why kube-scheduler would not place a group: all its pods must have the PodGroup's priority
// (Kubernetes 1.37, validatePodGroup), which is at most what users may give.
func (kubernetes137) refuses(g Group) error {
	if strings.HasPrefix(g.priority.class, scheduling.SystemPriorityClassPrefix) {
		return fmt.Errorf("replicatedJobs[%s].template.spec.template.spec.priorityClassName is %q, and a PodGroup's "+
			"priority is at most %d; name another class", g.Name, g.priority.class, scheduling.HighestUserDefinablePriority)
	}
	return g.mixed
}

func (kubernetes137) resizable() bool { return true }
