package admission

import (
	"slices"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/kueue/pkg/constants"

	"github.com/signalbox-dev/signalbox/overrides"
)

// Neutral returns the integration's entry for a TrainJob that does not run: nothing of an admission is left in it. It
// keeps one label for each ReplicatedJob, because Trainer v2.3.0 can't apply a JobSet whose pod template had metadata
// and has none any more ("template.metadata: Invalid value: null").
func Neutral(own *trainerapi.RuntimePatch) trainerapi.RuntimePatch {
	var patches []trainerapi.ReplicatedJobPatch
	for _, name := range overrides.StepsOf(own) {
		meta := &metav1.ObjectMeta{Labels: map[string]string{constants.PodSetLabel: name}}
		patches = append(patches, podPatch(name, meta, nil))
	}
	return entry(patches, nil)
}

// IsNeutral reports whether nothing of an admission is left in the integration's entry; nil stands for no entry.
func IsNeutral(own *trainerapi.RuntimePatch) bool {
	return own == nil || !slices.ContainsFunc(overrides.StepsOf(own), func(name string) bool {
		meta, spec := overrides.PodPatch(own.TrainingRuntimeSpec, name)
		return spec != nil || meta != nil && (len(meta.Annotations) > 0 || len(meta.Labels) > 1)
	})
}

func entry(patches []trainerapi.ReplicatedJobPatch, now *metav1.Time) trainerapi.RuntimePatch {
	return trainerapi.RuntimePatch{
		Manager: overrides.Manager,
		Time:    now,
		TrainingRuntimeSpec: &trainerapi.TrainingRuntimeSpecPatch{
			Template: &trainerapi.JobSetTemplatePatch{Spec: &trainerapi.JobSetSpecPatch{ReplicatedJobs: patches}},
		},
	}
}

func podPatch(
	replicatedJob string, meta *metav1.ObjectMeta, spec *trainerapi.PodSpecPatch,
) trainerapi.ReplicatedJobPatch {
	return trainerapi.ReplicatedJobPatch{Name: replicatedJob, Template: &trainerapi.JobTemplatePatch{
		Spec: &trainerapi.JobSpecPatch{Template: &trainerapi.PodTemplatePatch{Metadata: meta, Spec: spec}},
	}}
}
