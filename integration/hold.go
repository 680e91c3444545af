package integration

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	"github.com/signalbox-dev/signalbox/admission"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/podsets"
)

// Quota is held by what uses it: a TrainJob that was started and has no pods, or pods that nothing will schedule, gives it
// back after limits.podsWithin; and one that was stopped and still runs long after its grace period says so.

const (
	// ReasonNoPods: the TrainJob was started and had no pod within limits.podsWithin. Its events, its JobSet and its Jobs say why. It is queued again after six times as long.
	ReasonNoPods = "NoPods"
	// ReasonGated: a pod of the TrainJob had a scheduling gate for longer than limits.podsWithin. Remove the gate from the runtime or the overrides; whoever is to open it didn't.
	ReasonGated = "SchedulingGated"
)

// holdsFor is how many times limits.podsWithin a TrainJob without pods is kept out of its queue.
const holdsFor = 6

// stillborn returns, as an *admission.BlockedError, why a started TrainJob has no pods that can run, when it has had its
// time for them; and before, after which time to look again.
func (j *job) stillborn(ctx context.Context) (blocked *admission.BlockedError, left time.Duration, err error) {
	own := j.own()
	if own == nil || own.Time == nil || admission.IsNeutral(own) || j.jobSet != nil && seen(j.jobSet) {
		return nil, 0, nil
	}
	if left := j.r.podsWithin - j.r.clock.Since(own.Time.Time); left > 0 {
		return nil, left, nil
	}
	var pods []corev1.Pod
	if j.jobSet != nil {
		if pods, err = j.r.pods.Named(ctx, j.jobSet); err != nil {
			return nil, 0, err
		}
	}
	gated := ""
	for i := range pods {
		pod := &pods[i]
		for _, gate := range pod.Spec.SchedulingGates {
			gated = fmt.Sprintf("pod %s has had scheduling gate %q for longer than %s; remove the gate from the runtime or the overrides, or see why nothing opens it", pod.Name, gate.Name, j.r.podsWithin)
		}
	}
	switch {
	case gated != "":
		return &admission.BlockedError{Reason: ReasonGated, Err: fmt.Errorf("%s", gated)}, 0, nil
	case len(pods) > 0:
		return nil, 0, nil // they are there, and it is for the scheduler to place them
	}
	return &admission.BlockedError{Reason: ReasonNoPods, Err: fmt.Errorf(
		"it had no pod within %s of its start; the events of the TrainJob, of its JobSet and of its Jobs say why. Its quota is released, and it is queued again after %s", j.r.podsWithin, holdsFor*j.r.podsWithin)}, 0, nil
}

// seen reports whether a JobSet says that pods of it have run.
func seen(js *jobset.JobSet) bool {
	for _, s := range js.Status.ReplicatedJobsStatus {
		if s.Ready+s.Succeeded+s.Failed > 0 {
			return true
		}
	}
	return js.Status.Restarts > 0
}

// held returns, as an *admission.BlockedError, why a TrainJob is kept out of its queue that had no pods when it was started.
// The condition is what remembers it.
func (j *job) held() error {
	c := apimeta.FindStatusCondition(j.Status.Conditions, api.ConditionBlocked)
	if c == nil || c.Status != metav1.ConditionTrue || c.Reason != ReasonNoPods && c.Reason != ReasonGated {
		return nil
	}
	if c.Reason == ReasonGated && !j.gated() {
		return nil
	}
	left := holdsFor*j.r.podsWithin - j.r.clock.Since(c.LastTransitionTime.Time)
	if left <= 0 {
		return nil
	}
	return &admission.BlockedError{Reason: c.Reason, Err: fmt.Errorf("%s", c.Message), RetryAfter: left}
}

// gated reports whether what the TrainJob runs has scheduling gates that Kueue doesn't open.
func (j *job) gated() bool {
	for i := range j.effective.ReplicatedJobs {
		for _, gate := range j.effective.ReplicatedJobs[i].Template.Spec.Template.Spec.SchedulingGates {
			if !strings.HasPrefix(gate.Name, podsets.KueueGates) {
				return true
			}
		}
	}
	return false
}

// giveBack stops a running TrainJob that has no pods; its condition has been written. Beside Kubeflow Trainer its JobSet is
// deleted when it is to be suspended: a JobSet that can't make its Jobs never says that it has suspended them (JobSet v0.12.0).
// Trainer makes it again, suspended.
func (r *Reconciler) giveBack(ctx context.Context, j *job) error {
	if j.blocked == nil || hasEnded(&j.TrainJob) {
		return nil
	}
	if !j.IsSuspended() {
		if err := r.writer.Suspend(ctx, &j.TrainJob); err != nil {
			return fmt.Errorf("suspending: %w", err)
		}
		return nil
	}
	stuck := !r.bundled && j.blocked.Reason == ReasonNoPods && j.jobSet != nil && len(j.pods) == 0 && ptr.Deref(j.jobSet.Spec.Suspend, false)
	if stuck && j.jobSet.DeletionTimestamp.IsZero() && j.IsActive() {
		return r.dropJobSet(ctx, j, metav1.DeletePropagationBackground)
	}
	return nil
}

// overdueAfter is for how long after the end of its grace period a pod may still be there.
const overdueAfter = 30 * time.Second

// overdue returns for how long a pod has been overdue; before, it is negative. That a pod is being deleted sends no event, so
// one that is not counts as if it had just been deleted without a grace period.
func overdue(pod *corev1.Pod, clk clock.PassiveClock) time.Duration {
	if pod.DeletionTimestamp.IsZero() {
		return -overdueAfter
	}
	return clk.Since(pod.DeletionTimestamp.Time) - overdueAfter // the API server sets it to the end of the grace period
}

// stopOverdue returns what to say of a job whose pods run on after their grace period, "" where none does; and before, after
// which time to look again.
func (j *job) stopOverdue() (says string, left time.Duration) {
	for i := range j.pods {
		pod := &j.pods[i]
		late := overdue(pod, j.r.clock)
		if late >= 0 {
			return fmt.Sprintf("pod %s on node %s should have ended by %s and has not; the TrainJob's quota is held until it has. See whether the node's kubelet answers",
				pod.Name, pod.Spec.NodeName, pod.DeletionTimestamp.UTC().Format(time.RFC3339)), 0
		}
		if left == 0 || -late < left {
			left = -late
		}
	}
	return "", left
}

// reportStop keeps the condition StopOverdue, with an event when it comes. It returns whether the status has changed.
func (r *Reconciler) reportStop(j *job) bool {
	says, left := j.stopOverdue()
	if left > 0 && (j.again == 0 || left < j.again) {
		j.again = left
	}
	if says == "" {
		return apimeta.RemoveStatusCondition(&j.Status.Conditions, api.ConditionStopOverdue)
	}
	changed := apimeta.SetStatusCondition(&j.Status.Conditions, metav1.Condition{
		Type: api.ConditionStopOverdue, Status: metav1.ConditionTrue, Reason: "PodsRunning", Message: says, ObservedGeneration: j.Generation,
	})
	if changed {
		r.recorder.Eventf(&j.TrainJob, nil, corev1.EventTypeWarning, "StopOverdue", "Stopping", "%s", admission.Note(says))
	}
	return changed
}
