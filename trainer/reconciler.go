package trainer

import (
	"context"
	"errors"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	kevents "k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/signalbox-dev/signalbox/admission"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides"
	"github.com/signalbox-dev/signalbox/store"
	"github.com/signalbox-dev/signalbox/store/events"
	"github.com/signalbox-dev/signalbox/trainer/gang"
)

// fieldManager of the children. It is Kubeflow Trainer's, so that either Trainer takes over what the other has created:
// an apply removes what was applied before under the same name and isn't in it.
const fieldManager = "trainer"

// statusPriority is the priority, in the controller's queue, of a TrainJob of which only the status is to be written:
// everything else takes precedence.
const statusPriority = -10

// Config is what a Reconciler is made of.
type Config struct {
	// Client reads from a cache; Reader must not.
	Client   client.Client
	Reader   client.Reader
	Store    *store.Store
	Builder  *Builder
	Gangs    *gang.Gangs
	Recorder kevents.EventRecorder
	Clock    clock.Clock
	Limits   overrides.Limits
}

// Reconciler creates the children of TrainJobs that were started, deletes those of TrainJobs that were stopped, and
// keeps the status. It runs in one queue with the integration's.
type Reconciler struct {
	client   client.Client
	reader   client.Reader // reads from the API server itself
	store    *store.Store
	builder  *Builder
	gangs    *gang.Gangs
	recorder *events.Recorder
	clock    clock.Clock
	limits   overrides.Limits

	statuses
}

// statuses is what a Reconciler remembers of statuses. It can be lost.
type statuses struct {
	mu sync.Mutex
	// pending is the TrainJobs whose status differs from what is written.
	pending map[types.NamespacedName]pendingStatus
	waiting waitings
}

// pendingStatus is a status that differs from what is written.
type pendingStatus struct {
	since  time.Time
	others int // the most others at a time that have been pending meanwhile
}

// NewReconciler returns a Reconciler. Whoever makes the client's cache indexes Workloads by their TrainJobs, as Kueue's
// integrations do (SetupWorkloadOwnerIndex).
func NewReconciler(config Config) *Reconciler {
	return &Reconciler{
		client: config.Client, reader: config.Reader, store: config.Store, builder: config.Builder, gangs: config.Gangs,
		recorder: events.NewRecorder(config.Recorder), clock: config.Clock, limits: config.Limits,
		statuses: statuses{pending: map[types.NamespacedName]pendingStatus{}, waiting: newWaitings()},
	}
}

// Changed returns the TrainJobs whose gangs have changed.
func (r *Reconciler) Changed() <-chan event.GenericEvent { return r.gangs.Changed() }

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
		return r.conclude(ctx, o, lifeless(o), nil)
	}
	if loss := decideLoss(o); loss != nil {
		return r.conclude(ctx, o, plan{steps: []step{loss}}, nil) // the write triggers the next reconcile
	}
	// The gangs are kept before the status, which reports on them. Their error delays nothing else, above all no stop
	// and no end.
	kept, gangErr := r.keepGangs(ctx, o)
	gangErr = errors.Join(gangErr, o.unread)
	status := statusOf(o.job, o.jobSet, o.workload, gangsOf(o, kept), o.now)
	p := decide(o, status, r.pend(o, status), kept.again)
	if c := waits(status); !r.toldWaiting(o.key(), c) {
		p.tell(c, o.now)
	}
	return r.conclude(ctx, o, p, gangErr)
}

// conclude carries a plan out and returns the result of a reconcile. gangErr is what the gangs failed with.
func (r *Reconciler) conclude(ctx context.Context, o *observed, p plan, gangErr error) (reconcile.Result, error) {
	err := r.carryOut(ctx, o, p.steps)
	if apierrors.IsConflict(err) || unseen(o.job, err, o.now) {
		ctrl.LoggerFrom(ctx).V(1).Info("Too early, trying again", "reason", err.Error())
		return reconcile.Result{RequeueAfter: store.ConflictDelay}, gangErr
	}
	if pending := (*admission.PendingError)(nil); errors.As(err, &pending) {
		p.later(pending.RetryAfter)
		err = nil
	}
	if blocked := (*admission.BlockedError)(nil); errors.As(err, &blocked) {
		p.later(blocked.RetryAfter) // nobody queues it, or it would not have been started
		err = r.tellBlocked(ctx, o, p.status, blocked)
	}
	return p.result(), errors.Join(err, gangErr)
}

// tellBlocked writes why a started TrainJob has no JobSet. The integration removes that when there is one.
func (r *Reconciler) tellBlocked(
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
	return client.IgnoreNotFound(r.store.Writer.Status(ctx, o.job, status))
}

// pend returns for how long the status has differed from what is written, and the largest number of others that had a
// pending status meanwhile. The number doesn't shrink with the burst: its last TrainJobs are about to change again.
func (r *Reconciler) pend(o *observed, status *api.TrainJobStatus) (p pendingStatus) {
	key := o.key()
	if !differs(o, status) {
		r.settle(key)
		return p
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	p, known := r.pending[key]
	others := len(r.pending)
	if known {
		others--
	} else {
		p.since = o.now
	}
	p.others = max(p.others, others)
	r.pending[key] = p
	return p
}

// settle drops a status that no longer differs.
func (r *Reconciler) settle(key types.NamespacedName) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.pending, key)
}
