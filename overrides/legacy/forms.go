package legacy

import (
	"encoding/json"
	"slices"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides"
)

// The fields of a TrainJob's spec that had its entries before runtimePatches.
const (
	TemplateOverrides    = "templateOverrides"
	PodTemplateOverrides = "podTemplateOverrides"
	PodSpecOverrides     = "podSpecOverrides"
)

// podTemplateEntries returns the entries of podTemplateOverrides. replaces merges them as the operator guide describes.
func podTemplateEntries(job *api.TrainJob, replaces bool) []overrides.Entry {
	var entries []overrides.Entry
	for i := range job.Spec.PodTemplateOverrides {
		o := &job.Spec.PodTemplateOverrides[i]
		entries = append(entries, overrides.Entry{
			Replaces: replaces, Field: PodTemplateOverrides, Path: field.NewPath("spec", PodTemplateOverrides).Index(i),
			Patch: forPods(o.TargetJobs, o.Metadata, podSpec(o.Spec)),
		})
	}
	return entries
}

// listEntries returns the entries of a list without managers, as the Kubeflow Trainer merges them that has it.
func listEntries(job *api.TrainJob, field string) []overrides.Entry {
	if field == PodSpecOverrides {
		return podSpecEntries(job)
	}
	return podTemplateEntries(job, false)
}

func podSpecEntries(job *api.TrainJob) []overrides.Entry {
	var entries []overrides.Entry
	for i := range job.Spec.PodSpecOverrides {
		o := &job.Spec.PodSpecOverrides[i]
		entries = append(entries, overrides.Entry{
			Field: PodSpecOverrides, Flat: true, Path: field.NewPath("spec", PodSpecOverrides).Index(i),
			Patch: forPods(o.TargetJobs, nil, podSpec(o)),
		})
	}
	return entries
}

// jobSetEntries returns the entry of spec.labels and spec.annotations, the JobSet's metadata before runtimePatches.
func jobSetEntries(job *api.TrainJob) []overrides.Entry {
	if len(job.Spec.Labels)+len(job.Spec.Annotations) == 0 {
		return nil
	}
	meta := &metav1.ObjectMeta{Labels: job.Spec.Labels, Annotations: job.Spec.Annotations}
	return []overrides.Entry{{
		Field: "labels", Path: field.NewPath("spec"),
		Patch: &trainerapi.TrainingRuntimeSpecPatch{Template: &trainerapi.JobSetTemplatePatch{Metadata: meta}},
	}}
}

// each returns one patch for each ReplicatedJob that is named.
func each(targets []api.TargetJob, of func(name string) trainerapi.ReplicatedJobPatch) []trainerapi.ReplicatedJobPatch {
	patches := make([]trainerapi.ReplicatedJobPatch, 0, len(targets))
	for _, target := range targets {
		if !slices.ContainsFunc(patches, func(p trainerapi.ReplicatedJobPatch) bool { return p.Name == target.Name }) {
			patches = append(patches, of(target.Name))
		}
	}
	return patches
}

// forPods returns a patch of the pods of the targets. Both meta and spec may be nil.
func forPods(targets []api.TargetJob, meta *metav1.ObjectMeta,
	spec *trainerapi.PodSpecPatch) *trainerapi.TrainingRuntimeSpecPatch {
	return &trainerapi.TrainingRuntimeSpecPatch{Template: &trainerapi.JobSetTemplatePatch{
		Spec: &trainerapi.JobSetSpecPatch{
			ReplicatedJobs: each(targets, func(name string) trainerapi.ReplicatedJobPatch {
				pod := &trainerapi.PodTemplatePatch{Metadata: overrides.MetadataPatch(meta), Spec: spec}
				return trainerapi.ReplicatedJobPatch{Name: name, Template: &trainerapi.JobTemplatePatch{
					Spec: &trainerapi.JobSpecPatch{Template: pod}}}
			}),
		}}}
}

// as returns a value as another type that has the fields of it, or some of them, under the same names in JSON.
func as[T any](value any) *T {
	data, _ := json.Marshal(value) // both are types of the API
	into := new(T)
	_ = json.Unmarshal(data, into)
	return into
}

// podSpec returns what an override sets of its pods' spec, nil for none.
func podSpec[T any](override *T) *trainerapi.PodSpecPatch {
	if override == nil {
		return nil
	}
	return as[trainerapi.PodSpecPatch](override)
}
