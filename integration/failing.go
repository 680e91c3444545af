package integration

import (
	"context"
	"fmt"
	"strings"
	"time"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/signalbox-dev/signalbox/admission"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/integration/managed"
	"github.com/signalbox-dev/signalbox/store/events"
)

const (
	// failingFor is how long the reconciles of a TrainJob must have failed before it says so.
	failingFor = 10 * time.Second
	// toldFor is for how long what a TrainJob says of a failure may be outdated.
	toldFor = time.Minute
)

// retriesWithin is the longest time after which a reconcile that has failed is tried again. The quota of what can't be
// stopped or ended waits for it; controller-runtime's own backoff goes to 16 minutes.
const retriesWithin = 30 * time.Second

// retries returns after which times reconciles that have failed are tried again.
func retries() workqueue.TypedRateLimiter[reconcile.Request] {
	return workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](5*time.Millisecond, retriesWithin)
}

// Concluded keeps whether a reconcile of a TrainJob, by all reconcilers, has failed. One that has failed for ten
// seconds says so: by condition Blocked, by its state and by an event. It returns when to reconcile again, 0 for never.
func (r *Reconciler) Concluded(ctx context.Context, request reconcile.Request, failure error) reconcile.Result {
	job := &api.TrainJob{}
	if err := r.client.Get(ctx, request.NamespacedName, job, client.UnsafeDisableDeepCopy); err != nil {
		return reconcile.Result{} // it is deleted, or this is what fails: the log has the error
	}
	f := r.memory.of(request.NamespacedName, job.UID).failing
	now := r.clock.Now()
	keep := func(f failing) { r.memory.keep(request.NamespacedName, job.UID, func(m *record) { m.failing = f }) }
	switch {
	case failure == nil && f.since.IsZero():
		return reconcile.Result{}
	case failure == nil && f.told.IsZero():
		keep(failing{})
	case failure == nil:
		if err := r.untell(ctx, job); err != nil {
			ctrl.LoggerFrom(ctx).Error(err, "A condition can't be removed, which says what has failed")
		} else {
			keep(failing{})
		}
		return reconcile.Result{RequeueAfter: recheckDelay} // removes the condition
	case f.since.IsZero():
		keep(failing{since: now})
	case now.Sub(f.since) >= failingFor && now.Sub(f.told) >= toldFor:
		if err := r.tellFailure(ctx, job, failure, f.told.IsZero()); err != nil {
			ctrl.LoggerFrom(ctx).Error(err, "A condition can't be written, which would say what fails")
			break
		}
		keep(failing{since: f.since, told: now})
	}
	return reconcile.Result{}
}

// tellFailure writes what fails into the status of a TrainJob, unless a condition says already why it is blocked. first
// is set if the TrainJob hasn't said so yet.
func (r *Reconciler) tellFailure(ctx context.Context, job *api.TrainJob, failure error, first bool) error {
	blocked := admission.BlockedError{Reason: ReasonReconcileFailed, Err: fmt.Errorf(
		"%s; it is tried again. Ask the cluster's admins if you can't correct it",
		strings.ReplaceAll(failure.Error(), "\n", "; "))}
	if first {
		r.act.recorder.Send(job, events.Blocked(blocked.Reason).Of(blocked.Error()))
	}
	c := apimeta.FindStatusCondition(job.Status.Conditions, api.ConditionBlocked)
	if hasEnded(job) || managed.Elsewhere(job) && runsElsewhere(job) || c != nil && !saysFailure(c) {
		return nil
	}
	status := job.Status.DeepCopy()
	if !apimeta.SetStatusCondition(&status.Conditions, metav1.Condition{
		Type: api.ConditionBlocked, Status: metav1.ConditionTrue, Reason: blocked.Reason, Message: blocked.Error(),
		ObservedGeneration: job.Generation, LastTransitionTime: metav1.NewTime(r.clock.Now()),
	}) {
		return nil
	}
	return client.IgnoreNotFound(r.store.Writer.Status(ctx, job, status))
}

// untell removes what a TrainJob of MultiKueue says of requests that have failed: its report isn't written any more
// when a worker has admitted it.
func (r *Reconciler) untell(ctx context.Context, job *api.TrainJob) error {
	c := apimeta.FindStatusCondition(job.Status.Conditions, api.ConditionBlocked)
	if !managed.Elsewhere(job) || c == nil || !saysFailure(c) {
		return nil
	}
	status := job.Status.DeepCopy()
	apimeta.RemoveStatusCondition(&status.Conditions, api.ConditionBlocked)
	return client.IgnoreNotFound(r.store.Writer.Status(ctx, job, status))
}
