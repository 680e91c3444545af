package gang

import (
	"context"

	batchv1 "k8s.io/api/batch/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/discovery"
	kevents "k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/store/events"
)

// Config is what NewGangs needs. All fields are required.
type Config struct {
	// Client is used for writes only.
	Client client.Client
	// Reader reads from the API server; it must not be a cache.
	Reader client.Reader
	// JobsOf returns the Jobs of a JobSet, from the API server.
	JobsOf func(context.Context, *jobset.JobSet) ([]batchv1.Job, error)
	// Discovery finds the version of the API that the API server serves.
	Discovery discovery.DiscoveryInterface
	// NewCache returns a cache of the objects that Selector selects. It is called when the API server serves the API,
	// which may be long after the start of the process.
	NewCache func() (cache.Cache, error)
	// Recorder emits events about TrainJobs.
	Recorder kevents.EventRecorder
	// Clock is the time by which the age of cached results is measured.
	Clock clock.PassiveClock
	// Mode and Policy are for TrainJobs that have no setting of their own, and whose runtimes have none.
	Mode   api.GangMode
	Policy api.GangPolicy
}

// Gangs creates the PodGroups of TrainJobs that start, restores them while the TrainJobs run, and deletes them
// afterwards.
type Gangs struct {
	config   Config
	defaults Setting
	recorder *events.Recorder
	prober   *prober
	*watcher
}

// NewGangs returns Gangs whose cache runs until ctx ends.
func NewGangs(ctx context.Context, config Config) *Gangs {
	g := &Gangs{
		config: config,
		defaults: Setting{
			Mode: config.Mode, Policy: config.Policy, From: "the manager's configuration, trainer.gangScheduling.mode",
		},
		recorder: events.NewRecorder(config.Recorder),
		watcher: &watcher{
			newCache: config.NewCache, clock: config.Clock, lifetime: ctx, changed: make(chan event.GenericEvent),
			unplaced: unplaced{
				exist: sets.New[types.NamespacedName](), counted: sets.New[types.NamespacedName](),
			},
		},
	}
	g.prober = &prober{reader: config.Reader, discovery: config.Discovery, clock: config.Clock, watch: g.watch}
	return g
}

// Changed returns the channel of the TrainJobs whose groups have changed. It is never closed.
func (g *Gangs) Changed() <-chan event.GenericEvent { return g.changed }
