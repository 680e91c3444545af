package integration

import (
	"cmp"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/signalbox-dev/signalbox/admission"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/store/events"
)

// report returns the step that brings the conditions Blocked and StopOverdue up to date, with the events of those that
// are new.
func report(o *situation, p *plan) []step {
	if !o.trainer.reports(o.observed) {
		return nil
	}
	status := o.job.Status.DeepCopy()
	var told []events.Event
	changed := false
	message, again := stopOverdue(o.observed)
	p.Later(again)
	if message == "" {
		changed = apimeta.RemoveStatusCondition(&status.Conditions, api.ConditionStopOverdue)
	} else if apimeta.SetStatusCondition(&status.Conditions, metav1.Condition{
		Type: api.ConditionStopOverdue, Status: metav1.ConditionTrue, Reason: "PodsRunning", Message: message,
		ObservedGeneration: o.job.Generation, LastTransitionTime: metav1.NewTime(o.now),
	}) {
		changed = true
		told = append(told, events.StopOverdue.Of(message))
	}
	blocking, event := reportBlocked(o, p, status)
	if event != nil {
		told = append(told, *event)
	}
	shown := o.origin.show(o.observed, status)
	if !changed && !blocking && !shown {
		return nil
	}
	return []step{writeStatus{status: status, events: told}}
}

// reportBlocked brings the condition Blocked up to date. It returns whether it has changed, and the event of one that
// is new.
func reportBlocked(o *situation, p *plan, status *api.TrainJobStatus) (changed bool, event *events.Event) {
	was := apimeta.FindStatusCondition(status.Conditions, api.ConditionBlocked)
	failed := startFailure(o.observed, o.origin)
	b := cmp.Or(failed, o.queue.blocked, o.origin.rejected(o.observed), o.queue.pods.refused)
	switch {
	case b == nil && keepsBlocked(o, p, was):
		return false, nil
	case b == nil:
		return apimeta.RemoveStatusCondition(&status.Conditions, api.ConditionBlocked), nil
	}
	generation := decidedFor(o.observed, was, b)
	if was != nil && was.Reason != b.Reason {
		apimeta.RemoveStatusCondition(&status.Conditions, api.ConditionBlocked) // its time is that of the reason (held)
	}
	switch {
	case !apimeta.SetStatusCondition(&status.Conditions, metav1.Condition{
		Type: api.ConditionBlocked, Status: metav1.ConditionTrue, Reason: b.Reason, Message: b.Error(),
		ObservedGeneration: generation, LastTransitionTime: metav1.NewTime(o.now),
	}):
		return false, nil
	case failed != nil:
		return true, nil // event FailedToStart was sent
	}
	return true, ptr.To(events.Blocked(b.Reason).Of(b.Error()))
}

// keepsBlocked reports whether the condition Blocked of a TrainJob that isn't blocked stays as it is; was is nil for
// none.
func keepsBlocked(o *situation, p *plan, was *metav1.Condition) bool {
	failure := was != nil && saysFailure(was)
	switch {
	case failure && !o.memory.failing.told.IsZero():
		return true // it says what fails, until it doesn't
	case was != nil && admission.RefusesPods(was.Reason):
		return o.queue.pods.unknown
	case was == nil:
		return false
	case o.trainer.blocks(o.observed, was):
		return true
	}
	after := o.memory.setback.retries(was.Reason, o.now)
	p.Later(after)
	return after > 0
}

// decidedFor returns the generation of the TrainJob for which it is blocked. One that is set back isn't looked at again
// when it changes.
func decidedFor(o *observed, was *metav1.Condition, b *admission.BlockedError) int64 {
	setBack := o.queue.setBack || o.memory.setback.reason == b.Reason
	if setBack && was != nil && was.Reason == b.Reason && was.Message == b.Error() {
		return was.ObservedGeneration
	}
	return o.job.Generation
}
