// Package admission decides how a TrainJob starts, and when it has stopped.
//
// Decide is a pure function: from the admitted Workload, the flavors that it was assigned, the TrainJob and its runtime
// it computes the integration's entry of runtimePatches, or an error that says what conflicts. Package store writes it.
package admission

import (
	"fmt"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"k8s.io/apimachinery/pkg/types"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/signalbox-dev/signalbox/overrides"
	"github.com/signalbox-dev/signalbox/overrides/legacy"
)

// Start is a decided start: the entry to write together with suspend: false, and the version of the TrainJob that it
// was decided on.
type Start struct {
	Key             types.NamespacedName
	UID             types.UID
	ResourceVersion string
	Entry           trainerapi.RuntimePatch
	// Record is written instead of the entry to a Trainer whose list of overrides is not keyed by manager; nil else.
	Record *legacy.Record
	// Pin is the runtime to be written with the start (store.Pin); "" where Kubeflow Trainer keeps it.
	Pin string
	// NewPin is set where the TrainJob has no pin yet.
	NewPin bool
	// At is the place of the integration's entry in spec.runtimePatches, -1 where it has none; Others is set where the
	// list has entries. Annotated is set where the TrainJob has annotations.
	At                int
	Others, Annotated bool
}

// Decide returns the start of the TrainJob on what its Workload was admitted to. The entry is complete: each field that
// it sets holds the whole effective value, what the runtime and the other entries give and what admission adds, so that
// it is right whether the field is merged or replaced. The result of applying it is computed before it is returned; a
// start that would not give every pod what admission needs is an error, a *ConflictError where another entry is in the
// way.
func Decide(in Input) (*Start, error) {
	if in.Workload.Status.Admission == nil {
		return nil, fmt.Errorf("Workload %s is not admitted", in.Workload.Name)
	}
	all, err := assigned(in)
	if err != nil {
		return nil, err
	}
	others := in.Dialect.Others(in.Job)
	effective := in.Effective
	if effective == nil {
		if effective, err = in.Dialect.Compute(in.Job, in.Runtime, others); err != nil {
			return nil, err
		}
	}
	if len(all) != len(effective.ReplicatedJobs) {
		return nil, fmt.Errorf("Workload %s was admitted with %d PodSets, but the TrainJob has %d ReplicatedJobs",
			in.Workload.Name, len(all), len(effective.ReplicatedJobs))
	}
	patches := make([]trainerapi.ReplicatedJobPatch, 0, len(effective.ReplicatedJobs))
	for i := range effective.ReplicatedJobs {
		rj := &effective.ReplicatedJobs[i]
		n, found := all[kueue.NewPodSetReference(rj.Name)]
		if !found {
			return nil, fmt.Errorf("Workload %s was admitted without a PodSet for ReplicatedJob %q",
				in.Workload.Name, rj.Name)
		}
		patch, err := placing{in.Job, others, rj.Name, n}.complete(&rj.Template.Spec.Template)
		if err != nil {
			return nil, err
		}
		patches = append(patches, patch)
	}
	start := &Start{
		Key:             types.NamespacedName{Namespace: in.Job.Namespace, Name: in.Job.Name},
		UID:             in.Job.UID,
		ResourceVersion: in.Job.ResourceVersion,
		Entry:           entry(patches, &in.Now),
		At:              overrides.OwnIndex(in.Job),
		Others:          len(in.Job.Spec.RuntimePatches) > 0,
		Annotated:       in.Job.Annotations != nil, // a cache that drops the last annotation leaves an empty map
	}
	if err := carried(in, all, others, patches); err != nil {
		return nil, err
	}
	if err := verify(in, all, start.Entry); err != nil {
		return nil, err
	}
	start.Record, err = in.Dialect.Record(in.Job, &start.Entry)
	return start, err
}

// carried rejects a start that the Trainer's list of overrides, if it has one, can't carry.
func carried(
	in Input, all map[kueue.PodSetReference]*needs, others []overrides.Entry, patches []trainerapi.ReplicatedJobPatch,
) error {
	if in.Dialect.List == nil {
		return nil
	}
	for _, patch := range patches {
		metadata := all[kueue.NewPodSetReference(patch.Name)].metadata
		if u := in.Dialect.List.Uncarried(others, patch, metadata); u != nil {
			return (*ConflictError)(u)
		}
	}
	return nil
}
