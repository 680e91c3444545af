// Package podsets returns the PodSets of a TrainJob for its Kueue Workload, and the pods whose quota is free. All
// functions are pure functions of objects.
package podsets

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/validation/field"
	corev1defaults "k8s.io/kubernetes/pkg/apis/core/v1"
	"k8s.io/utils/ptr"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	utilslices "sigs.k8s.io/kueue/pkg/util/slices"

	"github.com/signalbox-dev/signalbox/overrides"
)

// Max is the number of PodSets that a Workload may hold (Kueue v0.19.2, maxItems of spec.podSets).
const Max = 18

// KueueGates is the prefix of the scheduling gates that Kueue removes.
const KueueGates = "kueue.x-k8s.io/"

// Of returns the PodSets of a TrainJob, one for each ReplicatedJob, in their order. It doesn't default them, because
// Kueue's own integration doesn't: that integration takes over a running TrainJob only if its Workload has the
// containers of its runtime, and stops any other. The error is a *field.Error for more than Max PodSets and for invalid
// topology annotations.
func Of(e *overrides.Effective, features Features) ([]kueue.PodSet, error) {
	if n := len(e.ReplicatedJobs); n > Max {
		return nil, field.TooMany(field.NewPath("spec", "runtimeRef"), n, Max)
	}
	podSets := make([]kueue.PodSet, 0, len(e.ReplicatedJobs))
	for i := range e.ReplicatedJobs {
		rj := &e.ReplicatedJobs[i]
		podSet := kueue.PodSet{
			Name:     kueue.NewPodSetReference(rj.Name),
			Template: *rj.Template.Spec.Template.DeepCopy(),
			Count:    rj.Replicas * overrides.PodsPerJob(rj),
		}
		fillRequests(&podSet.Template.Spec)
		podSet.Template.Spec.SchedulingGroup = nil // the CRD of Kueue 0.17 hasn't the field, and Kueue doesn't read it
		if features.TopologyAware {
			request, err := topologyRequest(rj, features)
			if err != nil {
				return nil, fmt.Errorf("ReplicatedJob %s: %w", rj.Name, err)
			}
			podSet.TopologyRequest = request
		}
		podSets = append(podSets, podSet)
	}
	if features.TopologyAware {
		groupNodes(podSets, e.NodeGroup)
	}
	return podSets, nil
}

// SetMinCount sets the minCount of the PodSet whose count depends on the number of nodes. least is what the
// TrainJob runs with the fewest nodes that it may be admitted with. Kueue accepts minCount on one PodSet; several
// are an error.
func SetMinCount(podSets []kueue.PodSet, least *overrides.Effective) error {
	var shrinks *kueue.PodSet
	for i := range podSets {
		podSet := &podSets[i]
		rj := least.ReplicatedJob(string(podSet.Name))
		if rj == nil {
			return fmt.Errorf("ReplicatedJob %s is missing with fewer nodes", podSet.Name)
		}
		count := rj.Replicas * overrides.PodsPerJob(rj)
		if count >= podSet.Count {
			continue
		}
		if shrinks != nil {
			return fmt.Errorf("the pods of ReplicatedJobs %s and %s both depend on the number of nodes, but a Workload "+
				"accepts minCount on one PodSet; remove annotation %s",
				shrinks.Name, podSet.Name, overrides.MinParallelismAnnotation)
		}
		shrinks, podSet.MinCount = podSet, &count
	}
	return nil
}

// Flavors returns the ResourceFlavors that the Workload is admitted on, each once and in order; nil if it is not
// admitted.
func Flavors(wl *kueue.Workload) []string {
	if wl == nil || wl.Status.Admission == nil {
		return nil
	}
	var names []string
	for _, assignment := range wl.Status.Admission.PodSetAssignments {
		for _, flavor := range assignment.Flavors {
			names = append(names, string(flavor))
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// defaulted returns the pod template with the defaults of core/v1, with JobSet's restart policy, because the default of
// core/v1 is invalid for a Job, with limits requested, and without the group of its pods, which earlier versions left
// in.
func defaulted(template corev1.PodTemplateSpec) corev1.PodTemplateSpec {
	t := &corev1.PodTemplate{Template: *template.DeepCopy()}
	if t.Template.Spec.RestartPolicy == "" {
		t.Template.Spec.RestartPolicy = corev1.RestartPolicyOnFailure
	}
	t.Template.Spec.SchedulingGroup = nil
	fillRequests(&t.Template.Spec)
	corev1defaults.SetObjectDefaults_PodTemplate(t)
	return t.Template
}

// Equal reports whether a Workload with the PodSets stored fits a TrainJob with the PodSets computed: names, counts,
// topology requests and pod specs are the same. Either side may be defaulted; a default equals an unset field. Labels
// and annotations of pods may differ: they affect neither quota nor flavor, and what Kueue reads of them is in the
// topology request.
func Equal(computed, stored []kueue.PodSet) bool {
	return Difference(computed, stored) == ""
}

// Difference returns the first difference between PodSets that Equal compares, as "podSets[name].field is X, not Y"; ""
// if there is none.
func Difference(computed, stored []kueue.PodSet) string {
	if have, want := names(computed), names(stored); !slices.Equal(have, want) {
		return fmt.Sprintf("podSets are %v, not %v", have, want)
	}
	for i := range computed {
		a, b := &computed[i], &stored[i]
		path := "podSets[" + string(a.Name) + "]"
		switch {
		case a.Count != b.Count:
			return fmt.Sprintf("%s.count is %d, not %d", path, a.Count, b.Count)
		case !ptr.Equal(a.MinCount, b.MinCount):
			return fmt.Sprintf("%s.minCount is %d, not %d", path, ptr.Deref(a.MinCount, 0), ptr.Deref(b.MinCount, 0))
		case !equality.Semantic.DeepEqual(a.TopologyRequest, b.TopologyRequest):
			return path + ".topologyRequest differs"
		}
		if equality.Semantic.DeepEqual(a.Template.Spec, b.Template.Spec) {
			continue
		}
		if field := fieldOf(defaulted(a.Template).Spec, defaulted(b.Template).Spec); field != "" {
			return path + ".template.spec" + field + " differs"
		}
	}
	return ""
}

func names(podSets []kueue.PodSet) []kueue.PodSetReference {
	return utilslices.Map(podSets, func(p *kueue.PodSet) kueue.PodSetReference { return p.Name })
}

// fieldOf returns the path of the first field in which two pod specs differ, such as ".containers"; "" if none
// does.
func fieldOf(a, b corev1.PodSpec) string {
	x, y := reflect.ValueOf(a), reflect.ValueOf(b)
	for i := range x.NumField() {
		if equality.Semantic.DeepEqual(x.Field(i).Interface(), y.Field(i).Interface()) {
			continue
		}
		name, _, _ := strings.Cut(x.Type().Field(i).Tag.Get("json"), ",")
		return "." + name
	}
	return ""
}
