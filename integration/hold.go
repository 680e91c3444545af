package integration

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/signalbox-dev/signalbox/admission"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/podsets"
)

// Only what uses quota holds it. A TrainJob that was started and has no pods, or pods that nothing will schedule,
// releases its quota after limits.podsWithin; condition StopOverdue is on one that was stopped and runs long after its
// grace period.

// jobBackoff is the longest time for which the Job controller waits before it replaces a pod that has failed
// (kubernetes/pkg/controller/job, MaxJobPodFailureBackOff).
const jobBackoff = 10 * time.Minute

// observeRunning finds out whether a started TrainJob still needs its quota. It doesn't if its JobSet has ended, or if
// it can't be suspended and nothing of it runs. And it has limits.podsWithin for pods that can run: one that has lost
// its pods, with their node or with its JobSet, has as long for others, and so has each of its steps.
func (r *observer) observeRunning(ctx context.Context, o *situation) error {
	if jobSetEnd(o.jobSet) != nil {
		if !overdueEnd(o.observed) {
			return nil
		}
		return r.observeEnd(ctx, o)
	}
	if o.queue.blocked = stopRejected(o.observed); o.queue.blocked != nil {
		if o.jobSet != nil && !isKept(o.jobSet, o.now) {
			return nil
		}
		return r.observeEnd(ctx, o)
	}
	if own := o.entry; own != nil && own.Time != nil && !admission.IsNeutral(own) {
		return r.observePods(ctx, o, own.Time.Time)
	}
	return nil
}

// observePods finds out whether a TrainJob that was started at a time has the pods that it needs.
func (r *observer) observePods(ctx context.Context, o *situation, started time.Time) error {
	missing, err := r.missingPods(ctx, o)
	if err != nil {
		return err
	}
	if missing == nil {
		o.memory.podless = shortage{}
		return nil
	}
	short := o.memory.podless
	if short.since.Before(started) || missing.Have > short.have {
		// It is of an earlier start, or there were enough when it was last looked at, or there are more than then.
		short = shortage{since: o.now}
	}
	short.have = missing.Have
	o.memory.podless = short
	return r.observeShortage(ctx, o, missing)
}

// observeShortage finds out whether pods have been missing for too long.
func (r *observer) observeShortage(ctx context.Context, o *situation, missing *missingPods) error {
	r.observeRefusal(ctx, o, missing)
	if !o.managed() {
		return nil // it has no quota to release
	}
	left := r.policy.podsWithin - o.now.Sub(o.memory.podless.since)
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
		o.queue.blocked = missing.blocked(r.policy.podsWithin, whyNoPods(o.observed))
	}
	return nil
}

// held returns why a TrainJob is kept out of its queue that had no pods when it was started; nil if it isn't. The
// condition Blocked is what remembers it. A user who stops and resumes the TrainJob has it tried again.
func (r *observer) held(o *situation) error {
	if stoppedByUser(o.job) {
		return nil
	}
	c := apimeta.FindStatusCondition(o.job.Status.Conditions, api.ConditionBlocked)
	if c == nil || c.Status != metav1.ConditionTrue || !admission.LackedPods(c.Reason) {
		return nil
	}
	if c.Reason == admission.ReasonGated && !gated(o.observed) {
		return nil
	}
	left := holdsFor*r.policy.podsWithin - o.now.Sub(c.LastTransitionTime.Time)
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

// observeUnqueued finds out why a TrainJob that Kueue doesn't manage has no pods.
func (r *observer) observeUnqueued(ctx context.Context, o *situation) error {
	if o.stage != stageRunning || o.jobSet == nil || jobSetEnd(o.jobSet) != nil {
		return nil
	}
	return r.observePods(ctx, o, o.jobSet.CreationTimestamp.Time)
}
