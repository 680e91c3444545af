package integration

import (
	"context"
	"errors"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/controller/constants"

	"github.com/signalbox-dev/signalbox/admission"
	"github.com/signalbox-dev/signalbox/admission/checkpoint"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/integration/managed"
	"github.com/signalbox-dev/signalbox/podsets"
	"github.com/signalbox-dev/signalbox/store"
)

// observe reads all that is needed to decide about a TrainJob. What costs a request to the API server is read only if
// the decision depends on it.
func (r *observer) observe(ctx context.Context, key types.NamespacedName) (*situation, error) {
	o, err := r.observeTrainJob(ctx, key)
	switch {
	case err != nil:
		return nil, err
	case o.stage == stageBehind:
		return o, nil
	case o.stage == stageDeleted:
		err = r.observeDeleted(ctx, o)
		o.weigh()
		return o, err
	}
	if err := r.observeWorkloads(ctx, o); err != nil || declared(o).all {
		return o, err
	}
	err = errors.Join(r.observeChildren(ctx, o), r.observePriority(ctx, o), r.observeDependencies(ctx, o))
	o.weigh()
	if err != nil || o.stage == stageEnded {
		return o, err
	}
	err = r.observeManaged(ctx, o)
	o.weigh()
	return o, err
}

// observeManaged finds out whether Kueue manages the TrainJob, and what that depends on.
func (r *observer) observeManaged(ctx context.Context, o *situation) (err error) {
	if o.standing, err = r.Standing(ctx, o.job); err != nil || o.standing == managed.Owned {
		return err
	}
	switch {
	case o.stage == stageRunning:
		o.queue.begun, err = r.begun(ctx, o)
		return errors.Join(err, r.observeRunning(ctx, o))
	case o.standing == managed.Queued && keptBack(o.observed) == nil:
		return r.observeRuntime(ctx, o)
	}
	return nil
}

// observeRunning reads whether a started TrainJob has its pods. Of one whose end isn't written, or that can't be
// suspended, it finds out whether anything of it runs.
func (r *observer) observeRunning(ctx context.Context, o *situation) (err error) {
	if holder := holderOf(o.workloads.own); r.policy.CheckpointWithin > 0 && holder != nil {
		o.queue.drained = checkpoint.Preempted(holder) && checkpoint.Saved(o.job, o.jobSet, o.now) != nil &&
			r.drained(ctx, holder)
	}
	switch {
	case jobSetEnd(o.jobSet) != nil:
		if o.managed() && overdueEnd(o.observed) {
			return r.observeEnd(ctx, o)
		}
	case o.managed() && stopRejected(o.observed) != nil:
		if o.jobSet == nil || isKept(o.jobSet, o.now) {
			return r.observeEnd(ctx, o)
		}
	case !startedAt(o.observed).IsZero():
		o.queue.pods.missing, err = r.missingPods(ctx, o)
	}
	return err
}

// partOf rejects a TrainJob with quota of its own that is a part of a Job or JobSet in a queue.
func partOf(owner *metav1.OwnerReference) *admission.BlockedError {
	return &admission.BlockedError{Reason: ReasonPartOfAnother, RetryAfter: setbackLook, Err: fmt.Errorf(
		"%s %s controls it and is in a queue itself, so that Kueue suspends its JobSet as a part of that; take "+
			"controller: true out of its ownerReferences, or the label %s from the %s", owner.Kind, owner.Name,
		constants.QueueLabel, owner.Kind)}
}

// observeRuntime reads the runtime of a suspended TrainJob, and whether another job stands for it. That either keeps it
// from being queued is a fact.
func (r *observer) observeRuntime(ctx context.Context, o *situation) error {
	owner, err := r.PartOf(ctx, o.job)
	if owner != nil {
		o.queue.part = partOf(owner)
		return nil
	}
	if err == nil && resolveRecord(o) == nil { // what can't be migrated is reported whatever the runtime is
		o.queue.choice, err = o.trainer.runtime(ctx, r.reads, o.observed)
	}
	if errors.As(err, &o.queue.unusable) {
		return nil
	}
	return errors.Join(err, r.observeNodes(ctx, o))
}

