package grow

import (
	"fmt"
	"maps"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/controller/constants"
	"sigs.k8s.io/kueue/pkg/workload"
	"sigs.k8s.io/kueue/pkg/workloadslicing"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides"
	"github.com/signalbox-dev/signalbox/podsets"
)

// Check returns an error if annotation signalbox.dev/grow is invalid, among those of a TrainJob.
func Check(annotations map[string]string, path *field.Path) field.ErrorList {
	switch value, set := annotations[api.GrowAnnotation]; {
	case !set || value == "true" || value == "false":
		return nil
	default:
		return field.ErrorList{field.Invalid(path.Key(api.GrowAnnotation), value,
			`must be "true" for a TrainJob that may be restarted with more nodes, or "false"; correct or remove it`)}
	}
}

// NoEffect is the beginning of the warning about an annotation that lets nothing grow.
const NoEffect = "annotation " + api.GrowAnnotation + " has no effect: "

// Warnings returns why the annotation of a TrainJob has no effect, which asks for so many nodes and runs with at least
// so many; nil if it has one. enabled is what the configuration says.
func Warnings(enabled bool, least, all int32) []string {
	switch {
	case !enabled:
		return []string{NoEffect + "grow.enabled is false in Signalbox's configuration; ask your admin to enable it, or " +
			"remove the annotation"}
	case least >= all:
		return []string{fmt.Sprintf("%sthe TrainJob is admitted with all its nodes (%d) or not at all; set annotation %s to "+
			"the fewest nodes that are enough, or remove this one", NoEffect, all, overrides.MinParallelismAnnotation)}
	}
	return nil
}

// guarded begins label kueue.x-k8s.io/job-uid of a slice. Kueue names the value in the message of each preemption
// (Kueue v0.19.2, pkg/scheduler/preemption: "Preempted to accommodate a workload (UID: …, JobUID: …)"), and the
// policy Guard of the chart rejects those that it begins.
const guarded = "grows-"

// gate keeps a slice from preempting where Kueue's feature gates ConcurrentAdmission or
// MultiKueueOrchestratedPreemption are on. Nothing opens it.
const gate = "signalbox.dev/grow"

// Slice returns the Workload with which a TrainJob gets so many pods in place of those of wl, without its name. It
// preempts nobody. nodes is the number of nodes that the TrainJob's entry has.
func (w Want) Slice(wl *kueue.Workload, count, nodes int32) *kueue.Workload {
	slice := &kueue.Workload{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: wl.Namespace, Labels: maps.Clone(wl.Labels),
			Annotations: map[string]string{
				workloadslicing.WorkloadSliceReplacementFor: string(workload.Key(wl)),
				podsets.SliceAnnotation:                     podsets.Slice{PodSet: w.PodSet, From: nodes, Of: w.Most}.String(),
			},
			Finalizers: []string{kueue.ResourceInUseFinalizerName},
		},
		Spec: *wl.Spec.DeepCopy(),
	}
	if owner := metav1.GetControllerOf(wl); owner != nil {
		slice.OwnerReferences = []metav1.OwnerReference{*owner}
		metav1.SetMetaDataLabel(&slice.ObjectMeta, constants.JobUIDLabel, guarded+string(owner.UID))
	}
	slice.Spec.PodSets = podsets.WithCount(wl.Spec.PodSets, w.PodSet, count)
	workload.EnsurePreemptionGateOnSpec(slice, gate)
	return slice
}
