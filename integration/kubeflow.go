package integration

import (
	"context"
	"fmt"
	"time"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	batchv1 "k8s.io/api/batch/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/signalbox-dev/signalbox/admission"
	"github.com/signalbox-dev/signalbox/overrides"
	"github.com/signalbox-dev/signalbox/store"
	"github.com/signalbox-dev/signalbox/store/events"
)

// kubeflowTrainer is an installed Kubeflow Trainer. It creates a suspended JobSet before a TrainJob is admitted, and
// keeps it between runs.
type kubeflowTrainer struct{ here }

const (
	// jobsTimeout bounds how long it waits until its suspended Jobs follow the JobSet's template: a Job that differs even
	// then was changed by another client.
	jobsTimeout = 40 * time.Second
	// resumeTimeout is how long after a start Kubeflow Trainer or JobSet, from a stale cache, may still act on it.
	resumeTimeout = 20 * time.Second
)

func (t kubeflowTrainer) runtime(ctx context.Context, r reads, o *observed) (*store.Choice, error) {
	return r.store.Runtimes.OfKubeflow(ctx, o.job, t.Dialect)
}

// leftover reads the pods of a JobSet that is suspended from the API server: the cache may not have them yet.
func (t kubeflowTrainer) leftover(ctx context.Context, r reads, o *observed) (leftover, error) {
	left := o.left
	if len(left.pods) > 0 || admission.IsNeutral(t.Own(o.job)) || admission.Running(o.job, o.jobSet, nil) != "" {
		return left, nil
	}
	if wait := t.mayResume(o); wait > 0 {
		left.again = wait
		return left, nil
	}
	pods, err := r.store.Pods.RunningNow(ctx, o.owner())
	if left.pods = pods; len(pods) > 0 {
		left.again = recheckDelay
	}
	return left, err
}

// active reports whether pods, the JobSet, or a start that a Trainer has yet to follow may still use quota.
func (t kubeflowTrainer) active(o *observed) bool {
	return admission.Running(o.job, o.jobSet, o.left.pods) != "" || t.mayResume(o) > 0
}

// mayResume returns for how long Kubeflow Trainer or JobSet may still resume a TrainJob that was stopped soon after its
// start; 0 if they can't. Either may see the start only now, from a stale cache, and run pods until it sees the stop.
// Both have followed the start when their conditions have changed since; after resumeTimeout nobody acts on it any
// more.
func (t kubeflowTrainer) mayResume(o *observed) time.Duration {
	own := t.Own(o.job)
	if o.jobSet == nil || admission.IsNeutral(own) || own.Time == nil {
		return 0
	}
	followed := func(conditions []metav1.Condition, name string) bool {
		c := apimeta.FindStatusCondition(conditions, name)
		return c != nil && c.Status == metav1.ConditionTrue && c.LastTransitionTime.After(own.Time.Time)
	}
	if followed(o.job.Status.Conditions, trainerapi.TrainJobSuspended) &&
		followed(o.jobSet.Status.Conditions, string(jobset.JobSetSuspended)) {
		return 0
	}
	return max(resumeTimeout-o.now.Sub(own.Time.Time), 0)
}

func (kubeflowTrainer) reclaimable(*observed) []kueue.ReclaimablePod { return nil }

func (t kubeflowTrainer) prepare(o *observed) ([]step, string) {
	switch {
	case o.queue.choice.Outdated:
		return followRuntime(o), "Trainer has not taken the edited runtime yet"
	case o.queue.foreign != nil:
		return migration(o, t.Field)
	case t.Own(o.job) == nil:
		return rebuild(o), ""
	case admission.IsNeutral(t.Own(o.job)):
		return nil, ""
	}
	const waiting = "the last admission is not cleared yet"
	if !t.clearable(o) {
		return nil, waiting
	}
	return []step{clearEntry{}}, waiting
}

// followRuntime makes Trainer pin the runtime again for a TrainJob that waits and has never run: it follows an edit of
// its runtime until it is admitted.
func followRuntime(o *observed) []step {
	steps := []step{deleteSnapshot{o.queue.choice.Snapshot.Object}}
	if o.jobSet != nil {
		steps = append(steps, deleteJobSet{jobSet: o.jobSet})
	}
	return steps
}

// rebuild deletes the JobSet of a TrainJob that has never run, if it was built from an earlier runtime or earlier
// entries and can't be updated; Trainer creates it again. It does so once for each state of the two: a JobSet that
// differs even after that was changed by another client.
func rebuild(o *observed) []step {
	if o.jobSet == nil {
		return nil
	}
	state := fmt.Sprintf("generation %d", o.job.Generation)
	older := false
	if snapshot := o.queue.choice.Snapshot; snapshot != nil {
		state += fmt.Sprintf(", snapshot %s", snapshot.Object.UID)
		older = o.jobSet.CreationTimestamp.Before(&snapshot.Object.CreationTimestamp)
	}
	if o.memory.rebuilt == state || !older && admission.CanFit(o.jobSet, o.queue.effective) {
		return nil
	}
	return []step{deleteJobSet{jobSet: o.jobSet, rebuilt: state}}
}

