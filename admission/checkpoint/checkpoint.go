// Package checkpoint knows what a TrainJob has saved of its work, and for how long a preemption waits until it saves
// again. It reads and writes nothing.
//
// A training process reports metrics by Trainer's status server. One of them, which the runtime or the TrainJob names,
// says what was saved last, a step for example: when its value changes, the work until then is safe. Processes may
// report what they like of themselves. What that buys is bounded by the admin's limit.
package checkpoint

import (
	"fmt"
	"slices"
	"time"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/workload"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// Annotations of a Workload whose TrainJob runs on after a preemption. Signalbox writes both when it first sees the
// eviction, and removes them when it stops the TrainJob.
const (
	// UntilAnnotation is until when, at the latest, it runs on: a time in RFC 3339. It is for those who wait for the
	// quota, and never extends the time.
	UntilAnnotation = "signalbox.dev/checkpoint-until"
	// BeforeAnnotation is the value of its last checkpoint then: another one is what it waits for.
	BeforeAnnotation = "signalbox.dev/checkpoint-before"
)

// maxMetric is the longest name of a metric (Trainer v2.3.0, trainer/v1alpha1, Metric).
const maxMetric = 64

// Metric returns the name of the metric that says what a TrainJob has saved, by its own annotation or by that of its
// runtime's template, which its JobSet has; "" for none. js may be nil.
func Metric(job *api.TrainJob, js *jobset.JobSet) string {
	if name, set := job.Annotations[api.CheckpointMetricAnnotation]; set || js == nil {
		return name
	}
	return js.Annotations[api.CheckpointMetricAnnotation]
}

// Saved returns the last checkpoint of a TrainJob: the written one or, if its metric has another value, one that is
// seen now. It is nil for a TrainJob that reports none. js may be nil.
func Saved(job *api.TrainJob, js *jobset.JobSet, now time.Time) *api.Checkpoint {
	written, reported := job.Status.Checkpoint, job.Status.TrainerStatus
	name := Metric(job, js)
	if name == "" || reported == nil {
		return written
	}
	// A list may have a name twice: the first counts.
	i := slices.IndexFunc(reported.Metrics, func(m trainerapi.Metric) bool { return m.Name == name })
	if i < 0 || written != nil && written.Value == reported.Metrics[i].Value {
		return written
	}
	return &api.Checkpoint{Time: metav1.NewTime(now), Value: reported.Metrics[i].Value}
}

// Preempted reports whether a TrainJob's Workload was preempted and nothing else has happened to it since: Kueue evicts
// none twice. One without quota can't run on.
func Preempted(wl *kueue.Workload) bool {
	c := apimeta.FindStatusCondition(wl.Status.Conditions, kueue.WorkloadEvicted)
	return c != nil && c.Status == metav1.ConditionTrue && c.Reason == kueue.WorkloadEvictedByPreemption &&
		workload.HasQuotaReservation(wl) && workload.IsActive(wl) && !workload.HasRetryChecks(wl) &&
		!workload.HasRejectedChecks(wl) &&
		!apimeta.IsStatusConditionTrue(wl.Status.Conditions, kueue.WorkloadDeactivationTarget)
}

// Awaited returns until when a TrainJob whose Workload was preempted runs on, so that it saves its work: until its next
// checkpoint, and for within, or less if its annotation says so, after the eviction. It is zero if it is to be stopped
// now: every other eviction is urgent, and one that reports no checkpoints has nothing to wait for. saved is what Saved
// returns.
func Awaited(
	job *api.TrainJob, wl *kueue.Workload, saved *api.Checkpoint, within time.Duration, now time.Time,
) time.Time {
	within = Within(job, within)
	if saved == nil || !Preempted(wl) {
		return time.Time{}
	}
	evicted := apimeta.FindStatusCondition(wl.Status.Conditions, kueue.WorkloadEvicted).LastTransitionTime.Time
	if evicted.Sub(now) > skew {
		return time.Time{}
	}
	if now.Before(evicted) { // Kueue's clock is ahead
		evicted = now
	}
	until := evicted.Add(within)
	told, err := time.Parse(time.RFC3339, wl.Annotations[UntilAnnotation])
	switch first := err != nil || !told.After(evicted); { // else it is of an earlier eviction
	case first && !saved.Time.Time.Before(evicted), !first && saved.Value != wl.Annotations[BeforeAnnotation]:
		return time.Time{}
	case !first && told.Before(until):
		until = told
	}
	if !now.Before(until) {
		return time.Time{}
	}
	return until
}

// Within returns for how long a TrainJob may wait for a checkpoint: what the admin says, or its user if that is less.
func Within(job *api.TrainJob, within time.Duration) time.Duration {
	own, set := job.Annotations[api.CheckpointWithinAnnotation]
	if !set {
		return within
	}
	shorter, err := time.ParseDuration(own)
	if err != nil {
		return 0 // refused by the webhook, unless that was down
	}
	return min(within, shorter)
}

// skew is how far Kueue's clock may be ahead. What is later is no time of Kueue's.
const skew = time.Minute

// Announced returns until when a preempted TrainJob runs on at the latest, as its Workload says; zero if it doesn't. It
// passes on only what Signalbox may have written: others may write the annotation of Workloads that are no TrainJob's.
func Announced(wl *kueue.Workload, now time.Time) time.Time {
	until, err := time.Parse(time.RFC3339, wl.Annotations[UntilAnnotation])
	owner := metav1.GetControllerOf(wl)
	if err != nil || !Preempted(wl) || !now.Before(until) || owner == nil || owner.Kind != trainerapi.TrainJobKind {
		return time.Time{}
	}
	evicted := apimeta.FindStatusCondition(wl.Status.Conditions, kueue.WorkloadEvicted).LastTransitionTime
	if until.Sub(evicted.Time) > api.MaxCheckpointWithin {
		return time.Time{}
	}
	return until
}

// CheckRuntime returns an error for each annotation of a runtime that is invalid.
func CheckRuntime(annotations map[string]string, path *field.Path) field.ErrorList {
	errs := Check(annotations, path)
	if within, set := annotations[api.CheckpointWithinAnnotation]; set && len(errs) == 0 {
		errs = append(errs, field.Invalid(path.Key(api.CheckpointWithinAnnotation), within,
			"is for TrainJobs alone; remove it from the runtime"))
	}
	return errs
}

// Check returns an error for each annotation of a TrainJob that is invalid.
func Check(annotations map[string]string, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if name, set := annotations[api.CheckpointMetricAnnotation]; set && (name == "" || len(name) > maxMetric) {
		errs = append(errs, field.Invalid(path.Key(api.CheckpointMetricAnnotation), name, fmt.Sprintf(
			"must be the name of a metric that the training process reports, of 1 to %d bytes; or remove it", maxMetric)))
	}
	if within, set := annotations[api.CheckpointWithinAnnotation]; set {
		if d, err := time.ParseDuration(within); err != nil || d < 0 {
			errs = append(errs, field.Invalid(path.Key(api.CheckpointWithinAnnotation), within,
				"must be a duration such as 90s or 2m, and 0s to be stopped at once; or remove it"))
		}
	}
	return errs
}
