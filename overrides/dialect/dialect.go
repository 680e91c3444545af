// Package dialect knows the Trainers: which fields of a TrainJob each reads entries of, and by which rules it makes
// pods of them. Nothing else names a version of Kubeflow Trainer.
package dialect

import (
	"fmt"
	"slices"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides"
	"github.com/signalbox-dev/signalbox/overrides/legacy"
	"github.com/signalbox-dev/signalbox/overrides/pipeline"
)

// Traits are the facts about a Trainer.
type Traits struct {
	// Name of the Trainer, for messages and logs. No two Trainers have the same.
	Name string
	// Field of a TrainJob's spec that holds the integration's entry.
	Field string
	// CountsJobs is set if the Trainer keeps status.jobsStatus, which v2.0 has and leaves empty.
	CountsJobs bool
	// PartialAdmission is set if the Trainer runs a TrainJob with the nodes that it was admitted with, if those are fewer
	// than it requests. To Kubeflow Trainer the number of nodes is the one in spec.trainer.
	PartialAdmission bool
	// Snapshots is set if the Trainer keeps the runtime that a TrainJob runs on in a ConfigMap.
	Snapshots bool
}

// Dialect is how a Trainer reads what a TrainJob changes of its runtime, and makes pods of the result. Dialects are the
// package's variables, and are compared with ==.
type Dialect struct {
	Traits
	Rules pipeline.Rules
	legacy.Reader
	// List holds the integration's entry; nil for a Trainer whose entries are keyed by their managers.
	List *legacy.List
}

// The dialects of the Trainers that are known.
var (
	// Bundled is this project's Trainer. TrainJobs have runtimePatches, templateOverrides, and podTemplateOverrides.
	Bundled = &Dialect{
		Traits: Traits{
			Name: "the bundled Trainer", Field: overrides.RuntimePatches, CountsJobs: true, PartialAdmission: true,
		},
		Rules: pipeline.Rules{Amends: true}, Reader: legacy.Guide,
	}
	Kubeflow23 = &Dialect{
		Traits: Traits{Name: "Kubeflow Trainer v2.3", Field: overrides.RuntimePatches, CountsJobs: true, Snapshots: true},
		Reader: legacy.Recorded,
	}
	Kubeflow22 = &Dialect{
		Traits: Traits{Name: "Kubeflow Trainer v2.2", Field: overrides.RuntimePatches, CountsJobs: true},
		Rules:  pipeline.Rules{Replaces: true}, Reader: legacy.Recorded,
	}
	Kubeflow21 = &Dialect{
		Traits: Traits{Name: "Kubeflow Trainer v2.1", Field: legacy.PodTemplateOverrides, CountsJobs: true},
		Rules:  pipeline.Rules{Replaces: true}, Reader: legacy.PodTemplateList, List: legacy.PodTemplateList,
	}
	Kubeflow20 = &Dialect{
		Traits: Traits{Name: "Kubeflow Trainer v2.0", Field: legacy.PodSpecOverrides},
		Rules:  pipeline.Rules{Replaces: true, LauncherAlone: true}, Reader: legacy.PodSpecList, List: legacy.PodSpecList,
	}
)

// Kubeflow returns the dialect of a Kubeflow Trainer by the fields of its TrainJobs' spec. has reports whether there is
// one at a path, which goes through the items of lists.
func Kubeflow(has func(path ...string) bool) (*Dialect, error) {
	if has(overrides.RuntimePatches, "trainingRuntimeSpec", "template", "spec", "replicatedJobs", "template", "spec",
		"template", "spec", "terminationGracePeriodSeconds") {
		return Kubeflow23, nil
	}
	for _, d := range []*Dialect{Kubeflow22, Kubeflow21, Kubeflow20} {
		if has(d.Field) {
			return d, nil
		}
	}
	return nil, fmt.Errorf("has none of spec.%s, spec.%s and spec.%s: it is of no Kubeflow Trainer from v2.0 to v2.3; "+
		"install one of these", Kubeflow22.Field, Kubeflow21.Field, Kubeflow20.Field)
}

