package integration

import (
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/events"
)

// report returns the step that brings the conditions Blocked and StopOverdue up to date, with the events of those that
// are new.
func report(o *observed, p *plan) []step {
	if !o.trainer.reports(o) {
		return nil
	}
	status := o.job.Status.DeepCopy()
	var told []events.Event
	changed := false
	message, again := stopOverdue(o)
	p.later(again)
	if message == "" {
		changed = apimeta.RemoveStatusCondition(&status.Conditions, api.ConditionStopOverdue)
	} else if apimeta.SetStatusCondition(&status.Conditions, metav1.Condition{
		Type: api.ConditionStopOverdue, Status: metav1.ConditionTrue, Reason: "PodsRunning", Message: message,
		ObservedGeneration: o.job.Generation, LastTransitionTime: metav1.NewTime(o.now),
	}) {
		changed = true
		told = append(told, events.StopOverdue.Of(message))
	}
	was := apimeta.FindStatusCondition(status.Conditions, api.ConditionBlocked)
	if b := o.queue.blocked; b == nil && was != nil && saysFailure(was) && !o.memory.failing.told.IsZero() {
		// The condition says what fails, until it doesn't.
	} else if b == nil && was != nil && o.memory.setback.retries(was.Reason, o.now) > 0 {
		p.later(o.memory.setback.retries(was.Reason, o.now))
	} else if b == nil {
		changed = apimeta.RemoveStatusCondition(&status.Conditions, api.ConditionBlocked) || changed
	} else if apimeta.SetStatusCondition(&status.Conditions, metav1.Condition{
		Type: api.ConditionBlocked, Status: metav1.ConditionTrue, Reason: b.Reason, Message: b.Error(),
		ObservedGeneration: decidedFor(o, was), LastTransitionTime: metav1.NewTime(o.now),
	}) {
		changed = true
		told = append(told, events.Blocked(b.Reason).Of(b.Error()))
	}
	if !changed {
		return nil
	}
	return []step{writeStatus{status: status, events: told}}
}

// decidedFor returns the generation of the TrainJob for which it is blocked. One that is set back isn't looked at again
// when it changes.
func decidedFor(o *observed, was *metav1.Condition) int64 {
	if b := o.queue.blocked; o.queue.setBack && was != nil && was.Reason == b.Reason && was.Message == b.Error() {
		return was.ObservedGeneration
	}
	return o.job.Generation
}
