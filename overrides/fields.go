package overrides

import (
	"cmp"
	"slices"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

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

// Setter returns the last entry but the integration's that sets the key of the field for the ReplicatedJob (any key
// where key is empty), or nil where none does and the value is the runtime's.
func Setter(entries []Entry, replicatedJob string, field Field, key string) *Entry {
	for i := range slices.Backward(entries) {
		if entries[i].Manager == Manager {
			continue
		}
		meta, spec := PodPatch(entries[i].Patch, replicatedJob)
		if setsField(meta, spec, field, key) {
			return &entries[i]
		}
	}
	return nil
}

// setsField reports whether a patch of pods sets the key of the field, or any key where key is empty.
func setsField(meta *metav1.ObjectMeta, spec *trainerapi.PodSpecPatch, field Field, key string) bool {
	meta, spec = cmp.Or(meta, &metav1.ObjectMeta{}), cmp.Or(spec, &trainerapi.PodSpecPatch{})
	switch field {
	case Labels:
		return hasKey(meta.Labels, key)
	case Annotations:
		return hasKey(meta.Annotations, key)
	case NodeSelector:
		return hasKey(spec.NodeSelector, key)
	case Tolerations:
		return len(spec.Tolerations) > 0
	case SchedulingGates:
		is := func(g corev1.PodSchedulingGate) bool { return key == "" || g.Name == key }
		return slices.ContainsFunc(spec.SchedulingGates, is)
	}
	return false
}

func hasKey(values map[string]string, key string) bool {
	_, found := values[key]
	return found || key == "" && len(values) > 0
}
