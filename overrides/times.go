package overrides

import (
	"fmt"
	"slices"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// Times returns the times that an update (before is nil for a creation) has to set, by the JSON pointer of each. An
// entry keeps its time while its content is the same; a new or changed one gets now. trusted is set for the
// integration, whose own entry keeps the time that it sends. An entry of templateOverrides keeps the time that it is
// sent with. One that is sent without a time gets that of an earlier entry with the same content, or now.
func Times(before, after *api.TrainJob, now metav1.Time, trusted bool) map[string]metav1.Time {
	if before == nil {
		before = &api.TrainJob{}
	}
	s := stamps{now: now, times: map[string]metav1.Time{}}
	for i := range after.Spec.RuntimePatches {
		entry, pointer := &after.Spec.RuntimePatches[i], fmt.Sprintf("/spec/%s/%d/time", RuntimePatches, i)
		if is := s.of(first(before.Spec.RuntimePatches, sameManager(entry)), entry, trusted); is != nil {
			s.times[pointer] = *is
		}
	}
	for i := range after.Spec.TemplateOverrides {
		entry, pointer := &after.Spec.TemplateOverrides[i], fmt.Sprintf("/spec/%s/%d", TemplateOverrides, i)
		old := first(before.Spec.TemplateOverrides, func(o *api.TemplateOverride) bool { return o.Manager == entry.Manager })
		if old == nil {
			old = &api.TemplateOverride{}
		}
		historyTimes(s, pointer+"/job", old.Job, entry.Job, jobTime)
		historyTimes(s, pointer+"/pod", old.Pod, entry.Pod, podTime)
	}
	return s.times
}

func sameManager(entry *trainerapi.RuntimePatch) func(*trainerapi.RuntimePatch) bool {
	return func(e *trainerapi.RuntimePatch) bool { return e.Manager == entry.Manager }
}

// stamps are the times that an update at now has to set, by their JSON pointers.
type stamps struct {
	now   metav1.Time
	times map[string]metav1.Time
}

// of returns the time that an entry of runtimePatches has to get, nil where it has it. old is nil where it is new.
func (s stamps) of(old, entry *trainerapi.RuntimePatch, trusted bool) *metav1.Time {
	switch {
	case old == nil || trusted && entry.Manager == Manager:
		if entry.Time == nil {
			return &s.now
		}
		return nil
	case !equality.Semantic.DeepEqual(timeless([]trainerapi.RuntimePatch{*old}),
		timeless([]trainerapi.RuntimePatch{*entry})):
		return &s.now
	case old.Time == nil && entry.Time == nil:
		return &s.now
	case old.Time == nil || old.Time.Equal(entry.Time):
		return nil
	}
	return old.Time
}

func jobTime(e *api.JobTemplateHistoryEntry) **metav1.Time { return &e.Time }

func podTime(e *api.PodTemplateHistoryEntry) **metav1.Time { return &e.Time }

// historyTimes adds the times of those entries of a history that are sent without.
func historyTimes[T any](s stamps, pointer string, old, entries []T, timeOf func(*T) **metav1.Time) {
	rest := withoutSent(old, entries, timeOf)
	for i, e := range entries {
		if *timeOf(&e) != nil {
			continue
		}
		is := s.now
		at := slices.IndexFunc(rest, func(o T) bool {
			*timeOf(&o) = nil
			return equality.Semantic.DeepEqual(o, e)
		})
		if at >= 0 {
			if was := *timeOf(&rest[at]); was != nil {
				is = *was
			}
			rest = slices.Delete(rest, at, at+1)
		}
		s.times[fmt.Sprintf("%s/%d/time", pointer, i)] = is
	}
}

// withoutSent returns the old entries that are not sent again with their times, which no other entry may get.
func withoutSent[T any](old, entries []T, timeOf func(*T) **metav1.Time) []T {
	rest := slices.Clone(old)
	for _, e := range entries {
		if *timeOf(&e) == nil {
			continue
		}
		if at := slices.IndexFunc(rest, func(o T) bool { return equality.Semantic.DeepEqual(o, e) }); at >= 0 {
			rest = slices.Delete(rest, at, at+1)
		}
	}
	return rest
}
