package legacy

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/conversion"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides"
)

var historiesPath = field.NewPath("spec", TemplateOverrides)

func histories(job *api.TrainJob) []overrides.Entry {
	var entries []overrides.Entry
	for i := range job.Spec.TemplateOverrides {
		entries = append(entries, history(&job.Spec.TemplateOverrides[i])...)
	}
	return entries
}

// history returns the entries of one manager's templateOverrides, the earliest first.
func history(o *api.TemplateOverride) []overrides.Entry {
	var all []overrides.Entry
	root := historiesPath.Key(o.Manager)
	for i := range o.Job {
		h := &o.Job[i]
		patch := &trainerapi.TrainingRuntimeSpecPatch{Template: &trainerapi.JobSetTemplatePatch{}}
		if len(h.TargetJobs) == 0 {
			patch.Template.Metadata = overrides.MetadataPatch(h.Metadata)
		} else {
			patch.Template.Spec = &trainerapi.JobSetSpecPatch{
				ReplicatedJobs: each(h.TargetJobs, func(name string) trainerapi.ReplicatedJobPatch {
					return trainerapi.ReplicatedJobPatch{Name: name, Template: &trainerapi.JobTemplatePatch{
						Metadata: overrides.MetadataPatch(h.Metadata)}}
				})}
		}
		all = append(all, overrides.Entry{Manager: o.Manager, Time: h.Time, Patch: patch, Field: TemplateOverrides,
			Path: root.Child("job").Index(i)})
	}
	for i := range o.Pod {
		h := &o.Pod[i]
		all = append(all, overrides.Entry{Manager: o.Manager, Time: h.Time, Field: TemplateOverrides,
			Path: root.Child("pod").Index(i), Patch: forPods(h.TargetJobs, h.Metadata, podSpec(h.Spec))})
	}
	slices.SortStableFunc(all, func(a, b overrides.Entry) int {
		switch {
		case a.Time == nil && b.Time == nil:
			return 0
		case a.Time == nil:
			return 1 // it is about to be given one
		case b.Time == nil:
			return -1
		}
		return a.Time.Compare(b.Time.Time)
	})
	return all
}

// CheckHistories returns an error for each entry of templateOverrides that an update changes or removes. It may add
// entries.
func CheckHistories(before, after *api.TrainJob) field.ErrorList {
	var errs field.ErrorList
	for i := range before.Spec.TemplateOverrides {
		was := &before.Spec.TemplateOverrides[i]
		path := historiesPath.Key(was.Manager)
		is := historyOf(after, was.Manager)
		errs = append(errs, checkHistory(path.Child("job"), was.Job, is.Job, jobTime)...)
		errs = append(errs, checkHistory(path.Child("pod"), was.Pod, is.Pod, podTime)...)
	}
	return errs
}

// historyOf returns a manager's templateOverrides, empty ones where it has none.
func historyOf(job *api.TrainJob, manager string) *api.TemplateOverride {
	of := func(o api.TemplateOverride) bool { return o.Manager == manager }
	if i := slices.IndexFunc(job.Spec.TemplateOverrides, of); i >= 0 {
		return &job.Spec.TemplateOverrides[i]
	}
	return &api.TemplateOverride{}
}

// checkHistory returns an error for each entry of a history that an update changes, moves or removes.
func checkHistory[T any](path *field.Path, was, is []T, timeOf func(*T) **metav1.Time) field.ErrorList {
	var errs field.ErrorList
	rest := is // in their order: of two of the same time, the later in the list wins
	for i, old := range was {
		at := slices.IndexFunc(rest, func(e T) bool { return equality.Semantic.DeepEqual(e, old) })
		if at >= 0 {
			rest = rest[at+1:]
			continue
		}
		since := ""
		if t := *timeOf(&old); t != nil {
			since = ", of " + t.UTC().Format(time.RFC3339) + ","
		}
		errs = append(errs, field.Forbidden(path.Index(i), fmt.Sprintf(
			"entry %d%s is history: it can't be changed, moved or removed. Send it as it stands, with its time, and add an "+
				"entry after it, which takes precedence; or use spec.runtimePatches, which can be changed", i, since)))
	}
	return errs
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

// CheckHistoryManagers returns an error for each manager of templateOverrides that is invalid, has a second entry, or
// is the integration's.
func CheckHistoryManagers(job *api.TrainJob) field.ErrorList {
	managerOf := func(o api.TemplateOverride) string { return o.Manager }
	errs := overrides.CheckManagers(historiesPath, job.Spec.TemplateOverrides, managerOf)
	own := func(o api.TemplateOverride) bool { return o.Manager == overrides.Manager }
	if i := slices.IndexFunc(job.Spec.TemplateOverrides, own); i >= 0 {
		errs = append(errs, field.Forbidden(historiesPath.Index(i).Child("manager"), fmt.Sprintf("manager %q is the "+
			"integration's, which writes to spec.%s when the TrainJob is admitted; take this out of the manifest",
			overrides.Manager, overrides.RuntimePatches)))
	}
	return errs
}

// HistoryTimes returns the times that an update has to set in templateOverrides, as Times does. An entry keeps the time
// that it is sent with. One that is sent without a time gets that of an earlier entry with the same content, or now.
func HistoryTimes(before, after *api.TrainJob, now metav1.Time) map[string]metav1.Time {
	before = cmp.Or(before, &api.TrainJob{})
	s := stamps{now: now, times: map[string]metav1.Time{}}
	for i := range after.Spec.TemplateOverrides {
		entry, pointer := &after.Spec.TemplateOverrides[i], fmt.Sprintf("/spec/%s/%d", TemplateOverrides, i)
		old := historyOf(before, entry.Manager)
		historyTimes(s, pointer+"/job", old.Job, entry.Job, jobTime)
		historyTimes(s, pointer+"/pod", old.Pod, entry.Pod, podTime)
	}
	return s.times
}

// stamps are the times that an update at now has to set, by their JSON pointers.
type stamps struct {
	now   metav1.Time
	times map[string]metav1.Time
}

// butTimes compares all but times.
var butTimes = func() conversion.Equalities {
	all := equality.Semantic.Copy()
	utilruntime.Must(all.AddFunc(func(_, _ *metav1.Time) bool { return true }))
	return all
}()

// ChangedForm returns the field of an earlier form that an update changes in more than its times, the first of several;
// nil if there is none.
func ChangedForm(before, after *api.TrainJob) *field.Path {
	switch {
	case !butTimes.DeepEqual(before.Spec.TemplateOverrides, after.Spec.TemplateOverrides):
		return historiesPath
	case !equality.Semantic.DeepEqual(before.Spec.PodTemplateOverrides, after.Spec.PodTemplateOverrides):
		return field.NewPath("spec", PodTemplateOverrides)
	}
	return nil
}
