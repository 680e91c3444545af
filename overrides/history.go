package overrides

import (
	"fmt"
	"slices"
	"time"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

var historiesPath = field.NewPath("spec", TemplateOverrides)

// histories returns the entries of all templateOverrides.
func histories(job *api.TrainJob) []Entry {
	var entries []Entry
	for i := range job.Spec.TemplateOverrides {
		entries = append(entries, history(&job.Spec.TemplateOverrides[i])...)
	}
	return entries
}

// history returns the entries of one manager's templateOverrides, the earliest first.
func history(o *api.TemplateOverride) []Entry {
	var all []Entry
	root := field.NewPath("spec", TemplateOverrides).Key(o.Manager)
	for i := range o.Job {
		h := &o.Job[i]
		patch := &trainerapi.TrainingRuntimeSpecPatch{Template: &trainerapi.JobSetTemplatePatch{}}
		if len(h.TargetJobs) == 0 {
			patch.Template.Metadata = named(h.Metadata)
		} else {
			patch.Template.Spec = &trainerapi.JobSetSpecPatch{
				ReplicatedJobs: each(h.TargetJobs, func(name string) trainerapi.ReplicatedJobPatch {
					return trainerapi.ReplicatedJobPatch{Name: name, Template: &trainerapi.JobTemplatePatch{
						Metadata: named(h.Metadata)}}
				})}
		}
		all = append(all, Entry{Manager: o.Manager, Time: h.Time, Patch: patch, shape: TemplateOverrides,
			root: root.Child("job").Index(i)})
	}
	for i := range o.Pod {
		h := &o.Pod[i]
		spec := (*trainerapi.PodSpecPatch)(nil)
		if h.Spec != nil {
			spec = podSpec(&h.Spec.PodTemplateSpecOverride)
			spec.SecurityContext, spec.TerminationGracePeriodSeconds = h.Spec.SecurityContext,
				h.Spec.TerminationGracePeriodSeconds
		}
		all = append(all, Entry{Manager: o.Manager, Time: h.Time, Patch: forPods(h.TargetJobs, h.Metadata, spec),
			shape: TemplateOverrides, root: root.Child("pod").Index(i)})
	}
	slices.SortStableFunc(all, func(a, b Entry) int {
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

// timelessHistories returns templateOverrides without their times.
func timelessHistories(job *api.TrainJob) []api.TemplateOverride {
	histories := job.DeepCopy().Spec.TemplateOverrides
	for _, h := range histories {
		for i := range h.Job {
			h.Job[i].Time = nil
		}
		for i := range h.Pod {
			h.Pod[i].Time = nil
		}
	}
	return histories
}

// CheckHistories returns an error for each entry of templateOverrides that an update changes or removes. It may add
// entries.
func CheckHistories(before, after *api.TrainJob) field.ErrorList {
	var errs field.ErrorList
	for i := range before.Spec.TemplateOverrides {
		was := &before.Spec.TemplateOverrides[i]
		path := historiesPath.Key(was.Manager)
		is := &api.TemplateOverride{}
		if at := slices.IndexFunc(after.Spec.TemplateOverrides, func(o api.TemplateOverride) bool {
			return o.Manager == was.Manager
		}); at >= 0 {
			is = &after.Spec.TemplateOverrides[at]
		}
		errs = append(errs, checkHistory(path.Child("job"), was.Job, is.Job,
			func(e api.JobTemplateHistoryEntry) *metav1.Time { return e.Time })...)
		errs = append(errs, checkHistory(path.Child("pod"), was.Pod, is.Pod,
			func(e api.PodTemplateHistoryEntry) *metav1.Time { return e.Time })...)
	}
	return errs
}

// checkHistory returns an error for each entry of a history that an update changes, moves or removes.
func checkHistory[T any](path *field.Path, was, is []T, timeOf func(T) *metav1.Time) field.ErrorList {
	var errs field.ErrorList
	rest := is // in their order: of two of the same time, the later in the list wins
	for i, old := range was {
		at := slices.IndexFunc(rest, func(e T) bool { return equality.Semantic.DeepEqual(e, old) })
		if at >= 0 {
			rest = rest[at+1:]
			continue
		}
		since := ""
		if t := timeOf(old); t != nil {
			since = ", of " + t.UTC().Format(time.RFC3339) + ","
		}
		errs = append(errs, field.Forbidden(path.Index(i), fmt.Sprintf(
			"entry %d%s is history: it can't be changed, moved or removed. Send it as it stands, with its time, and add an "+
				"entry after it, which takes precedence; or use spec.runtimePatches, which can be changed", i, since)))
	}
	return errs
}
