// Package checkpoint knows what a TrainJob has saved of its work, and for how long a preemption waits until it saves
// again. It reads and writes nothing.
//
// A training process reports metrics by Trainer's status server. One of them, which the runtime or the TrainJob names,
// says what was saved last, a step for example: when its value changes, the work until then is safe. Processes may
// report what they like of themselves. What that buys is bounded by the admin's limit.
package checkpoint

import (
	"fmt"
	"time"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/workload"
	workloadevict "sigs.k8s.io/kueue/pkg/workload/evict"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// UntilAnnotation on a Workload is until when, at the latest, its TrainJob runs on after a preemption: a time in
// RFC 3339. It is for those who wait for the quota; what decides is the eviction's own time.
const UntilAnnotation = "signalbox.dev/checkpoint-until"

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
	for _, m := range reported.Metrics {
		if m.Name == name && (written == nil || written.Value != m.Value) {
			return &api.Checkpoint{Time: metav1.NewTime(now), Value: m.Value}
		}
	}
	return written
}

// Awaited returns until when a TrainJob whose Workload was preempted runs on, so that it saves its work: until its next
// checkpoint, and for within, or less if its annotation says so, after the eviction. It is zero if it is to be stopped
// now: every other eviction is urgent, and one that reports no checkpoints has nothing to wait for. saved is what Saved
// returns.
func Awaited(
	job *api.TrainJob, wl *kueue.Workload, saved *api.Checkpoint, within time.Duration, now time.Time,
) time.Time {
	if own, set := job.Annotations[api.CheckpointWithinAnnotation]; set {
		shorter, err := time.ParseDuration(own)
		if err != nil {
			return time.Time{} // refused by the webhook, unless that was down
		}
		within = min(within, shorter)
	}
	c := apimeta.FindStatusCondition(wl.Status.Conditions, kueue.WorkloadEvicted)
	if c == nil || c.Status != metav1.ConditionTrue || c.Reason != kueue.WorkloadEvictedByPreemption ||
		!workload.IsActive(wl) || saved == nil || !saved.Time.Before(&c.LastTransitionTime) {
		return time.Time{}
	}
	until := c.LastTransitionTime.Add(within)
	if !now.Before(until) || c.LastTransitionTime.Sub(now) > skew {
		return time.Time{}
	}
	return until
}

// skew is how far Kueue's clock may be ahead. What is later is no time of Kueue's.
const skew = time.Minute

// Announced returns until when a preempted TrainJob runs on at the latest, as its Workload says; zero if it doesn't.
func Announced(wl *kueue.Workload, now time.Time) time.Time {
	until, err := time.Parse(time.RFC3339, wl.Annotations[UntilAnnotation])
	if err != nil || !workloadevict.IsEvicted(wl) || !workload.HasQuotaReservation(wl) || !now.Before(until) {
		return time.Time{}
	}
	return until
}

// Check returns an error for each annotation of a TrainJob or a runtime's template that is invalid.
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
