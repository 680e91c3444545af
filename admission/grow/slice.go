package grow

import (
	"maps"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/controller/constants"
	"sigs.k8s.io/kueue/pkg/workload"
	"sigs.k8s.io/kueue/pkg/workloadslicing"

	"github.com/signalbox-dev/signalbox/podsets"
)

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
