// Package trainer is the bundled Trainer: the side of Kubeflow Trainer that Signalbox depends on, as a role of the
// manager that is switched off beside an installed Kubeflow Trainer. It builds the JobSet of a TrainJob that was
// started, deletes that of one that was stopped, and keeps the TrainJob's status. A reconcile observes (observe.go),
// decides on steps (decide.go, loss.go, stall.go) and carries them out (act.go).
//
// ML policies, pod network, pod groups and their side objects come from Kubeflow Trainer's own plugins; the JobSet and
// the merge are Signalbox's. A TrainJob that waits has none of these objects.
package trainer

import (
	"context"
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/signalbox-dev/signalbox/admission"
	"github.com/signalbox-dev/signalbox/admission/stalled"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/store"
	"github.com/signalbox-dev/signalbox/store/steps"
	"github.com/signalbox-dev/signalbox/trainer/status"
)

// ReconcileAfter reconciles a TrainJob after the integration has. If that has failed, it creates nothing: the TrainJob
// may have to be stopped.
func (r *Reconciler) ReconcileAfter(
	ctx context.Context, request reconcile.Request, failed bool,
) (reconcile.Result, error) {
	o, err := r.observe(ctx, request.NamespacedName)
	if err != nil {
		return reconcile.Result{}, err
	}
	o.failed = failed
	if o.stage != stageLive {
		return r.conclude(ctx, o, decideInactive(o))
	}
	if loss := decideLoss(o); loss != nil {
		var p plan // the write triggers the next reconcile
		p.Do(loss)
		return r.conclude(ctx, o, p)
	}
	verdict := stalled.Judge(r.runOf(o), o.now)
	if stall := decideStall(o, verdict); stall != nil {
		var p plan // here, too
		p.Do(stall)
		return r.conclude(ctx, o, p)
	}
	outlook := o.groups.Outlook()
	running := status.Running{Gangs: gangCondition(o, outlook), Stalled: verdict.Condition}
	want := status.Of(o.job, o.jobSet, o.workload, running, o.now)
	want.Avoided = r.Avoid.Remember(want.Avoided, o.blamed, o.now)
	pending := r.memory.recall(o.key, o.now, status.Differs(&o.job.Status, want), waits(want) != nil)
	p := decide(o, want, outlook, pending)
	p.Later(verdict.Again)
	return r.conclude(ctx, o, p)
}

// conclude carries a plan out and returns the result of a reconcile.
func (r *Reconciler) conclude(ctx context.Context, o *observed, p plan) (reconcile.Result, error) {
	err := steps.Run(p.Steps, func(s step) error { return r.act(ctx, o, s) })
	if apierrors.IsConflict(err) || ownerUnknown(o.job, err, o.now) {
		ctrl.LoggerFrom(ctx).V(1).Info("Too early, trying again", "reason", err.Error())
		return reconcile.Result{RequeueAfter: store.ConflictDelay}, o.unread
	}
	if pending := (*admission.PendingError)(nil); errors.As(err, &pending) {
		p.Later(pending.RetryAfter)
		err = nil
	}
	if blocked := (*admission.BlockedError)(nil); errors.As(err, &blocked) {
		p.Later(blocked.RetryAfter) // Kueue doesn't manage it, or it would not have been started
		err = r.writeBlocked(ctx, o, p.status, blocked)
	}
	return p.result(), errors.Join(err, o.unread)
}

// writeBlocked writes why a started TrainJob has no JobSet. The integration removes that when there is one.
func (r *Reconciler) writeBlocked(
	ctx context.Context, o *observed, status *api.TrainJobStatus, blocked *admission.BlockedError,
) error {
	if status == nil {
		return nil
	}
	status = status.DeepCopy()
	if !apimeta.SetStatusCondition(&status.Conditions, metav1.Condition{
		Type: api.ConditionBlocked, Status: metav1.ConditionTrue, Reason: blocked.Reason, Message: blocked.Error(),
		ObservedGeneration: o.job.Generation, LastTransitionTime: metav1.NewTime(o.now),
	}) {
		return nil
	}
	return client.IgnoreNotFound(r.Store.Writer.Status(ctx, o.job, status))
}
