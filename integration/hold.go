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
	"k8s.io/utils/ptr"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	"github.com/signalbox-dev/signalbox/admission"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/podsets"
	"github.com/signalbox-dev/signalbox/store"
)

// Only what uses quota holds it. A TrainJob that was started and has no pods, or pods that nothing will schedule,
// releases its quota after limits.podsWithin; condition StopOverdue is on one that was stopped and runs long after its
// grace period.

// holdsFor is how many times limits.podsWithin a TrainJob without pods is kept out of its queue.
const holdsFor = 12

// jobBackoff is the longest time for which the Job controller waits before it replaces a pod that has failed
// (Kubernetes, pkg/controller/job, MaxJobPodFailureBackOff).
const jobBackoff = 10 * time.Minute

// observeRunning finds out whether a started TrainJob still needs its quota. It doesn't if its JobSet has ended, or if
// it can't be suspended and nothing of it runs. And it has limits.podsWithin for pods that can run: one that has lost
// its pods, with their node or with its JobSet, has as long for others, and so has each of its steps.
func (r *Reconciler) observeRunning(ctx context.Context, o *observed) error {
	if jobSetEnd(o.jobSet) != nil {
		if !overdueEnd(o) {
			return nil
		}
		return r.observeEnd(ctx, o)
	}
	if o.queue.blocked = stopRejected(o); o.queue.blocked != nil {
		if o.jobSet != nil && !isKept(o.jobSet, o.now) {
			return nil
		}
		return r.observeEnd(ctx, o)
	}
	if own := o.own(); own != nil && own.Time != nil && !admission.IsNeutral(own) {
		return r.observePods(ctx, o, own.Time.Time)
	}
	return nil
}

// observePods finds out whether a TrainJob that was started at a time has the pods that it needs.
func (r *Reconciler) observePods(ctx context.Context, o *observed, started time.Time) error {
	missing, err := r.missingPods(ctx, o)
	if err != nil {
		return err
	}
	if missing == nil {
		r.shortOf(o, shortage{})
		return nil
	}
	short := o.memory.podless
	if short.since.Before(started) || missing.Have > short.have {
		// It is of an earlier start, or there were enough when it was last looked at, or there are more than then.
		short = shortage{since: o.now}
	}
	short.have = missing.Have
	r.shortOf(o, short)
	return r.observeShortage(ctx, o, missing)
}

// observeShortage finds out whether pods have been missing for too long.
func (r *Reconciler) observeShortage(ctx context.Context, o *observed, missing *missingPods) error {
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
			r.shortOf(o, shortage{}) // pods that have ended are gone, with their node maybe, and no Job needs others
			return nil
		}
		if slices.ContainsFunc(jobs, podFailed) {
			left += jobBackoff
		}
	}
	if left > 0 {
		o.queue.later(left)
	} else {
		o.queue.blocked = missing.blocked(r.policy.podsWithin, whyNoPods(o))
	}
	return nil
}

// shortage is since when pods of a running TrainJob are missing, and how many of the step that misses some there were
// when it was last looked at.
type shortage struct {
	since time.Time
	have  int32
}

// missingPods is why a started TrainJob can't run: a step has fewer pods than it needs, or a pod has a scheduling gate
// that Kueue doesn't open.
type missingPods struct {
	podsets.Shortage // of no ReplicatedJob if nothing is there at all
	pod, gate        string
	suspended        bool // others have suspended its JobSet
}

// missingPods returns why a started TrainJob can't run; nil if it can. Then it is for the scheduler to place the pods.
func (r *Reconciler) missingPods(ctx context.Context, o *observed) (*missingPods, error) {
	if o.jobSet == nil {
		return &missingPods{}, nil
	}
	pods, err := r.store.Pods.Named(ctx, o.jobSet)
	if err != nil {
		return nil, err
	}
	if suspendedByAnother(o) && !slices.ContainsFunc(pods, func(p corev1.Pod) bool { return !store.PodEnded(&p) }) {
		return &missingPods{suspended: true}, nil
	}
	if pod, gate := gatedPod(pods); gate != "" {
		return &missingPods{pod: pod, gate: gate}, nil
	}
	there := map[string]podsets.Pods{}
	for i := range pods {
		step := pods[i].Labels[jobset.ReplicatedJobNameKey]
		n := there[step]
		if pods[i].Status.Phase == corev1.PodSucceeded {
			n.Succeeded++
		} else if !store.PodEnded(&pods[i]) {
			n.Present++
		}
		there[step] = n
	}
	if short := podsets.Short(o.jobSet, there); short != nil {
		return &missingPods{Shortage: *short}, nil
	}
	return nil, nil
}

// suspendedByAnother reports whether the JobSet of a running TrainJob is suspended, as it is when Kueue takes it for a
// part of another job. Beside Kubeflow Trainer, it is so until Trainer resumes it.
func suspendedByAnother(o *observed) bool {
	return ptr.Deref(o.jobSet.Spec.Suspend, false) && o.jobSet.DeletionTimestamp.IsZero() &&
		o.jobSet.Status.TerminalState == ""
}

// blocked returns the error for a TrainJob of which pods were missing for so long, and why.
func (p *missingPods) blocked(within time.Duration, why string) *admission.BlockedError {
	if p.gate != "" {
		return &admission.BlockedError{Reason: admission.ReasonGated, Err: fmt.Errorf(
			"pod %s has had scheduling gate %q for longer than %s; remove the gate from the runtime or the overrides, or see "+
				"why nothing opens it", p.pod, p.gate, within)}
	}
	what := "it had no pod"
	if p.suspended {
		what = "its JobSet was suspended by another client and had no pod"
	}
	if p.ReplicatedJob != "" {
		what = fmt.Sprintf("it had %d of the %d pods of ReplicatedJob %s", p.Have, p.Need, p.ReplicatedJob)
	}
	return &admission.BlockedError{Reason: admission.ReasonNoPods, Err: fmt.Errorf(
		"%s for %s; %s. Its quota is released, and it is queued again after %s", what, within, why, holdsFor*within)}
}

// shortOf remembers since when pods of a TrainJob are missing; zero if none are.
func (r *Reconciler) shortOf(o *observed, short shortage) {
	if o.memory.podless != short {
		o.memory.podless = short
		r.memory.keep(o.key(), o.job.UID, func(m *record) { m.podless = short })
	}
}

// podFailed reports whether a pod of a Job has failed, so that the Job controller waits with its replacement.
func podFailed(job batchv1.Job) bool { return job.Status.Failed > 0 }

// gatedPod returns a pod with a scheduling gate that Kueue doesn't open, and the gate; the last of several.
func gatedPod(pods []corev1.Pod) (pod, gate string) {
	for i := range pods {
		for _, g := range pods[i].Spec.SchedulingGates {
			pod, gate = pods[i].Name, g.Name
		}
	}
	return pod, gate
}

// held returns why a TrainJob is kept out of its queue that had no pods when it was started; nil if it isn't. The
// condition Blocked is what remembers it. A user who stops and resumes the TrainJob has it tried again.
func (r *Reconciler) held(o *observed) error {
	if stoppedByUser(o.job) {
		return nil
	}
	c := apimeta.FindStatusCondition(o.job.Status.Conditions, api.ConditionBlocked)
	if c == nil || c.Status != metav1.ConditionTrue || !admission.LackedPods(c.Reason) {
		return nil
	}
	if c.Reason == admission.ReasonGated && !gated(o) {
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
