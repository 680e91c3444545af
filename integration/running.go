package integration

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/signalbox-dev/signalbox/admission"
	"github.com/signalbox-dev/signalbox/podsets"
)

// Only what uses quota holds it. A TrainJob that was started and has no pods, or pods that nothing will schedule,
// releases its quota after limits.podsWithin; condition StopOverdue is on one that was stopped and runs long after its
// grace period.

// jobBackoff is the longest time for which the Job controller waits before it replaces a pod that has failed
// (Kubernetes, pkg/controller/job, MaxJobPodFailureBackOff).
const jobBackoff = 10 * time.Minute

// startedAt returns when a TrainJob got what its pods need: its start or, if Kueue doesn't manage it, the creation of
// its JobSet; zero if it hasn't.
func startedAt(o *observed) time.Time {
	switch own := o.entry; {
	case o.managed() && own != nil && own.Time != nil && !admission.IsNeutral(own):
		return own.Time.Time
	case !o.managed() && o.jobSet != nil:
		return o.jobSet.CreationTimestamp.Time
	}
	return time.Time{}
}

// goesOn decides whether a started TrainJob still needs its quota. It doesn't if it can't be suspended and nothing of
// it runs. And it has limits.podsWithin for pods that can run: one that has lost its pods, with their node or with its
// JobSet, has as long for others, and so has each of its steps.
func (r *resolver) goesOn(ctx context.Context, o *situation) error {
	if jobSetEnd(o.jobSet) != nil {
		return nil
	}
	if o.managed() {
		if o.queue.blocked = stopRejected(o.observed); o.queue.blocked != nil {
			return nil
		}
	}
	started := startedAt(o.observed)
	if started.IsZero() {
		return nil
	}
	if o.memory.podless = shortOf(o.observed, started); o.queue.pods.missing == nil {
		return nil
	}
	r.probeRefusal(ctx, o)
	if !o.managed() {
		return nil // it has no quota to release
	}
	return r.shortage(ctx, o)
}

// shortOf returns since when pods of a TrainJob are missing that was started at a time; zero if none are.
func shortOf(o *observed, started time.Time) shortage {
	missing, short := o.queue.pods.missing, o.memory.podless
	if missing == nil {
		return shortage{}
	}
	if short.since.Before(started) || missing.Have > short.have {
		// It is of an earlier start, or there were enough when it was last looked at, or there are more than then.
		short = shortage{since: o.now}
	}
	short.have = missing.Have
	return short
}

// shortage decides whether pods have been missing for too long.
func (r *resolver) shortage(ctx context.Context, o *situation) error {
	missing := o.queue.pods.missing
	left := r.policy.PodsWithin - o.now.Sub(o.memory.podless.since)
	if left <= 0 && missing.gate == "" && !missing.suspended && o.jobSet != nil {
		jobs, err := r.store.Pods.JobsOf(ctx, o.jobSet)
		if err != nil {
			return err
		}
		if podsets.Short(o.jobSet, podsets.PodsOf(jobs)) == nil {
			o.memory.podless = shortage{} // pods that have ended are gone, with their node maybe, and no Job needs others
			return nil
		}
		if slices.ContainsFunc(jobs, podFailed) {
			left += jobBackoff
		}
	}
	if left > 0 {
		o.queue.later(left)
	} else {
		o.queue.blocked = missing.blocked(r.policy.PodsWithin, whyNoPods(o.observed))
	}
	return nil
}

// held returns why a TrainJob is kept out of its queue that had no pods when it was started; nil if it isn't. The
// condition Blocked is what remembers it. A user who stops and resumes the TrainJob has it tried again.
func (r *resolver) held(o *situation) error {
	if stoppedByUser(o.job) {
		return nil
	}
	c := blockedCondition(o.job)
	if c == nil || !admission.LackedPods(c.Reason) || c.Reason == admission.ReasonGated && !gated(o.observed) {
		return nil
	}
	left := holdsFor*r.policy.PodsWithin - o.now.Sub(c.LastTransitionTime.Time)
	if left <= 0 {
		return nil
	}
	return &admission.BlockedError{Reason: c.Reason, Err: fmt.Errorf("%s", c.Message), RetryAfter: left}
}

// gated reports whether what the TrainJob runs has scheduling gates that Kueue doesn't open.
func gated(o *observed) bool {
	for i := range o.queue.effective.ReplicatedJobs {
		for _, gate := range o.queue.effective.ReplicatedJobs[i].Template.Spec.Template.Spec.SchedulingGates {
			if !strings.HasPrefix(gate.Name, podsets.KueueGates) {
				return true
			}
		}
	}
	return false
}
