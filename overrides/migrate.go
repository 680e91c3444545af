package overrides

import (
	"fmt"
	"slices"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// Migration is what replaces a foreign Record. Dialect.Migrate returns it.
type Migration struct {
	// Patch is a further entry, the first of runtimePatches; nil where there is nothing to write.
	Patch *trainerapi.RuntimePatch
	// List is the whole of podTemplateOverrides, nil where there are none.
	List []api.PodTemplateOverride

	dialect Dialect
}

// PatchOperation is an operation of a JSON patch (RFC 6902).
type PatchOperation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value,omitempty"`
}

// Operations returns the JSON patch that writes the migration to the TrainJob that it was decided for and removes or
// replaces the foreign Record. The caller guards it against other changes of the TrainJob.
func (m *Migration) Operations(job *api.TrainJob) ([]PatchOperation, error) {
	return m.dialect.operations(job, m)
}

// removeRecord removes the Record.
var removeRecord = PatchOperation{Op: "remove", Path: recordPointer}

// addPatch adds the entry as the first of runtimePatches.
func (m *Migration) addPatch(job *api.TrainJob) []PatchOperation {
	const list = "/spec/" + RuntimePatches
	switch {
	case m.Patch == nil:
		return nil
	case len(job.Spec.RuntimePatches) > 0:
		return []PatchOperation{{Op: "add", Path: list + "/0", Value: m.Patch}}
	}
	return []PatchOperation{{Op: "add", Path: list, Value: []any{m.Patch}}}
}

// migrateToPatch returns the migration to one entry of runtimePatches that does what the entries of a Record do. from
// is the Record's field.
func migrateToPatch(d Dialect, job *api.TrainJob, from string, entries []Entry, now metav1.Time) (*Migration, error) {
	m := &Migration{dialect: d}
	converted := func(p trainerapi.RuntimePatch) bool { return p.Manager == ConvertedManager }
	if len(entries) == 0 || slices.ContainsFunc(job.Spec.RuntimePatches, converted) {
		return m, nil // the users have applied a converted manifest
	}
	if n := len(job.Spec.RuntimePatches); n >= MaxEntries {
		return nil, fmt.Errorf("spec.%s needs an entry of spec.%s, which has %d already; take one out",
			from, RuntimePatches, n)
	}
	patch, err := fold(entries)
	m.Patch = &trainerapi.RuntimePatch{Manager: ConvertedManager, Time: &now, TrainingRuntimeSpec: patch}
	return m, err
}
