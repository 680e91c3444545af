// Package integration is TrainJob as Kueue's jobframework sees it: the reconciler and the webhook. It alone knows
// jobframework, which is no stable API. It reads, asks overrides, podsets and admission what follows, and lets store
// write.
package integration

import (
	"context"
	"errors"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	kueueconfig "sigs.k8s.io/kueue/apis/config/v1beta2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/controller/jobframework"
	"sigs.k8s.io/kueue/pkg/workload"

	"github.com/signalbox-dev/signalbox/admission"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/integration/managed"
	"github.com/signalbox-dev/signalbox/integration/webhook"
	"github.com/signalbox-dev/signalbox/overrides"
	"github.com/signalbox-dev/signalbox/overrides/dialect"
	"github.com/signalbox-dev/signalbox/review"
	"github.com/signalbox-dev/signalbox/store"
	"github.com/signalbox-dev/signalbox/store/events"
	"github.com/signalbox-dev/signalbox/store/workqueue"
)

// Reconciler keeps TrainJobs and their Workloads in line. A reconcile observes, lets jobframework and pure functions
// decide, and carries out the steps.
type Reconciler struct {
	observer
	resolver resolver
	act      actor
	// plain and podsReady are jobframework's: one keeps condition PodsReady, too.
	plain, podsReady *jobframework.JobReconciler
	namespaces       *workqueue.Namespaces
}

// memoized is how many bytes of what TrainJobs run are kept, so that the same is computed once. It is tens of kilobytes
// for most TrainJobs, and an eighth of the memory that the chart gives to a manager.
const memoized = 64 << 20

// NewReconciler returns a Reconciler. Invalid configuration is an error that names the field.
func NewReconciler(config Config) (*Reconciler, error) {
	p, err := policyOf(config)
	if err != nil {
		return nil, err
	}
	trainer := trainerOf(config.Trainer)
	countFromZero(trainer.ways, config.Trainer.Field)
	sink := config.Recorder
	if trainer.quiet {
		sink = events.Quiet(sink)
	}
	waits := jobframework.WithWaitForPodsReady(&kueueconfig.WaitForPodsReady{})
	known := newMemory()
	from := reads{managed.New(config.Client, config.Reader, p.managed), config.Client, config.Reader, p, config.Store,
		config.Placement}
	meter := newMeter(config.Client, config.Reader, config.Store, config.Clock)
	config.Client = metering(config.Client, meter)
	return &Reconciler{
		observer:   observer{reads: from, trainer: trainer, clock: config.Clock, memory: known, meter: meter},
		resolver:   resolver{from, overrides.NewMemo(memoized)},
		act:        actor{config.Client, config.Store, events.NewRecorder(sink), known, config.Clock, meter},
		plain:      jobframework.NewReconciler(config.Client, sink, options(config, p)...),
		podsReady:  jobframework.NewReconciler(config.Client, sink, append(options(config, p), waits)...),
		namespaces: workqueue.NewNamespaces(),
	}, nil
}

var _ reconcile.Reconciler = (*Reconciler)(nil)

// Reconcile implements reconcile.Reconciler.
func (r *Reconciler) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	o, err := r.observe(ctx, request.NamespacedName)
	if err == nil {
		err = r.resolver.resolve(ctx, o)
	}
	if o != nil {
		r.remember(o) // also what was seen before a request failed
		r.meter.saw(o.job, o.workloads.own)
	}
	if err != nil {
		return r.conclude(ctx, plan{}, reconcile.Result{}, err)
	}
	p, done := beforehand(o)
	err = r.act.carryOut(ctx, o, p.Steps)
	var result reconcile.Result
	if err == nil && !done {
		var further plan
		result, further, err = r.framework(ctx, request, o)
		further.Later(p.Again)
		p = further
		err = errors.Join(err, r.act.carryOut(ctx, o, p.Steps))
	}
	if err == nil {
		r.countReady(o)
	}
	return r.conclude(ctx, p, result, err)
}

// remember keeps what this process remembers of a TrainJob, as it was observed.
func (r *Reconciler) remember(o *situation) {
	if o.job.UID == "" {
		r.memory.forget(o.key())
		r.store.Writer.Forget(o.key())
		return
	}
	r.memory.keep(o.key(), o.job.UID, func(m *record) { *m = o.memory.record })
}

// framework lets jobframework decide, and returns what is to be done then.
func (r *Reconciler) framework(
	ctx context.Context, request reconcile.Request, o *situation,
) (reconcile.Result, plan, error) {
	a := &asked{}
	jobs := r.plain
	podsReady, later := awaitsPods(r.policy.kueue.WaitForPodsReady, o)
	if podsReady {
		jobs = r.podsReady
	}
	result, err := jobs.ReconcileGenericJob(ctx, request, &job{
		o, a, shownOf(o.observed), r.policy.features.admission, r.policy.CheckpointWithin,
	})
	if blocked := (*admission.BlockedError)(nil); errors.As(err, &blocked) || errors.Is(err, errStillRunning) {
		err = nil // conditions have the reason, or pods do; what lifts it triggers a reconcile
	}
	p := afterwards(o, a, err != nil)
	p.Later(later)
	return result, p, err
}

