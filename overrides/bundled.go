package overrides

import (
	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// bundled is this project's Trainer: TrainJobs have runtimePatches, templateOverrides, and podTemplateOverrides, which
// are merged as the operator guide describes. All other Trainers merge strategically, whatever the guide says.
type bundled struct {
	trainer
	patches
	// lists returns the entries of the earlier lists, without those of a Record.
	lists func(job *api.TrainJob) []Entry
}

// guideEntries returns the entries of podTemplateOverrides, merged as the operator guide describes.
func guideEntries(job *api.TrainJob) []Entry { return podTemplateEntries(job, true) }

// CountsJobs reports true.
func (d *bundled) CountsJobs() bool { return true }

// PartialAdmission reports true.
func (d *bundled) PartialAdmission() bool { return true }

// Entries returns the entries of every shape.
func (d *bundled) Entries(job *api.TrainJob) []Entry {
	return append(append(d.earlier(job), histories(job)...), patchEntries(job)...)
}

// Others returns the entries that are not the integration's.
func (d *bundled) Others(job *api.TrainJob) []Entry { return withoutOwn(d.Entries(job)) }

// With returns the entries with the integration's.
func (d *bundled) With(job *api.TrainJob, own trainerapi.RuntimePatch) []Entry {
	return replaceOwn(d.Entries(job), own)
}

// earlier returns the entries of the lists: of the TrainJob's, or of a foreign Record's.
func (d *bundled) earlier(job *api.TrainJob) []Entry {
	if record := readableRecord(job); d.Foreign(record) {
		return d.recorded(job, record)
	}
	return d.lists(job)
}

// recorded returns what a foreign Record holds, or what the users have written to the list since.
func (d *bundled) recorded(job *api.TrainJob, record *Record) []Entry {
	if !d.edited(job, record) {
		return record.entries(record.Users)
	}
	live := job.DeepCopy()
	live.Annotations, live.Spec.Labels, live.Spec.Annotations = nil, nil, nil
	live.Spec.PodTemplateOverrides = usersList(job, record)
	return d.lists(live)
}

// edited reports whether the users have changed podTemplateOverrides since another Trainer's Record was written: this
// Trainer's CRD has that list too, and it takes precedence over the Record.
func (d *bundled) edited(job *api.TrainJob, record *Record) bool {
	if record.Field != PodTemplateOverrides {
		return false
	}
	read, err := specOf(record.Users)
	return err == nil && !equality.Semantic.DeepEqual(read.Spec.PodTemplateOverrides, usersList(job, record))
}

// usersList returns podTemplateOverrides as they are on a CRD that still has them, without the integration's elements.
func usersList(job *api.TrainJob, record *Record) []api.PodTemplateOverride {
	plain, err := generic(job.Spec.PodTemplateOverrides)
	list, ok := plain.([]any)
	if err != nil || !ok {
		return nil
	}
	read, err := specOf(map[string]any{PodTemplateOverrides: record.Strip(list)})
	if err != nil {
		return nil // it was read from the TrainJob
	}
	return read.Spec.PodTemplateOverrides
}

// Migrate returns the users' list where they have changed it, and else an entry of runtimePatches.
func (d *bundled) Migrate(job *api.TrainJob, record *Record, now metav1.Time) (*Migration, error) {
	if d.edited(job, record) {
		return &Migration{List: usersList(job, record), dialect: d}, nil
	}
	return migrateToPatch(d, job, record.Field, record.entries(record.Users), now)
}

// operations removes the Record, brings the list of this Trainer's CRD to what the users have written, and adds the
// entry.
func (d *bundled) operations(job *api.TrainJob, m *Migration) ([]PatchOperation, error) {
	operations := []PatchOperation{removeRecord}
	if len(job.Spec.PodTemplateOverrides) > 0 {
		change := PatchOperation{Op: "remove", Path: "/spec/" + PodTemplateOverrides}
		if len(m.List) > 0 {
			change.Op, change.Value = "replace", m.List
		}
		operations = append(operations, change)
	}
	return append(operations, m.addPatch(job)...), nil
}

// forMemo drops Built, which is compared with Kubeflow Trainer's JobSets alone.
func (d *bundled) forMemo(e *Effective) *Effective {
	e.Built = nil
	return e
}
