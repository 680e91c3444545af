package overrides

import (
	"slices"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// keyed is Kubeflow Trainer since v2.2: TrainJobs have runtimePatches, keyed by manager, and no earlier shape.
type keyed struct {
	trainer
	patches
	snapshots bool
}

// CountsJobs reports true.
func (d *keyed) CountsJobs() bool { return true }

// Snapshots reports whether it is v2.3, the first that has them.
func (d *keyed) Snapshots() bool { return d.snapshots }

// Entries returns runtimePatches, after what a foreign Record holds.
func (d *keyed) Entries(job *api.TrainJob) []Entry {
	return append(d.recorded(job), patchEntries(job)...)
}

// Others returns the entries that are not the integration's.
func (d *keyed) Others(job *api.TrainJob) []Entry { return withoutOwn(d.Entries(job)) }

// With returns the entries with the integration's.
func (d *keyed) With(job *api.TrainJob, own trainerapi.RuntimePatch) []Entry {
	return replaceOwn(d.Entries(job), own)
}

// recorded returns what a Record holds, which is of an earlier Trainer whatever its field.
func (d *keyed) recorded(job *api.TrainJob) []Entry {
	record := readableRecord(job)
	if record == nil {
		return nil
	}
	return record.entries(record.Users)
}

// Migrate returns the entry of runtimePatches that does what the foreign Record's elements did.
func (d *keyed) Migrate(job *api.TrainJob, record *Record, now metav1.Time) (*Migration, error) {
	return migrateToPatch(d, job, record.Field, record.entries(record.Users), now)
}

// operations removes the Record and adds the entry.
func (d *keyed) operations(job *api.TrainJob, m *Migration) ([]PatchOperation, error) {
	return append([]PatchOperation{removeRecord}, m.addPatch(job)...), nil
}

// patches is the part of a dialect whose integration writes its entry to runtimePatches.
type patches struct{}

// Field returns runtimePatches.
func (patches) Field() string { return RuntimePatches }

// Keyed reports true.
func (patches) Keyed() bool { return true }

// Own returns the integration's entry of the TrainJob, nil where it has none.
func (patches) Own(job *api.TrainJob) *trainerapi.RuntimePatch {
	if i := OwnIndex(job); i >= 0 {
		return &job.Spec.RuntimePatches[i]
	}
	return nil
}

// Record returns nil: the entry is found by its manager.
func (patches) Record(*api.TrainJob, *trainerapi.RuntimePatch) (*Record, error) { return nil, nil }

// Foreign reports whether there is a Record: only lists have one.
func (patches) Foreign(record *Record) bool { return record != nil && record.Field != RuntimePatches }

// Uncarried returns nil: an entry of runtimePatches holds all that admission needs.
func (patches) Uncarried([]Entry, trainerapi.ReplicatedJobPatch, Needs) *Uncarried { return nil }

// patchEntries returns the entries of runtimePatches.
func patchEntries(job *api.TrainJob) []Entry {
	entries := make([]Entry, 0, len(job.Spec.RuntimePatches))
	for i := range job.Spec.RuntimePatches {
		patch := &job.Spec.RuntimePatches[i]
		entries = append(entries, Entry{
			Manager: patch.Manager, Time: patch.Time, Patch: patch.TrainingRuntimeSpec,
			shape: RuntimePatches, root: patchesPath.Key(patch.Manager),
		})
	}
	return entries
}

// ownEntry returns the integration's entry as it is among the others.
func ownEntry(own trainerapi.RuntimePatch) Entry {
	return Entry{
		Manager: Manager, Patch: own.TrainingRuntimeSpec, shape: RuntimePatches, root: patchesPath.Key(Manager),
	}
}

// withoutOwn returns the entries that are not the integration's. It changes the given slice.
func withoutOwn(entries []Entry) []Entry {
	return slices.DeleteFunc(entries, isOwn)
}

// replaceOwn returns the entries with the integration's in the place of the one that is there, or as the last.
func replaceOwn(entries []Entry, own trainerapi.RuntimePatch) []Entry {
	if i := slices.IndexFunc(entries, isOwn); i >= 0 {
		entries[i] = ownEntry(own)
		return entries
	}
	return append(entries, ownEntry(own))
}

func isOwn(e Entry) bool { return e.Manager == Manager }