// clearable reports whether nothing runs on the last admission, and nobody is about to write the TrainJob.
func (t kubeflowTrainer) clearable(o *observed) bool {
	if o.left.active {
		return false
	}
	if wl := o.match(); o.jobSet == nil || wl != nil && o.overdue(wl) {
		return true
	}
	before, err := t.Compute(o.job, o.queue.choice.Spec, t.Entries(o.job))
	return err == nil && admission.Unsettled(o.job, o.jobSet, before, t.CountsJobs) == ""
}

// startJobs returns the JobSet's Jobs of a TrainJob that has run before and is about to start again. JobSet merges
// selectors and tolerations into a Job that it resumes (jobset#1294), so that a Job of the last admission would keep
// the last flavor's.
func (t kubeflowTrainer) startJobs(ctx context.Context, r reads, o *observed) ([]batchv1.Job, error) {
	wl := o.match()
	if t.Own(o.job) == nil || o.jobSet == nil || wl == nil || t.unsettled(o) != "" && !o.overdue(wl) {
		return nil, nil
	}
	return r.store.Pods.JobsOf(ctx, o.jobSet)
}

func (t kubeflowTrainer) unsettled(o *observed) string {
	return admission.Unsettled(o.job, o.jobSet, o.queue.effective, t.CountsJobs)
}

func (t kubeflowTrainer) settle(o *observed) settlement {
	wl := o.match()
	var s settlement
	if pending := t.unsettled(o); pending != "" {
		if !o.overdue(wl) {
			return settlement{waiting: pending}
		}
		s.events = []events.Event{events.NotSettled.Of(settleTimeout, pending)}
	}
	if t.Own(o.job) == nil || o.jobSet == nil || o.waited(wl) > jobsTimeout {
		return s
	}
	for i := range o.queue.start.jobs {
		if job := &o.queue.start.jobs[i]; stale(job, o.jobSet) {
			s.waiting = "its Jobs of the last admission are being replaced"
			if job.DeletionTimestamp.IsZero() {
				s.steps = append(s.steps, deleteJob{job})
			}
		}
	}
	if missing := admission.MissingJob(o.jobSet, o.queue.start.jobs); s.waiting == "" && missing != "" {
		s.waiting = fmt.Sprintf("its Job %s is not created yet", missing)
	}
	return s
}

// stale reports whether a suspended Job would place its pods other than its JobSet's template says now.
func stale(job *batchv1.Job, js *jobset.JobSet) bool {
	if !ptr.Deref(job.Spec.Suspend, false) || job.Status.CompletionTime != nil {
		return false
	}
	e := overrides.Effective{ReplicatedJobs: js.Spec.ReplicatedJobs}
	rj := e.ReplicatedJob(job.Labels[jobset.ReplicatedJobNameKey])
	if rj == nil {
		return true
	}
	have, want := &job.Spec.Template.Spec, &rj.Template.Spec.Template.Spec
	return !equality.Semantic.DeepEqual(have.NodeSelector, want.NodeSelector) ||
		!equality.Semantic.DeepEqual(have.Tolerations, want.Tolerations) ||
		!equality.Semantic.DeepEqual(have.SchedulingGates, want.SchedulingGates)
}

func (kubeflowTrainer) complete(*observed, *admission.Start) error { return nil }

// stuck deletes a JobSet that is to be suspended and can't create its Jobs: it never has the condition Suspended
// (JobSet v0.12.0). Trainer creates it again, suspended.
func (kubeflowTrainer) stuck(o *observed) []step {
	if o.jobSet == nil || len(o.left.pods) > 0 || !jobSetSuspended(o.jobSet) || !o.jobSet.DeletionTimestamp.IsZero() ||
		!o.left.active {
		return nil
	}
	return []step{deleteJobSet{jobSet: o.jobSet}}
}

// keyedTrainer is a Kubeflow Trainer whose entries are keyed by manager: v2.2 and later.
type keyedTrainer struct{ kubeflowTrainer }

// write writes a start in one request, or in two for v2.2.0, which is found out by trying.
func (keyedTrainer) write(
	ctx context.Context, writer *store.Writer, start *admission.Start,
) (way string, err error) {
	atomic, err := writer.StartAtomically(ctx, start)
	if atomic {
		return oneWrite, err
	}
	return twoWrites, err
}

// listTrainer is a Kubeflow Trainer whose list of overrides is not keyed by manager: v2.0 and v2.1. A Record in an
// annotation holds which elements are the integration's.
type listTrainer struct{ kubeflowTrainer }

func (listTrainer) write(
	ctx context.Context, writer *store.Writer, start *admission.Start,
) (way string, err error) {
	return twoWrites, writer.StartInTwo(ctx, start)
}
