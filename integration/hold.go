package integration

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	"github.com/signalbox-dev/signalbox/admission"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/podsets"
)

// Only what uses quota holds it. A TrainJob that was started and has no pods, or pods that nothing will schedule,
// releases its quota after limits.podsWithin; condition StopOverdue is on one that was stopped and runs long after its
// grace period.

const (
	// ReasonNoPods: the TrainJob was started and had no pod for limits.podsWithin, or ten minutes longer after one has
	// failed. Its events, its JobSet and its Jobs have the reason. It is queued again after six times as long.
	ReasonNoPods = "NoPods"
	// ReasonGated: a pod of the TrainJob had a scheduling gate for longer than limits.podsWithin, because nothing
	// removed it. Remove the gate from the runtime or the overrides.
	ReasonGated = "SchedulingGated"
)

// holdsFor is how many times limits.podsWithin a TrainJob without pods is kept out of its queue.
const holdsFor = 6

// jobBackoff is the longest time for which the Job controller waits before it replaces a pod that has failed
// (kubernetes/pkg/controller/job, MaxJobPodFailureBackOff).
const jobBackoff = 10 * time.Minute

// observeRunning finds out whether a started TrainJob has had limits.podsWithin for pods that can run, and has none. A
// TrainJob that has lost its pods, with their node or with its JobSet, has as long for others.
func (r *Reconciler) observeRunning(ctx context.Context, o *observed) error {
	own := o.own()
	if own == nil || own.Time == nil || admission.IsNeutral(own) {
		return nil
	}
	without, err := r.withoutPods(ctx, o)
	if err != nil {
		return err
	}
	if without == nil {
		r.noPodsSince(o, time.Time{})
		return nil
	}
	since := o.memory.podless
	if since.Before(own.Time.Time) { // of an earlier start, or it had pods when it was last looked at
		since = o.now
		r.noPodsSince(o, since)
	}
	left := r.policy.podsWithin - o.now.Sub(since)
	if left <= 0 && without.gate == "" && o.jobSet != nil {
		failed, err := r.podFailed(ctx, o.jobSet)
		if err != nil {
			return err
		}
		if failed {
			left += jobBackoff
		}
	}
	if left > 0 {
		o.queue.again = left
	} else {
		o.queue.blocked = without.blocked(r.policy.podsWithin)
	}
	return nil
}

// podless is why nothing of a started TrainJob can run: it has no pods or, if gate is set, a pod with a scheduling gate
// that Kueue doesn't open.
type podless struct{ pod, gate string }

// withoutPods returns why nothing of a started TrainJob can run; nil if something can. Then it is for the scheduler to
// place the pods.
func (r *Reconciler) withoutPods(ctx context.Context, o *observed) (*podless, error) {
	if o.jobSet == nil {
		return &podless{}, nil
	}
	if ran(o.jobSet) {
		return nil, nil
	}
	pods, err := r.store.Pods.Named(ctx, o.jobSet)
	if err != nil {
		return nil, err
	}
	pod, gate := gatedPod(pods)
	if len(pods) > 0 && gate == "" {
		return nil, nil
	}
	return &podless{pod, gate}, nil
}

// blocked returns the error for a TrainJob of which nothing could run for so long.
func (p *podless) blocked(within time.Duration) *admission.BlockedError {
	if p.gate != "" {
		return &admission.BlockedError{Reason: ReasonGated, Err: fmt.Errorf(
			"pod %s has had scheduling gate %q for longer than %s; remove the gate from the runtime or the overrides, or see "+
				"why nothing opens it", p.pod, p.gate, within)}
	}
	return &admission.BlockedError{Reason: ReasonNoPods, Err: fmt.Errorf(
		"it had no pod for %s; the events of the TrainJob, of its JobSet and of its Jobs say why. Its quota is released, "+
			"and it is queued again after %s", within, holdsFor*within)}
}

// noPodsSince remembers since when a TrainJob has no pods that can run; zero if it has.
func (r *Reconciler) noPodsSince(o *observed, since time.Time) {
	if !o.memory.podless.Equal(since) {
		r.memory.keep(o.key(), o.job.UID, func(m *record) { m.podless = since })
	}
}

// podFailed reports whether a pod of a JobSet has failed, so that the Job controller waits with its replacement.
func (r *Reconciler) podFailed(ctx context.Context, js *jobset.JobSet) (bool, error) {
	jobs, err := r.store.Pods.JobsOf(ctx, js)
	return slices.ContainsFunc(jobs, func(job batchv1.Job) bool { return job.Status.Failed > 0 }), err
}

// gatedPod returns a pod with a scheduling gate that Kueue doesn't open, and the gate; the last of several.
func gatedPod(pods []corev1.Pod) (pod, gate string) {
	for i := range pods {
		for _, g := range pods[i].Spec.SchedulingGates {
			pod, gate = pods[i].Name, g.Name
		}
	}
	return pod, gate
}

// ran reports whether pods of a JobSet have run, by its status.
func ran(js *jobset.JobSet) bool {
	for _, s := range js.Status.ReplicatedJobsStatus {
		if s.Ready+s.Succeeded+s.Failed > 0 {
			return true
		}
	}
	return js.Status.Restarts > 0
}

// held returns why a TrainJob is kept out of its queue that had no pods when it was started; nil if it isn't. The
// condition Blocked is what remembers it.
func (r *Reconciler) held(o *observed) error {
	c := apimeta.FindStatusCondition(o.job.Status.Conditions, api.ConditionBlocked)
	if c == nil || c.Status != metav1.ConditionTrue || c.Reason != ReasonNoPods && c.Reason != ReasonGated {
		return nil
	}
	if c.Reason == ReasonGated && !gated(o) {
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

// overdueAfter is for how long after the end of its grace period a pod may still exist.
const overdueAfter = 30 * time.Second

// overdue returns for how long a pod has been overdue; before, it is negative. The deletion of a pod triggers no
// reconcile, so one that is not being deleted counts as if it had been deleted now without a grace period.
func overdue(pod *corev1.Pod, clk clock.PassiveClock) time.Duration { return overdueAt(pod, clk.Now()) }

func overdueAt(pod *corev1.Pod, now time.Time) time.Duration {
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
		late := overdueAt(pod, o.now)
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