// observeTrainJob reads the TrainJob, and what this process remembers of it.
func (r *observer) observeTrainJob(ctx context.Context, key types.NamespacedName) (*situation, error) {
	o := &situation{observed: &observed{job: &api.TrainJob{}, now: r.clock.Now()}, trainer: r.trainer}
	err := r.client.Get(ctx, key, o.job)
	if client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("reading the TrainJob: %w", err)
	}
	if err != nil {
		o.stage, o.job.Namespace, o.job.Name = stageDeleted, key.Namespace, key.Name
		o.origin = originOf(o.job)
		return o, nil
	}
	if o.origin = originOf(o.job); managed.Elsewhere(o.job) {
		o.trainer = o.trainer.dispatching()
	}
	o.entry = o.trainer.Own(o.job)
	o.memory = r.memory.recall(key, o.job.UID, o.now)
	o.memory.ended = hasEnded(o.job)
	switch {
	case !o.job.DeletionTimestamp.IsZero():
		o.stage = stageDeleted
	case r.store.Writer.Behind(o.job):
		o.stage = stageBehind
	case o.ended():
		o.stage = stageEnded
	case o.suspended():
		o.stage = stageSuspended
	default:
		o.stage = stageRunning
		o.memory.setback = setback{} // also if the answer to its start was lost
	}
	return o, nil
}

func (r *observer) observeWorkloads(ctx context.Context, o *situation) error {
	workloads, err := r.workloadsOf(ctx, o.key())
	if err != nil {
		return err
	}
	created := o.memory.workload
	if len(workloads) == 0 && created != "" && declaredLeft(o.observed) <= 0 {
		// The cache doesn't have the Workload that this process created: it is stale, or the Workload was deleted.
		var wl kueue.Workload
		err := r.live.Get(ctx, types.NamespacedName{Namespace: o.job.Namespace, Name: created}, &wl)
		if client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("reading Workload %s: %w", created, err)
		}
		if err == nil {
			workloads = append(workloads, &wl)
			o.workloads.deleted = !wl.DeletionTimestamp.IsZero()
		}
	}
	for _, wl := range workloads {
		if metav1.IsControlledBy(wl, o.job) {
			o.workloads.own = append(o.workloads.own, wl)
		} else {
			o.workloads.earlier = append(o.workloads.earlier, wl)
		}
	}
	byAuthor(o.job, o.workloads.own)
	o.workloads.own, o.workloads.aside = podsets.Counts(o.workloads.own)
	if !holdQuota(o.workloads.earlier) {
		return nil
	}
	o.workloads.earlierRuns, err = r.earlierRuns(ctx, o.observed)
	return err
}

// observeChildren reads the JobSet and, of a TrainJob that stops or has ended, what is left of its pods.
func (r *observer) observeChildren(ctx context.Context, o *situation) error {
	var err error
	if o.jobSet, err = r.store.JobSets.Of(ctx, o.job); err != nil {
		return err
	}
	if unwritten(o.observed) != nil && o.memory.end.jobSet != o.jobSet.UID {
		o.memory.end = seenEnd{o.jobSet.UID, o.now}
	}
	if o.stage == stageRunning {
		return nil
	}
	if o.jobSet == nil && !hasRun(o.observed) {
		return nil // pods of its name are of others
	}
	if o.left.pods, err = r.store.Pods.Running(ctx, o.owner()); err != nil {
		return err
	}
	if o.stage == stageSuspended && !overdueEnd(o.observed) {
		o.left, err = o.trainer.leftover(ctx, r.reads, o.observed)
		return err
	}
	if len(o.left.pods) > 0 {
		return nil
	}
	if o.jobSet != nil && store.EndedCleanly(o.jobSet) || !holdQuota(o.workloads.own) && !holdQuota(o.workloads.earlier) {
		o.left.over = true
		return nil
	}
	return r.observeEnd(ctx, o)
}

// originOf returns the origin of a TrainJob. Kueue stops what runs in a worker only when the Workload here is
// deactivated; the worker holds its own quota until the pods have ended.
func originOf(job *api.TrainJob) origin {
	switch {
	case managed.Elsewhere(job):
		return origin{originQueues: dispatched{}, originReports: dispatched{}}
	case job.Labels[kueue.MultiKueueOriginLabel] != "":
		return origin{awaitsEnd: true, originQueues: received{}, originReports: received{}}
	}
	return origin{awaitsEnd: true, originQueues: local{}, originReports: local{}}
}

// observeDeleted reads what a TrainJob that is deleted, or is being deleted and kept by a finalizer, has left: its
// Workloads, and so its quota, are released when the last of its pods has ended.
func (r *observer) observeDeleted(ctx context.Context, o *situation) error {
	var err error
	if o.workloads.own, err = r.workloadsOf(ctx, o.key()); err != nil {
		return err
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
		managed.Elsewhere(o.job)
}

// observeEnd finds out whether the TrainJob has no pods and gets no more.
func (r *observer) observeEnd(ctx context.Context, o *situation) (err error) {
	if o.left.over, err = r.over(ctx, o.owner()); !o.left.over {
		o.left.again = recheckDelay
	}
	return err
}
