package integration

import (
	"context"
	"errors"
	"fmt"
	"time"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/sets"
	kevents "k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueueconfig "sigs.k8s.io/kueue/apis/config/v1beta2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	schdcache "sigs.k8s.io/kueue/pkg/cache/scheduler"
	"sigs.k8s.io/kueue/pkg/controller/jobframework"
	"sigs.k8s.io/kueue/pkg/features"
	kueuemetrics "sigs.k8s.io/kueue/pkg/metrics"

	"github.com/signalbox-dev/signalbox/admission"
	"github.com/signalbox-dev/signalbox/admission/avoid"
	"github.com/signalbox-dev/signalbox/admission/boost"
	"github.com/signalbox-dev/signalbox/admission/grow"
	configapi "github.com/signalbox-dev/signalbox/api/config/v1alpha1"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/integration/installed"
	"github.com/signalbox-dev/signalbox/integration/managed"
	"github.com/signalbox-dev/signalbox/overrides"
	"github.com/signalbox-dev/signalbox/overrides/dialect"
	"github.com/signalbox-dev/signalbox/podsets"
	"github.com/signalbox-dev/signalbox/store"
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
	Patience
	// Trainer is how the cluster's Trainer takes overrides; it may be Signalbox's own.
	Trainer   *dialect.Dialect
	Placement Placement
	Clock     clock.Clock
}

// Patience is for how long a TrainJob may hold quota that it doesn't need, or that others are to have.
type Patience struct {
	// PodsWithin is after how long a started TrainJob without pods releases its quota.
	PodsWithin time.Duration
	// CheckpointWithin is for how long a preempted TrainJob may run on until its next checkpoint; 0 for not at all.
	CheckpointWithin time.Duration
	// Boost is what keeps a running TrainJob from being preempted by its equals.
	Boost boost.Policy
	// Avoid is which nodes a TrainJob keeps off that have broken it.
	Avoid avoid.Policy
	// Grow is whether a partially admitted TrainJob gets more nodes while it runs.
	Grow Growing
}

// Growing is how TrainJobs grow, and who knows how far.
type Growing struct {
	grow.Policy
	Room Room
}

// ErrRoomBusy is of a Room that answers another one. It is to be asked again soon.
var ErrRoomBusy = errors.New("another TrainJob's growth is being decided")

// Room knows how many pods Kueue would admit.
type Room interface {
	// Most returns the most pods of a PodSet with which Kueue would admit a slice now, in its ClusterQueue, without a
	// preemption: at least so many, and as many as it has at most; 0 if with none.
	Most(ctx context.Context, slice *kueue.Workload, podSet kueue.PodSetReference, least int32) (int32, error)
}

// PatienceOf returns what the configuration says.
func PatienceOf(config *configapi.Configuration) Patience {
	p := config.Preemption
	return Patience{config.Limits.PodsWithin.Duration, p.CheckpointWithin.Duration,
		boost.Policy{MinimumRuntime: p.MinimumRuntime, CheapestVictim: p.CheapestVictim},
		avoid.PolicyOf(config.Nodes), Growing{Policy: growOf(config.Grow)}}
}

func growOf(config configapi.Grow) grow.Policy {
	if !config.Enabled {
		return grow.Policy{}
	}
	return grow.Policy{Every: config.Every.Duration, Guard: config.Policy}
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
	// MorePods returns how many further pods of it the namespace's ResourceQuotas have room for, at most so many.
	MorePods(ctx context.Context, job *api.TrainJob, rj *jobset.ReplicatedJob, most int32) (int32, error)
}

// policy is the configuration that decisions depend on.
type policy struct {
	Patience
	kueue    *configapi.Kueue
	features gates
	limits   overrides.Limits
	managed  managed.Policy
}

func policyOf(config Config) (policy, error) {
	of, err := managed.PolicyOf(config.Kueue)
	return policy{config.Patience, config.Kueue, readGates(), config.Limits, of}, err
}

// options returns what jobframework is told.
func options(config Config, p policy) []jobframework.Option {
	options := []jobframework.Option{
		jobframework.WithManageJobsWithoutQueueName(p.managed.All),
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

// gates are the feature gates of Kueue that decisions depend on, read once: they don't change while a process runs.
type gates struct {
	podSets          podsets.Features
	admission        admission.Features
	partialAdmission bool
	gatedAdmission   bool
	claimsCounted    bool // or rejected
}

func readGates() gates {
	topologyAware := features.Enabled(features.TopologyAwareScheduling)
	return gates{
		podSets: podsets.Features{
			TopologyAware: topologyAware, MultiLayerTopology: features.Enabled(features.TASMultiLayerTopology),
		},
		admission: admission.Features{
			TopologyAware: topologyAware, QueueLabels: features.Enabled(features.AssignQueueLabelsForPods),
		},
		partialAdmission: features.Enabled(features.PartialAdmission),
		gatedAdmission:   features.Enabled(features.AdmissionGatedBy),
		claimsCounted: features.Enabled(features.KueueDRAIntegration) ||
			features.Enabled(features.KueueDRARejectWorkloadsWhenDRADisabled),
	}
}
