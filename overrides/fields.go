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
	Affinity        Field = "spec.affinity"
)

// Conflict is why a start can't have what admission needs.
type Conflict struct {
	// Path names the entry (or the runtime, or the admission check) and the field in it.
	Path string
	// Says is the value there, Needs the one that Source asks for.
	Says, Needs, Source string
	// WayOut says what to change.
	WayOut string
}

// Setter returns the last entry but the integration's that sets the key of the field for the ReplicatedJob; nil where
// none does and the value is the runtime's. Tolerations and the affinity have no key.
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

func setsField(meta *metav1.ObjectMeta, spec *trainerapi.PodSpecPatch, field Field, key string) (found bool) {
	meta, spec = cmp.Or(meta, &metav1.ObjectMeta{}), cmp.Or(spec, &trainerapi.PodSpecPatch{})
	switch field {
	case Labels:
		_, found = meta.Labels[key]
	case Annotations:
		_, found = meta.Annotations[key]
	case NodeSelector:
		_, found = spec.NodeSelector[key]
	case Tolerations:
		found = len(spec.Tolerations) > 0
	case Affinity:
		found = spec.Affinity != nil
	case SchedulingGates:
		found = slices.Contains(spec.SchedulingGates, corev1.PodSchedulingGate{Name: key})
	}
	return found
}
