package overrides

import (
	"fmt"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// Times returns the times that an update (before is nil for a creation) has to set, by the JSON pointer of each. An
// entry keeps its time while its content is the same; a new or changed one gets now. trusted is set for the
// integration, whose own entry keeps the time that it sends.
func Times(before, after *api.TrainJob, now metav1.Time, trusted bool) map[string]metav1.Time {
	if before == nil {
		before = &api.TrainJob{}
	}
	times := map[string]metav1.Time{}
	for i := range after.Spec.RuntimePatches {
		entry := &after.Spec.RuntimePatches[i]
		old := first(before.Spec.RuntimePatches, func(e *trainerapi.RuntimePatch) bool { return e.Manager == entry.Manager })
		if is := timeOf(old, entry, now, trusted); is != nil {
			times[fmt.Sprintf("/spec/%s/%d/time", RuntimePatches, i)] = *is
		}
	}
	return times
}

// timeOf returns the time that an entry of runtimePatches has to get, nil where it has it. old is nil where it is new.
func timeOf(old, entry *trainerapi.RuntimePatch, now metav1.Time, trusted bool) *metav1.Time {
	switch {
	case old == nil || trusted && entry.Manager == Manager:
		if entry.Time == nil {
			return &now
		}
		return nil
	case !sameButTime(*old, *entry), old.Time == nil && entry.Time == nil:
		return &now
	case old.Time == nil || old.Time.Equal(entry.Time):
		return nil
	}
	return old.Time
}