// IsBundled reports whether TrainJobs are the bundled Trainer's: they alone have two kinds of overrides.
func IsBundled(has func(path ...string) bool) bool {
	return has(overrides.RuntimePatches) && has(legacy.PodTemplateOverrides)
}

// Keyed reports whether entries are keyed by their managers. In a list that is not, a Record marks the integration's
// elements.
func (d *Dialect) Keyed() bool { return d.List == nil }

// Own returns the integration's entry of the TrainJob, nil where it has none.
func (d *Dialect) Own(job *api.TrainJob) *trainerapi.RuntimePatch {
	if d.List != nil {
		return d.List.Own(job)
	}
	if i := overrides.OwnIndex(job); i >= 0 {
		return &job.Spec.RuntimePatches[i]
	}
	return nil
}

// Entries returns all that the TrainJob changes of its runtime, in the order in which it is merged: runtimePatches take
// precedence over templateOverrides, these over podTemplateOverrides, and within each the later over the earlier.
func (d *Dialect) Entries(job *api.TrainJob) []overrides.Entry {
	return append(d.Reader.Entries(job), overrides.PatchEntries(job)...)
}

// Others returns the entries that are not the integration's.
func (d *Dialect) Others(job *api.TrainJob) []overrides.Entry {
	return slices.DeleteFunc(d.Entries(job), overrides.Entry.IsOwn)
}

// With returns the entries as they are after the integration has written its own: in the place of the one it has, or as
// the last. Its elements are the last of a list.
func (d *Dialect) With(job *api.TrainJob, own trainerapi.RuntimePatch) []overrides.Entry {
	entries := d.Entries(job)
	if i := slices.IndexFunc(entries, overrides.Entry.IsOwn); i >= 0 && d.Keyed() {
		entries[i] = overrides.PatchEntry(own)
		return entries
	}
	return append(slices.DeleteFunc(entries, overrides.Entry.IsOwn), overrides.PatchEntry(own))
}

// Foreign reports whether a Record (nil for none) was written for another Trainer's field, so that its elements have to
// be migrated.
func (d *Dialect) Foreign(record *legacy.Record) bool {
	return record != nil && record.Field != d.Field
}

// Record returns the TrainJob's Record with the entry as the integration's, nil if entries are keyed.
func (d *Dialect) Record(job *api.TrainJob, own *trainerapi.RuntimePatch) (*legacy.Record, error) {
	if d.List == nil {
		return nil, nil
	}
	return d.List.Record(job, own)
}

// Compute returns what the TrainJob runs with the given entries on the runtime, as the Trainer builds it.
func (d *Dialect) Compute(
	job *api.TrainJob, runtime *trainerapi.TrainingRuntimeSpec, entries []overrides.Entry,
) (*overrides.Effective, error) {
	return overrides.Compute(d.Rules, job, runtime, entries)
}

// Done returns the status of the Jobs of a TrainJob without what was done for something else than the TrainJob is now
// (overrides.Done).
func (d *Dialect) Done(job *api.TrainJob, runtime *trainerapi.TrainingRuntimeSpec) []trainerapi.JobStatus {
	return overrides.Done(d.Rules, job, runtime, d.Others(job))
}

// Initializers returns what each initializer of a TrainJob is (overrides.Initializers).
func (d *Dialect) Initializers(job *api.TrainJob, runtime *trainerapi.TrainingRuntimeSpec) map[string]string {
	return overrides.Initializers(d.Rules, job, runtime, d.Others(job))
}

// Unused returns warnings about the fields of a TrainJob that have no effect on the runtime (overrides.Unused).
func (d *Dialect) Unused(job *api.TrainJob, runtime *trainerapi.TrainingRuntimeSpec) []string {
	return overrides.Unused(d.Rules, job, runtime, d.Others(job))
}
