package integration

import (
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/signalbox-dev/signalbox/admission"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/store"
)

// A write that the API server rejects is rejected again when it is repeated: the TrainJob is too large, or another
// client's webhook doesn't want it. Quota isn't held for it. A rejected stop deletes the JobSet all the same, and one
// that has lasted releases the quota when the pods have ended; a rejected start is repeated after longer and longer
// times, without quota.

// rejectedFor is how long a write must have been rejected before that has consequences.
const rejectedFor = time.Minute

// rejection is a write of a TrainJob that is rejected.
type rejection struct {
	since   time.Time // of the first; zero for none
	message string
}

// again returns the rejection after one more at a time.
func (r rejection) again(err error, now time.Time) rejection {
	if r.since.IsZero() {
		r.since = now
	}
	r.message = err.Error()
	return r
}

// lasts reports whether it has consequences.
func (r rejection) lasts(now time.Time) bool {
	return !r.since.IsZero() && now.Sub(r.since) >= rejectedFor
}

// setback is the starts of a TrainJob that were rejected.
type setback struct {
	rejection
	count int       // how often it has had consequences
	until time.Time // when the next start is tried
	// What the TrainJob was: another is tried at once.
	generation          int64
	labels, annotations map[string]string
}

// maxSetback is the longest time between two starts that are rejected.
const maxSetback = time.Hour

// again returns the setback after one more rejected start.
func (s setback) again(job *api.TrainJob, err error, now time.Time) setback {
	if !s.of(job) {
		s = setback{generation: job.Generation, labels: job.Labels, annotations: job.Annotations}
	}
	if s.rejection = s.rejection.again(err, now); s.lasts(now) {
		s.until = now.Add(min(rejectedFor<<min(s.count, 10), maxSetback))
		s.count++
	}
	return s
}

// startRejected remembers that the API server has rejected a start, or a write that the start waits for.
func (r *Reconciler) startRejected(o *observed, err error) {
	if store.Rejected(err) {
		r.memory.keep(o.key(), o.job.UID, func(m *record) { m.setback = m.setback.again(o.job, err, o.now) })
	}
}

// of reports whether it is about a TrainJob as it is now.
func (s setback) of(job *api.TrainJob) bool {
	return s.generation == job.Generation && maps.Equal(s.labels, job.Labels) && maps.Equal(s.annotations, job.Annotations)
}

// blocks returns why a TrainJob isn't queued for now; nil if it may be.
func (s setback) blocks(job *api.TrainJob, now time.Time) error {
	left := s.until.Sub(now)
	if left <= 0 || !s.of(job) {
		return nil
	}
	return &admission.BlockedError{Reason: ReasonStartRejected, RetryAfter: left, Err: fmt.Errorf(
		"the start is rejected: %s; change the TrainJob, or what rejects it. It is queued again at %s",
		s.message, s.until.UTC().Format(time.RFC3339))}
}

// stopRejected returns why a TrainJob that is to stop gives its quota back although it isn't suspended; nil if it
// needn't.
func stopRejected(o *observed) *admission.BlockedError {
	if r := o.memory.stopRejected; r.lasts(o.now) {
		return &admission.BlockedError{Reason: ReasonStopRejected, RetryAfter: rejectedFor, Err: errors.New(
			"it can't be suspended: " + r.message + "; its pods are deleted and its quota is released. Change what rejects it")}
	}
	return nil
}
