package overrides

import (
	"fmt"
	"slices"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"gomodules.xyz/jsonpatch/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// toPatch returns the operations that remove a Record, and add to runtimePatches, as the first, an entry that does what
// the Record's entries do. now is the entry's time.
func toPatch(job *api.TrainJob, record *Record, now metav1.Time) ([]jsonpatch.Operation, error) {
	const list = "/spec/" + RuntimePatches
	operations := []jsonpatch.Operation{jsonpatch.NewOperation("remove", recordPointer, nil)}
	entries := record.entries(record.Users)
	converted := func(p trainerapi.RuntimePatch) bool { return p.Manager == ConvertedManager }
	if len(entries) == 0 || slices.ContainsFunc(job.Spec.RuntimePatches, converted) {
		return operations, nil // the users have applied a converted manifest
	}
	n := len(job.Spec.RuntimePatches)
	if n >= MaxEntries {
		return nil, fmt.Errorf("spec.%s needs an entry of spec.%s, which has %d already; take one out",
			record.Field, RuntimePatches, n)
	}
	patch, err := fold(entries)
	if err != nil {
		return nil, err
	}
	entry := &trainerapi.RuntimePatch{Manager: ConvertedManager, Time: &now, TrainingRuntimeSpec: patch}
	if n > 0 {
		return append(operations, jsonpatch.NewOperation("add", list+"/0", entry)), nil
	}
	return append(operations, jsonpatch.NewOperation("add", list, []any{entry})), nil
}

// ConvertedManager is the manager of the entry of runtimePatches to which a TrainJob's lists without managers are
// converted.
const ConvertedManager = "signalbox.dev/converted"
