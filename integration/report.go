package integration

import (
	"cmp"
	"fmt"
	"time"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"github.com/kubeflow/trainer/v2/pkg/constants"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
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
	told := append(reportOverdue(o.observed, p, status), reportBlocked(o, p, status)...)
	o.origin.show(o.observed, status)
	if equality.Semantic.DeepEqual(&o.job.Status, status) {
		return nil
	}
	addSuspended(o.observed, status)
	return []step{writeStatus{status: status, events: told}}
}

// addSuspended adds the Trainer's condition to the first status of a suspended TrainJob, if the Trainer has not written
// it yet: a status without it is that of one that runs, for clients and by its state.
func addSuspended(o *observed, status *api.TrainJobStatus) {
	if ptr.Deref(o.job.Spec.Suspend, false) &&
		apimeta.FindStatusCondition(status.Conditions, trainerapi.TrainJobSuspended) == nil {
		apimeta.SetStatusCondition(&status.Conditions, metav1.Condition{
			Type: trainerapi.TrainJobSuspended, Status: metav1.ConditionTrue, Reason: trainerapi.TrainJobSuspendedReason,
			Message: constants.TrainJobSuspendedMessage, LastTransitionTime: metav1.NewTime(o.now),
		})
	}
}

// reportOverdue brings the condition StopOverdue up to date, and returns the event of one that is new.
func reportOverdue(o *observed, p *plan, status *api.TrainJobStatus) []events.Event {
	message, again := stopOverdue(o)
	p.Later(again)
	if message == "" {
		apimeta.RemoveStatusCondition(&status.Conditions, api.ConditionStopOverdue)
	} else if apimeta.SetStatusCondition(&status.Conditions, metav1.Condition{
		Type: api.ConditionStopOverdue, Status: metav1.ConditionTrue, Reason: "PodsRunning", Message: message,
		ObservedGeneration: o.job.Generation, LastTransitionTime: metav1.NewTime(o.now),
	}) {
		return []events.Event{events.StopOverdue.Of(message)}
	}
	return nil
}

// reportBlocked brings the condition Blocked up to date, and returns the event of one that is new.
func reportBlocked(o *situation, p *plan, status *api.TrainJobStatus) []events.Event {
	was := apimeta.FindStatusCondition(status.Conditions, api.ConditionBlocked)
	failed := startFailure(o.observed, o.origin)
	b := cmp.Or(failed, o.queue.blocked, o.origin.rejected(o.observed), o.queue.pods.refused)
	if b == nil {
		if !keepsBlocked(o, p, was) {
			apimeta.RemoveStatusCondition(&status.Conditions, api.ConditionBlocked)
		}
		return nil
	}
	generation := decidedFor(o.observed, was, b)
	if was != nil && was.Reason != b.Reason {
		apimeta.RemoveStatusCondition(&status.Conditions, api.ConditionBlocked) // its time is that of the reason (held)
	}
	changed := apimeta.SetStatusCondition(&status.Conditions, metav1.Condition{
		Type: api.ConditionBlocked, Status: metav1.ConditionTrue, Reason: b.Reason, Message: b.Error(),
		ObservedGeneration: generation, LastTransitionTime: metav1.NewTime(o.now),
	})
	if !changed || failed != nil { // event FailedToStart was sent
		return nil
	}
	return []events.Event{events.Blocked(b.Reason).Of(b.Error())}
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

// overdueAfter is for how long after the end of its grace period a pod may still exist.
const overdueAfter = 30 * time.Second

// overdue returns for how long a pod has been overdue; before, it is negative. The deletion of a pod triggers no
// reconcile, so one that is not being deleted counts as if it had been deleted now without a grace period.
func overdue(pod *corev1.Pod, now time.Time) time.Duration {
	if pod.DeletionTimestamp.IsZero() {
		return -overdueAfter
	}
	// The API server sets the deletion timestamp to the end of the grace period.
	return now.Sub(pod.DeletionTimestamp.Time) - overdueAfter
}

// stopOverdue returns the message about a TrainJob whose pods run on after their grace period, "" if none does; and,
// until then, when to look again.
func stopOverdue(o *observed) (message string, again time.Duration) {
	for i := range o.left.pods {
		pod := &o.left.pods[i]
		late := overdue(pod, o.now)
		if late >= 0 {
			return fmt.Sprintf("pod %s on node %s should have ended by %s and has not; the TrainJob's quota is held until "+
				"it has. See whether the node's kubelet answers",
				pod.Name, pod.Spec.NodeName, pod.DeletionTimestamp.UTC().Format(time.RFC3339)), 0
		}
		if again == 0 || -late < again {
			again = -late
		}
	}
	return "", again
}
