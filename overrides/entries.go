package overrides

import (
	"slices"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Manager names the entry of runtimePatches that belongs to the integration. It is the name that Kueue's built-in
// integration uses, so that a job that it has admitted is taken over without a second, stale entry.
const Manager = "kueue.x-k8s.io/manager"

// Own returns the integration's entry of the TrainJob, or nil where it has none.
func Own(job *trainer.TrainJob) *trainer.RuntimePatch {
	if i := OwnIndex(job); i >= 0 {
		return &job.Spec.RuntimePatches[i]
	}
	return nil
}

// OwnIndex is where the integration's entry stands in the TrainJob's list, -1 where it has none.
func OwnIndex(job *trainer.TrainJob) int {
	return slices.IndexFunc(job.Spec.RuntimePatches, func(p trainer.RuntimePatch) bool { return p.Manager == Manager })
}

// Others returns the entries that are not the integration's, in their order.
func Others(job *trainer.TrainJob) []trainer.RuntimePatch {
	others := make([]trainer.RuntimePatch, 0, len(job.Spec.RuntimePatches))
	for _, p := range job.Spec.RuntimePatches {
		if p.Manager != Manager {
			others = append(others, p)
		}
	}
	return others
}

// With returns the entries as they stand after the integration has written its own: in the place of the one it has, or
// as the last.
func With(job *trainer.TrainJob, own trainer.RuntimePatch) []trainer.RuntimePatch {
	entries := slices.Clone(job.Spec.RuntimePatches)
	if i := OwnIndex(job); i >= 0 {
		entries[i] = own
		return entries
	}
	return append(entries, own)
}

// OwnLast returns the entries with the integration's moved to the end, where no other can override it, and whether that
// changed anything. Entries apply in the order of the list, and tolerations are replaced as a whole by the last.
func OwnLast(entries []trainer.RuntimePatch) ([]trainer.RuntimePatch, bool) {
	i := slices.IndexFunc(entries, func(p trainer.RuntimePatch) bool { return p.Manager == Manager })
	if i < 0 || i == len(entries)-1 {
		return entries, false
	}
	moved := slices.Delete(slices.Clone(entries), i, i+1)
	return append(moved, entries[i]), true
}

// PodPatch returns what an entry says of the pods of a ReplicatedJob; both results may be nil.
func PodPatch(entry trainer.RuntimePatch, replicatedJob string) (*metav1.ObjectMeta, *trainer.PodSpecPatch) {
	spec := entry.TrainingRuntimeSpec
	if spec == nil || spec.Template == nil || spec.Template.Spec == nil {
		return nil, nil
	}
	for _, rj := range spec.Template.Spec.ReplicatedJobs {
		if rj.Name != replicatedJob {
			continue
		}
		if rj.Template == nil || rj.Template.Spec == nil || rj.Template.Spec.Template == nil {
			return nil, nil
		}
		return rj.Template.Spec.Template.Metadata, rj.Template.Spec.Template.Spec
	}
	return nil, nil
}

// Field is a part of a pod template that admission sets.
type Field string

// The fields that admission sets, by their names in a pod template.
const (
	Labels          Field = "metadata.labels"
	Annotations     Field = "metadata.annotations"
	NodeSelector    Field = "spec.nodeSelector"
	Tolerations     Field = "spec.tolerations"
	SchedulingGates Field = "spec.schedulingGates"
)

// Setter returns the manager of the last entry that sets the key of the field for the ReplicatedJob (of any key where
// key is empty), or "" where none does and the value is the runtime's.
func Setter(entries []trainer.RuntimePatch, replicatedJob string, field Field, key string) string {
	for _, entry := range slices.Backward(entries) {
		if entry.Manager == Manager {
			continue
		}
		meta, spec := PodPatch(entry, replicatedJob)
		if sets(meta, spec, field, key) {
			return entry.Manager
		}
	}
	return ""
}

func sets(meta *metav1.ObjectMeta, spec *trainer.PodSpecPatch, field Field, key string) bool {
	inMap := func(m map[string]string) bool {
		_, found := m[key]
		return found || key == "" && len(m) > 0
	}
	switch field {
	case Labels:
		return meta != nil && inMap(meta.Labels)
	case Annotations:
		return meta != nil && inMap(meta.Annotations)
	case NodeSelector:
		return spec != nil && inMap(spec.NodeSelector)
	case Tolerations:
		return spec != nil && len(spec.Tolerations) > 0
	case SchedulingGates:
		return spec != nil && slices.ContainsFunc(spec.SchedulingGates, func(g corev1.PodSchedulingGate) bool { return key == "" || g.Name == key })
	}
	return false
}
