package admission

import (
	"fmt"
	"slices"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/constants"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides"
	"github.com/signalbox-dev/signalbox/overrides/dialect"
)

// Features are the feature gates of Kueue that a start depends on.
type Features struct {
	// TopologyAware gates pods until their topology is assigned (gate TopologyAwareScheduling).
	TopologyAware bool
	// QueueLabels labels pods with their queues (gate AssignQueueLabelsForPods).
	QueueLabels bool
}

// Input is all that a start is decided on.
type Input struct {
	Job     *api.TrainJob
	Runtime *trainerapi.TrainingRuntimeSpec
	// Dialect of the Trainer that is to run it.
	Dialect *dialect.Dialect
	// Effective is what the TrainJob runs with the entries of others alone; nil computes it.
	Effective *overrides.Effective
	// Workload is admitted: status.admission is set.
	Workload *kueue.Workload
	// Flavors holds every ResourceFlavor that the admission assigns.
	Flavors  map[kueue.ResourceFlavorReference]kueue.ResourceFlavorSpec
	Features Features
	// KeepsOff are the hosts that the pods keep off.
	KeepsOff []string
	// Now becomes the entry's time. Trainer's webhook sets it where it is missing, and then rewrites the whole object.
	Now metav1.Time
}

// ConflictError says that something contradicts what admission needs. A retry doesn't help: one of the two has
// to be changed.
type ConflictError overrides.Conflict

// Error implements error.
func (e *ConflictError) Error() string {
	return fmt.Sprintf("%s is %q, but %s needs %q; %s", e.Path, e.Says, e.Source, e.Needs, e.WayOut)
}

// Limits of an entry (Trainer v2.3.0's CRD).
const (
	maxTolerations = 128
	maxGates       = 16
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
