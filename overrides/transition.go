package overrides

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides/pipeline"
)

// Changed returns runtimePatches if an update changes them in more than their time, nil if it doesn't.
func Changed(before, after *api.TrainJob) *field.Path {
	if slices.EqualFunc(before.Spec.RuntimePatches, after.Spec.RuntimePatches, sameButTime) {
		return nil
	}
	return patchesPath
}

func sameButTime(a, b trainerapi.RuntimePatch) bool {
	a.Time, b.Time = nil, nil
	return equality.Semantic.DeepEqual(a, b)
}

// CheckTransition returns errors where an update changes the entries, in the field of the given path (nil for none),
// while they may not change. They may not while the TrainJob runs before and after it, and while a ReplicatedJob of its
// JobSet (nil where there is none) is still active.
func CheckTransition(path *field.Path, before, after *api.TrainJob, js *jobset.JobSet) field.ErrorList {
	if path == nil {
		return nil
	}
	what := changedEntries(path, before.Spec.RuntimePatches, after.Spec.RuntimePatches)
	if !ptr.Deref(before.Spec.Suspend, false) && !ptr.Deref(after.Spec.Suspend, false) {
		return field.ErrorList{field.Forbidden(path,
			what+" can't change while the TrainJob runs; suspend it before, or in the same update")}
	}
	if js == nil {
		return nil
	}
	var errs field.ErrorList
	for _, status := range js.Status.ReplicatedJobsStatus {
		if status.Active > 0 {
			errs = append(errs, field.Forbidden(path, fmt.Sprintf("%s can't change while replicatedJob %q of the last run is "+
				"still active (%d); try again when it has stopped", what, status.Name, status.Active)))
		}
	}
	return errs
}

// changedEntries names the entries that an update changes, for messages. path is the field that it changes.
func changedEntries(path *field.Path, before, after []trainerapi.RuntimePatch) string {
	if path != patchesPath {
		return "its entries"
	}
	changed := sets.New[string]()
	for _, lists := range [][2][]trainerapi.RuntimePatch{{before, after}, {after, before}} {
		for _, entry := range lists[0] {
			same := func(e trainerapi.RuntimePatch) bool { return sameButTime(e, entry) }
			if !slices.ContainsFunc(lists[1], same) {
				changed.Insert(entry.Manager)
			}
		}
	}
	if len(changed) == 0 {
		return "the order of the entries"
	}
	return "the entry of " + strings.Join(sets.List(changed), ", ")
}

// CheckFrozen returns an error for each field but the entries that an update changes, unless the TrainJob is suspended
// before and after it, and whether it changes any. The CRD refuses a changed value too, but not one that is added or
// removed.
func CheckFrozen(before, after *api.TrainJob) (errs field.ErrorList, changed bool) {
	was, is, path := &before.Spec, &after.Spec, field.NewPath("spec")
	suspended := ptr.Deref(was.Suspend, false) && ptr.Deref(is.Suspend, false)
	for _, frozen := range []struct {
		name    string
		was, is any
	}{
		{"runtimeRef", was.RuntimeRef, is.RuntimeRef},
		{"initializer", was.Initializer, is.Initializer},
		{"trainer", was.Trainer, is.Trainer},
		{"activeDeadlineSeconds", was.ActiveDeadlineSeconds, is.ActiveDeadlineSeconds},
		{"managedBy", was.ManagedBy, is.ManagedBy},
	} {
		if equality.Semantic.DeepEqual(frozen.was, frozen.is) {
			continue
		}
		changed = true
		if !suspended {
			errs = append(errs, field.Forbidden(path.Child(frozen.name), "it can't change while the TrainJob runs, nor in the "+
				"update that starts or stops it; create another TrainJob"))
		}
	}
	return errs, changed
}

// Times returns the times that an update (before is nil for a creation) has to set, by the JSON pointer of each. An
// entry keeps its time while its content is the same; a new or changed one gets now. trusted is set for the
// integration, whose own entry keeps the time that it sends.
func Times(before, after *api.TrainJob, now metav1.Time, trusted bool) map[string]metav1.Time {
	before = cmp.Or(before, &api.TrainJob{})
	times := map[string]metav1.Time{}
	for i := range after.Spec.RuntimePatches {
		entry := &after.Spec.RuntimePatches[i]
		same := func(e *trainerapi.RuntimePatch) bool { return e.Manager == entry.Manager }
		old := pipeline.Find(before.Spec.RuntimePatches, same)
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
