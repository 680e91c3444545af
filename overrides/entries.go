// Package overrides holds the override contract of a TrainJob: its entries, their owners, and the pods that they make
// of the runtime. Which Trainer reads which entries is in dialect; the fields before runtimePatches are in legacy.
//
// All functions are pure. They merge runtimePatches as Kubeflow Trainer v2.2.1 and later do: Kubernetes' strategic
// merge patch of the JobSet template, entry after entry. The ML policies are Trainer's own plugins, so Trainer runs
// what is computed here.
package overrides

import (
	"slices"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	utilslices "sigs.k8s.io/kueue/pkg/util/slices"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides/pipeline"
)

// Manager is the manager of the integration's entry of runtimePatches. Kueue's built-in integration uses the same, so
// that a TrainJob that it has admitted doesn't keep a second, stale entry.
const Manager = "kueue.x-k8s.io/manager"

// Entry is one change of a runtime, in any shape.
type Entry struct {
	// Manager that owns it; "" in the shapes that have none.
	Manager string
	// Time at which it was written; nil where it is not known.
	Time *metav1.Time
	// Replaces is set where it is merged as the operator guide of podTemplateOverrides describes, and not strategically.
	Replaces bool
	// Patch is the change; nil for none.
	Patch *trainerapi.TrainingRuntimeSpecPatch

	// Field of the TrainJob's spec that it is in.
	Field string
	// Path of the entry in the TrainJob.
	Path *field.Path
	// Flat is set if it has the fields of the pods' spec itself, as in podSpecOverrides.
	Flat bool
}

// Targets reports whether the entry is for a ReplicatedJob.
func (e Entry) Targets(replicatedJob string) bool {
	return patchFor(e.Patch, replicatedJob) != nil
}

func (e Entry) targetPath(replicatedJob string) *field.Path {
	if e.Field == RuntimePatches {
		return e.Path.Child("trainingRuntimeSpec", "template", "spec", "replicatedJobs").Key(replicatedJob)
	}
	return e.Path.Child("targetJobs").Key(replicatedJob)
}

// PodPath returns the path above the metadata and spec of a ReplicatedJob's pods in the entry.
func (e Entry) PodPath(replicatedJob string) *field.Path {
	if e.Field == RuntimePatches {
		return e.targetPath(replicatedJob).Child("template", "spec", "template")
	}
	return e.Path
}

// specPath returns the path of the spec of a ReplicatedJob's pods in the entry.
func (e Entry) specPath(replicatedJob string) *field.Path {
	if e.Flat {
		return e.Path
	}
	return e.PodPath(replicatedJob).Child("spec")
}

// contentPath returns the path above all of the entry's content.
func (e Entry) contentPath() *field.Path {
	if e.Field == RuntimePatches {
		return e.Path.Child("trainingRuntimeSpec")
	}
	return e.Path
}

// OwnIndex returns the index of the integration's entry in the TrainJob's runtimePatches, -1 where it has none.
func OwnIndex(job *api.TrainJob) int {
	return slices.IndexFunc(job.Spec.RuntimePatches, func(p trainerapi.RuntimePatch) bool { return p.Manager == Manager })
}

// OwnLast returns the entries with the integration's moved to the end, where no other can override it, and whether that
// changed anything. Entries apply in the order of the list, and tolerations are replaced as a whole by the last.
func OwnLast(entries []trainerapi.RuntimePatch) ([]trainerapi.RuntimePatch, bool) {
	i := slices.IndexFunc(entries, func(p trainerapi.RuntimePatch) bool { return p.Manager == Manager })
	if i < 0 || i == len(entries)-1 {
		return entries, false
	}
	moved := slices.Delete(slices.Clone(entries), i, i+1)
	return append(moved, entries[i]), true
}

// StepsOf returns the names of the ReplicatedJobs that an entry is for.
func StepsOf(entry *trainerapi.RuntimePatch) []string {
	return utilslices.Map(ReplicatedJobsOf(entry.TrainingRuntimeSpec),
		func(rj *trainerapi.ReplicatedJobPatch) string { return rj.Name })
}

// ReplicatedJobsOf returns what a patch changes of ReplicatedJobs.
// ReplicatedJobsOf returns what a patch changes of ReplicatedJobs.
func ReplicatedJobsOf(patch *trainerapi.TrainingRuntimeSpecPatch) []trainerapi.ReplicatedJobPatch {
	if patch == nil || patch.Template == nil || patch.Template.Spec == nil {
		return nil
	}
	return patch.Template.Spec.ReplicatedJobs
}

func patchFor(patch *trainerapi.TrainingRuntimeSpecPatch, replicatedJob string) *trainerapi.ReplicatedJobPatch {
	named := func(rj *trainerapi.ReplicatedJobPatch) bool { return rj.Name == replicatedJob }
	return pipeline.Find(ReplicatedJobsOf(patch), named)
}

// jobSetMetadata returns the metadata of the JobSet in a patch; both may be nil.
func jobSetMetadata(patch *trainerapi.TrainingRuntimeSpecPatch) *metav1.ObjectMeta {
	if patch == nil || patch.Template == nil {
		return nil
	}
	return patch.Template.Metadata
}

// PodPatch returns the part of a patch for the pods of a ReplicatedJob; both results may be nil.
func PodPatch(
	spec *trainerapi.TrainingRuntimeSpecPatch, replicatedJob string,
) (*metav1.ObjectMeta, *trainerapi.PodSpecPatch) {
	return PodPatchOf(patchFor(spec, replicatedJob))
}

// PodPatchOf returns the part of a ReplicatedJob's patch for its pods; both results may be nil.
// PodPatchOf returns the part of a ReplicatedJob's patch for its pods; both results may be nil.
func PodPatchOf(rj *trainerapi.ReplicatedJobPatch) (*metav1.ObjectMeta, *trainerapi.PodSpecPatch) {
	if rj == nil || rj.Template == nil || rj.Template.Spec == nil || rj.Template.Spec.Template == nil {
		return nil, nil
	}
	return rj.Template.Spec.Template.Metadata, rj.Template.Spec.Template.Spec
}

var patchesPath = field.NewPath("spec", "runtimePatches")

// PatchEntries returns the entries of runtimePatches.
func PatchEntries(job *api.TrainJob) []Entry {
	return utilslices.Map(job.Spec.RuntimePatches, func(p *trainerapi.RuntimePatch) Entry { return PatchEntry(*p) })
}

// PatchEntry returns an entry of runtimePatches.
// PatchEntry returns an entry of runtimePatches.
func PatchEntry(patch trainerapi.RuntimePatch) Entry {
	return Entry{
		Manager: patch.Manager, Time: patch.Time, Patch: patch.TrainingRuntimeSpec,
		Field: RuntimePatches, Path: patchesPath.Key(patch.Manager),
	}
}

// IsOwn reports whether an entry is the integration's.
// IsOwn reports whether an entry is the integration's.
func (e Entry) IsOwn() bool { return e.Manager == Manager }

// bare reports whether an entry of runtimePatches has nothing but its manager.
func (e Entry) bare() bool { return e.Field == RuntimePatches && e.Patch == nil }

// RuntimePatches is the field of a TrainJob's spec that holds the entries of all managers.
const RuntimePatches = "runtimePatches"

// MaxEntries is how many entries a TrainJob may have of runtimePatches and of templateOverrides (the CRD's limit).
const MaxEntries = 16

var trainerPath = field.NewPath("spec", "trainer")