func (r *Reconciler) conclude(
	ctx context.Context, p plan, result reconcile.Result, err error,
) (reconcile.Result, error) {
	log := ctrl.LoggerFrom(ctx)
	pending := (*admission.PendingError)(nil)
	switch {
	case errors.As(err, &pending):
		log.Info("Waiting to know whether the TrainJob can start", "reason", err.Error())
		return reconcile.Result{RequeueAfter: pending.RetryAfter}, nil
	case apierrors.IsConflict(err):
		log.V(1).Info("Decided on an outdated object, trying again", "reason", err.Error())
		return reconcile.Result{RequeueAfter: store.ConflictDelay}, nil
	case err != nil:
		return result, err
	}
	if p.waiting != "" {
		log.V(2).Info("Admitted, waiting to start", "for", p.waiting)
	}
	if p.retry > 0 {
		result.RequeueAfter = p.retry
		if p.waiting == "" && p.blocked {
			result.Priority = ptr.To(0)
		}
	}
	if p.Again > 0 && (result.RequeueAfter == 0 || p.Again < result.RequeueAfter) {
		result = reconcile.Result{RequeueAfter: p.Again}
		if !p.holds {
			result.Priority = ptr.To(workqueue.Later)
		}
	}
	return result, nil
}

// countReady measures how long the pods of a started TrainJob took.
func (r *Reconciler) countReady(o *situation) {
	if o.memory.started.IsZero() || o.suspended() || o.stage == stageDeleted || !o.ready() {
		return
	}
	startToReady.Observe(o.now.Sub(o.memory.started).Seconds())
	r.memory.keep(o.key(), o.job.UID, func(rec *record) { rec.started = time.Time{} })
}

func trainerOf(d *dialect.Dialect) Trainer {
	if d == dialect.Bundled {
		t := bundledTrainer{here: here{d}}
		facts := traits{ways: []string{oneWrite}, states: api.States, deletesJobSet: true, quiet: true}
		return Trainer{d, facts, t, t, t, webhook.Bundled()}
	}
	kubeflow := kubeflowTrainer{here{d}}
	facts := traits{ways: []string{oneWrite, twoWrites}}
	if d.Keyed() {
		return Trainer{d, facts, kubeflow, kubeflow, keyedTrainer{kubeflow}, webhook.Keyed(d.Name)}
	}
	return Trainer{d, facts, kubeflow, kubeflow, listTrainer{kubeflow}, webhook.Lists(d.List)}
}

// NewWebhook returns the webhook of the reconciler. The reader trusts the users that the integration writes as, the
// manager's own first, and Kueue's.
func NewWebhook(r *Reconciler, reader review.Reader) *webhook.Webhook {
	return webhook.New(webhook.Config{
		Queues: r.Queues, Policy: r.policy.managed, OwnerIdentities: r.policy.kueue.OwnerIdentities,
		Pods: r.store.Pods, Reader: reader, Limits: r.policy.limits, Reviews: r.trainer.reviews,
		Defaults: r.client, Signs: r.meter != nil, Gates: r.policy.features.gatedAdmission,
	})
}

// podsReadyAfter is how long after its admission a Workload has condition PodsReady if Kueue waits for pods by default
// only. It must be far less than Kueue's half hour; TrainJobs that end before it cost no write.
const podsReadyAfter = 5 * time.Minute

// awaitsPods reports whether the Workload gets condition PodsReady now, and if it gets one later, after how long.
// It gets none if configured is false: Kueue doesn't read it then. nil is for Kueue's default, which is to evict
// TrainJobs whose pods never get ready.
func awaitsPods(configured *bool, o *situation) (now bool, later time.Duration) {
	switch wl := o.match(); {
	case configured != nil:
		return *configured, 0
	case wl == nil || o.ended():
		return false, 0
	case apimeta.FindStatusCondition(wl.Status.Conditions, kueue.WorkloadPodsReady) != nil:
		return true, 0 // it must not stay as it was before an eviction
	case !workload.IsAdmitted(wl):
		return false, 0
	case wl.Status.RequeueState != nil:
		return true, 0 // Kueue may have evicted it for this, after a shorter time than is known here
	default:
		admitted := apimeta.FindStatusCondition(wl.Status.Conditions, kueue.WorkloadAdmitted)
		later = max(podsReadyAfter-o.now.Sub(admitted.LastTransitionTime.Time), 0)
		return later == 0, later
	}
}
