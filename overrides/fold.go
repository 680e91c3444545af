package overrides

import (
	"encoding/json"
	"slices"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"k8s.io/apimachinery/pkg/api/equality"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
)

// Fold joins entries into one patch that does what they do one after the other. A patch is a part of what it is merged
// into, so that fold merges them into an empty runtime.
func Fold(entries []Entry) (*trainerapi.TrainingRuntimeSpecPatch, error) {
	merged, err := Merge(emptyRuntime(entries), entries)
	if err != nil {
		return nil, err
	}
	data, err := json.Marshal(merged.Template.Spec)
	if err != nil {
		return nil, err
	}
	spec := &trainerapi.JobSetSpecPatch{}
	if err := json.Unmarshal(data, spec); err != nil {
		return nil, err
	}
	spec.ReplicatedJobs = slices.DeleteFunc(spec.ReplicatedJobs, prune)
	template := &trainerapi.JobSetTemplatePatch{Spec: spec}
	if meta := MetadataPatch(&merged.Template.ObjectMeta); hasMetadata(meta) {
		template.Metadata = meta
	}
	return &trainerapi.TrainingRuntimeSpecPatch{Template: template}, nil
}

// emptyRuntime returns a runtime with nothing but the names of the entries' ReplicatedJobs.
func emptyRuntime(entries []Entry) *trainerapi.TrainingRuntimeSpec {
	runtime := &trainerapi.TrainingRuntimeSpec{}
	spec := &runtime.Template.Spec
	for _, entry := range entries {
		for _, rj := range ReplicatedJobsOf(entry.Patch) {
			if find(spec.ReplicatedJobs, rj.Name) == nil {
				spec.ReplicatedJobs = append(spec.ReplicatedJobs, jobset.ReplicatedJob{Name: rj.Name})
			}
		}
	}
	return runtime
}

// prune removes the empty fields that a JobSet's types always write, and reports whether nothing is left of a patch.
func prune(rj trainerapi.ReplicatedJobPatch) (empty bool) {
	template := rj.Template
	if !hasMetadata(template.Metadata) {
		template.Metadata = nil
	}
	pod := template.Spec.Template
	if !hasMetadata(pod.Metadata) {
		pod.Metadata = nil
	}
	if equality.Semantic.DeepEqual(pod.Spec, &trainerapi.PodSpecPatch{}) {
		pod.Spec = nil
	}
	if pod.Metadata == nil && pod.Spec == nil {
		template.Spec = nil
	}
	return template.Metadata == nil && template.Spec == nil
}
