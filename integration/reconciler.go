package integration

import (
	"context"
	"errors"
	"fmt"
	"time"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	kevents "k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueueconfig "sigs.k8s.io/kueue/apis/config/v1beta2"
	schdcache "sigs.k8s.io/kueue/pkg/cache/scheduler"
	"sigs.k8s.io/kueue/pkg/controller/jobframework"
	"sigs.k8s.io/kueue/pkg/features"
	kueuemetrics "sigs.k8s.io/kueue/pkg/metrics"

	"github.com/signalbox-dev/signalbox/admission"
	configapi "github.com/signalbox-dev/signalbox/api/config/v1alpha1"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/integration/installed"
	"github.com/signalbox-dev/signalbox/overrides"
	"github.com/signalbox-dev/signalbox/podsets"
	"github.com/signalbox-dev/signalbox/store"
	"github.com/signalbox-dev/signalbox/store/events"
)

// Config is what a Reconciler is made of.
type Config struct {
	// Client reads from a cache; Reader must not.
	Client client.Client
	Reader client.Reader
	Store  *store.Store
	// Recorder of events, Kueue's and the integration's.
	Recorder kevents.EventRecorder
	Kueue    *configapi.Kueue
	Limits   overrides.Limits
	// PodsWithin is after how long a started TrainJob without pods releases its quota.
	PodsWithin time.Duration
	// Trainer is how the cluster's Trainer takes overrides; it may be Signalbox's own.
	Trainer   *overrides.Dialect
	Placement Placement
	Clock     clock.Clock
}

// Placement knows what keeps a TrainJob from having pods once it is admitted.
type Placement interface {
	// Startable rejects, with an *admission.BlockedError, a TrainJob that requests what this cluster doesn't have. It
	// returns an *admission.PendingError if that can't be determined now. runtime is the TrainJob's runtime, with the
	// gang annotations among those of its template; effective is what the TrainJob runs.
	Startable(
		ctx context.Context, job *api.TrainJob, runtime *trainerapi.TrainingRuntimeSpec, effective *overrides.Effective,
	) error
	// TakesPods rejects, with an *admission.BlockedError, a pod of a started TrainJob's ReplicatedJob, as its JobSet has
	// it, if the namespace doesn't take it now. It returns an *admission.PendingError if that isn't known.
	TakesPods(ctx context.Context, job *api.TrainJob, rj *jobset.ReplicatedJob) error
	// TakesJobs rejects a Job of it, or what JobSet creates before that, in the same way.
	TakesJobs(ctx context.Context, job *api.TrainJob, js *jobset.JobSet, rj *jobset.ReplicatedJob) error
}

// policy is the configuration that decisions depend on.
type policy struct {
	features   gates
	limits     overrides.Limits
	podsWithin time.Duration
	manageAll  bool
	selector   labels.Selector
	ownerKinds []schema.GroupVersionKind // that may own TrainJobs
	ownerUsers []string                  // that may create TrainJobs which these own
	multiKueue bool                      // Kueue's configuration lists TrainJob for MultiKueue
	podsReady  podsReadiness
	resources  *kueueconfig.Resources // of Kueue's configuration
}

// Reconciler keeps TrainJobs and their Workloads in line. A reconcile observes, lets jobframework and pure functions
// decide, and carries out the steps.
type Reconciler struct {
	queues
	store     *store.Store
	recorder  *events.Recorder
	trainer   Trainer
	clock     clock.Clock
	placement Placement
	jobs      frameworks
	caches
}

// frameworks are jobframework's reconcilers: one of them keeps condition PodsReady, too.
type frameworks struct{ plain, podsReady *jobframework.JobReconciler }

// caches are all that a Reconciler keeps between reconciles. They can be lost.
type caches struct {
	memory *memory
	crowds *crowds
	memo   *overrides.Memo
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
	countFromZero(trainer)
	sink := trainer.recorder(config.Recorder)
	waits := jobframework.WithWaitForPodsReady(&kueueconfig.WaitForPodsReady{})
	return &Reconciler{
		queues: queues{config.Client, config.Reader, p}, store: config.Store, recorder: events.NewRecorder(sink),
		trainer: trainer, clock: config.Clock,
		placement: config.Placement,
		jobs: frameworks{
			plain:     jobframework.NewReconciler(config.Client, sink, options(config, p)...),
			podsReady: jobframework.NewReconciler(config.Client, sink, append(options(config, p), waits)...),
		},
		caches: caches{memory: newMemory(), crowds: newCrowds(), memo: overrides.NewMemo(memoized)},
	}, nil
}

func policyOf(config Config) (policy, error) {
	p := policy{
		features: readGates(), limits: config.Limits, podsWithin: config.PodsWithin,
		manageAll: config.Kueue.ManageJobsWithoutQueueName, ownerUsers: config.Kueue.OwnerIdentities,
		multiKueue: ptr.Deref(config.Kueue.MultiKueue, false), podsReady: podsReadinessOf(config.Kueue.WaitForPodsReady),
		resources: config.Kueue.Resources,
	}
	var err error
	if p.selector, err = metav1.LabelSelectorAsSelector(config.Kueue.ManagedJobsNamespaceSelector); err != nil {
		return p, fmt.Errorf("kueue.managedJobsNamespaceSelector: %w", err)
	}
	for i, kind := range config.Kueue.OwnerKinds {
		parsed, _ := schema.ParseKindArg(kind)
		if parsed == nil {
			return p, fmt.Errorf("kueue.ownerKinds[%d] is %q; write Kind.version.group", i, kind)
		}
		p.ownerKinds = append(p.ownerKinds, *parsed)
	}
	return p, nil
}

