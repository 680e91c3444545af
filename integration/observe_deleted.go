package integration

import (
	"context"

	"k8s.io/apimachinery/pkg/types"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	"github.com/signalbox-dev/signalbox/admission"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/store"
)

// observeDeleted reads what a TrainJob that is deleted, or is being deleted and kept by a finalizer, has left: its
// Workloads, and so its quota, are released when the last of its pods has ended.
func (r *Reconciler) observeDeleted(ctx context.Context, o *observed) error {
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
func endsWithJobSet(o *observed) bool {
	if isKept(o.jobSet, o.now) {
		return true
	}
	if o.job.UID == "" || o.trainer.deletesJobSet() {
		return false // the JobSet is deleted next, by the garbage collector or by the bundled Trainer
	}
	return o.ended() || admission.Running(o.job, o.jobSet, nil) == ""
}

// hasRun reports whether a TrainJob may have been started before.
func hasRun(o *observed) bool {
	_, pinned := o.job.Annotations[store.PinAnnotation]
	return pinned || o.own() != nil || o.job.Status.StartTime != nil || len(o.job.Status.JobsStatus) > 0 || o.ended() ||
		elsewhere(o.job)
}

// observeEnd finds out whether the TrainJob has no pods and gets no more.
func (r *Reconciler) observeEnd(ctx context.Context, o *observed) (err error) {
	if o.left.over, err = r.over(ctx, o.owner()); !o.left.over {
		o.left.again = recheckDelay
	}
	return err
}

// over reports whether a TrainJob has no pods and gets no more, by the API server: no unfinished Job, and then no
// running pod. The JobSet, if there is one, limits the Jobs to its own. The caches can't answer this: the watch of pods
// may be behind those of Jobs and JobSets. No event follows when a Job finishes.
func (r *Reconciler) over(ctx context.Context, owner store.Owner) (bool, error) {
	if owner.JobSet == nil || !jobSetSuspended(owner.JobSet) {
		ended, err := r.store.Pods.JobsEnded(ctx, owner.NamespacedName, store.OfJobSet(owner.JobSet))
		if err != nil || !ended {
			return false, err
		}
	}
	pods, err := r.store.Pods.RunningNow(ctx, owner)
	return err == nil && len(pods) == 0, err
}

// earlierRuns reports whether pods of an earlier TrainJob of the same name have not ended.
func (r *Reconciler) earlierRuns(ctx context.Context, o *observed) (bool, error) {
	own, err := r.store.JobSets.Of(ctx, o.job)
	if err != nil {
		return false, err
	}
	named := &api.TrainJob{} // the JobSet that exists may be the earlier one's
	named.Namespace, named.Name = o.job.Namespace, o.job.Name
	present, err := r.store.JobSets.Left(ctx, named)
	if err != nil {
		return false, err
	}
	earlier := func(uid types.UID) bool { return own == nil || uid != own.UID }
	if present != nil && earlier(present.UID) && !isKept(present, o.now) {
		return true, nil // JobSet may create its Jobs until the garbage collector deletes it
	}
	ended, err := r.store.Pods.JobsEnded(ctx, o.key(), earlier)
	if err != nil || !ended {
		return !ended, err
	}
	pods, err := r.store.Pods.RunningNow(ctx, store.Owner{NamespacedName: o.key(), JobSet: present})
	for i := range pods {
		if earlier(types.UID(pods[i].Labels[jobset.JobSetUIDKey])) {
			return true, err
		}
	}
	return false, err
}
