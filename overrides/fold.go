package overrides

import (
	"encoding/json"
	"slices"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
)

// fold joins entries into one patch that does what they do one after the other. A patch is a part of what it is merged
// into, so that fold merges them into an empty runtime.
func fold(entries []Entry) (*trainerapi.TrainingRuntimeSpecPatch, error) {
	merged, err := merge(emptyRuntime(entries), entries)
	if err != nil {
		return nil, err
	}
	data, err := json.Marshal(merged)
	if err != nil {
		return nil, err
	}
	spec := &trainerapi.JobSetSpecPatch{}
	if err := json.Unmarshal(data, spec); err != nil {
		return nil, err
	}
	for i := range spec.ReplicatedJobs {
		prune(spec.ReplicatedJobs[i].Template)
	}
	spec.ReplicatedJobs = slices.DeleteFunc(spec.ReplicatedJobs, func(rj trainerapi.ReplicatedJobPatch) bool {
		return rj.Template == nil || rj.Template.Metadata == nil && rj.Template.Spec == nil
	})
	patch := &trainerapi.TrainingRuntimeSpecPatch{Template: &trainerapi.JobSetTemplatePatch{Spec: spec}}
	labels, annotations := metadata(&trainerapi.TrainingRuntimeSpec{}, entries)
	if meta := (&metav1.ObjectMeta{Labels: labels, Annotations: annotations}); hasMetadata(meta) {
		patch.Template.Metadata = meta
	}
	return patch, nil
}

// emptyRuntime returns a JobSet template with nothing but the names of the entries' ReplicatedJobs.
func emptyRuntime(entries []Entry) jobset.JobSetSpec {
	var template jobset.JobSetSpec
	for _, entry := range entries {
		if entry.Patch == nil || entry.Patch.Template == nil || entry.Patch.Template.Spec == nil {
			continue
		}
		for _, rj := range entry.Patch.Template.Spec.ReplicatedJobs {
			if find(template.ReplicatedJobs, rj.Name) == nil {
				template.ReplicatedJobs = append(template.ReplicatedJobs, jobset.ReplicatedJob{Name: rj.Name})
			}
		}
	}
	return template
}

// prune removes the empty fields that a JobSet's types always write. template may be nil.
func prune(template *trainerapi.JobTemplatePatch) {
	if template == nil {
		return
	}
	if !hasMetadata(template.Metadata) {
		template.Metadata = nil
	}
	if template.Spec == nil || template.Spec.Template == nil {
		template.Spec = nil
		return
	}
	pod := template.Spec.Template
	if !hasMetadata(pod.Metadata) {
		pod.Metadata = nil
	}
	if data, err := json.Marshal(pod.Spec); err == nil && string(data) == "{}" {
		pod.Spec = nil
		if pod.Metadata == nil {
			template.Spec = nil
		}
	}
}