// options returns what jobframework is told.
func options(config Config, p policy) []jobframework.Option {
	options := []jobframework.Option{
		jobframework.WithManageJobsWithoutQueueName(p.manageAll),
		// It is asked only about TrainJobs that Kueue manages, or that hold quota.
		jobframework.WithManagedJobsNamespaceSelector(labels.Everything()),
		jobframework.WithLabelKeysToCopy(sets.New(config.Kueue.LabelKeysToCopy...)),
		jobframework.WithClock(config.Clock),
		// jobframework asks a cache of queues whether a LocalQueue has its own metrics. Kueue has these, and this cache is
		// empty: with such metrics, jobframework would log an error for each TrainJob whose pods are ready.
		jobframework.WithCache(schdcache.New(config.Client,
			schdcache.WithLocalQueueMetrics(&kueuemetrics.LocalQueueMetricsConfig{Enabled: false}))),
	}
	if after := config.Kueue.AfterDeactivated; after != nil {
		options = append(options, jobframework.WithObjectRetentionPolicies(&kueueconfig.ObjectRetentionPolicies{
			Workloads: &kueueconfig.WorkloadRetentionPolicy{AfterDeactivatedByKueue: after},
		}))
	}
	return options
}

// Prepare sets what jobframework keeps for the whole process: Kueue's feature gates and the kinds that may own
// TrainJobs. It is to be called once, with what installed.Adopt returns, before anything else of this package.
func Prepare(config *configapi.Kueue) error {
	if err := installed.UseGates(config); err != nil {
		return err
	}
	// TrainJob itself isn't registered: one that names another as its owner needs quota of its own, because the other's
	// Workload stands for the other's pods alone.
	for i, kind := range config.OwnerKinds {
		if err := jobframework.RegisterExternalJobType(kind); err != nil {
			return fmt.Errorf("kueue.ownerKinds[%d]: %w", i, err)
		}
	}
	return nil
}

var _ reconcile.Reconciler = (*Reconciler)(nil)

// Reconcile implements reconcile.Reconciler.
func (r *Reconciler) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	o, err := r.observe(ctx, request.NamespacedName)
	if err != nil {
		return r.conclude(ctx, plan{}, reconcile.Result{}, err)
	}
	p, done := beforehand(o)
	err = r.carryOut(ctx, o, p.steps)
	var result reconcile.Result
	if err == nil && !done {
		var further plan
		result, further, err = r.framework(ctx, request, o)
		further.later(p.again)
		p = further
		err = errors.Join(err, r.carryOut(ctx, o, p.steps))
	}
	if err == nil {
		r.countReady(o)
	}
	return r.conclude(ctx, p, result, err)
}

// framework lets jobframework decide, and returns what is to be done then.
func (r *Reconciler) framework(
	ctx context.Context, request reconcile.Request, o *observed,
) (reconcile.Result, plan, error) {
	a := &asked{}
	jobs := r.jobs.plain
	podsReady, later := r.policy.podsReady.awaited(o)
	if podsReady {
		jobs = r.jobs.podsReady
	}
	result, err := jobs.ReconcileGenericJob(ctx, request, &job{o, a, shownOf(o), r.policy.features.admission()})
	if blocked := (*admission.BlockedError)(nil); errors.As(err, &blocked) || errors.Is(err, errStillRunning) {
		err = nil // conditions have the reason, or pods do; what lifts it triggers a reconcile
	}
	p := afterwards(o, a, err != nil)
	p.later(later)
	return result, p, err
}

// conclude returns the result of a reconcile.
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
	if p.again > 0 && (result.RequeueAfter == 0 || p.again < result.RequeueAfter) {
		return reconcile.Result{RequeueAfter: p.again, Priority: ptr.To(laterPriority)}, nil
	}
	return result, nil
}

// gates are the feature gates of Kueue that decisions depend on, read once: they don't change while a process runs.
type gates struct {
	topologyAware, multiLayerTopology, queueLabels, partialAdmission bool
	claimsCounted                                                    bool // or rejected
}

func readGates() gates {
	return gates{
		topologyAware:      features.Enabled(features.TopologyAwareScheduling),
		multiLayerTopology: features.Enabled(features.TASMultiLayerTopology),
		queueLabels:        features.Enabled(features.AssignQueueLabelsForPods),
		partialAdmission:   features.Enabled(features.PartialAdmission),
		claimsCounted: features.Enabled(features.KueueDRAIntegration) ||
			features.Enabled(features.KueueDRARejectWorkloadsWhenDRADisabled),
	}
}

func (g gates) podSets() podsets.Features {
	return podsets.Features{TopologyAware: g.topologyAware, MultiLayerTopology: g.multiLayerTopology}
}

func (g gates) admission() admission.Features {
	return admission.Features{TopologyAware: g.topologyAware, QueueLabels: g.queueLabels}
}
