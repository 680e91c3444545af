package integration

import (
	"context"

	"github.com/signalbox-dev/signalbox/admission"
	"github.com/signalbox-dev/signalbox/store"
)

// observeDeleted reads what a TrainJob that is deleted, or is being deleted and kept by a finalizer, has left: its
// Workloads, and so its quota, are released when the last of its pods has ended.
func (r *observer) observeDeleted(ctx context.Context, o *situation) error {
	workloads, err := r.workloadsOf(ctx, o.key())
	if err != nil {
		return err
	}
	for i := range workloads {
		o.workloads.own = append(o.workloads.own, &workloads[i])
	}
	if !holdQuota(o.workloads.own) {
		o.left.over = true
		return nil
	}
	if o.jobSet, err = r.store.JobSets.Left(ctx, o.job); err != nil {
		return err
	}
	o.left.pods, err = r.store.Pods.Running(ctx, o.owner())
	if err != nil || len(o.left.pods) > 0 {
		return err
	}
	if o.jobSet != nil && !endsWithJobSet(o) {
		o.left.again = keptIn(o.jobSet, o.now)
		return nil
	}
	return r.observeEnd(ctx, o)
}

// endsWithJobSet reports whether nothing of a deleted TrainJob runs, or will, although it has a JobSet.
func endsWithJobSet(o *situation) bool {
	if isKept(o.jobSet, o.now) {
		return true
	}
	if o.job.UID == "" || o.trainer.deletesJobSet {
		return false // the JobSet is deleted next, by the garbage collector or by the bundled Trainer
	}
	return o.ended() || admission.Running(o.job, o.jobSet, nil) == ""
}

// hasRun reports whether a TrainJob may have been started before.
func hasRun(o *observed) bool {
	_, pinned := o.job.Annotations[store.PinAnnotation]
	return pinned || o.entry != nil || o.job.Status.StartTime != nil || len(o.job.Status.JobsStatus) > 0 || o.ended() ||
		elsewhere(o.job)
}

// observeEnd finds out whether the TrainJob has no pods and gets no more.
func (r *observer) observeEnd(ctx context.Context, o *situation) (err error) {
	if o.left.over, err = r.over(ctx, o.owner()); !o.left.over {
		o.left.again = recheckDelay
	}
	return err
}
