package trainer

import (
	"time"

	kevents "k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/signalbox-dev/signalbox/admission/avoid"
	"github.com/signalbox-dev/signalbox/overrides"
	"github.com/signalbox-dev/signalbox/store"
	"github.com/signalbox-dev/signalbox/store/events"
	"github.com/signalbox-dev/signalbox/trainer/gang"
)

// fieldManager of the children. It is Kubeflow Trainer's, so that either Trainer takes over what the other has created:
// an apply removes what was applied before under the same name and isn't in it.
const fieldManager = "trainer"

// Config is what a Reconciler is made of.
type Config struct {
	// Client reads from a cache, Reader from the API server itself.
	Client   client.Client
	Reader   client.Reader
	Store    *store.Store
	Builder  *Builder
	Gangs    *gang.Gangs
	Recorder kevents.EventRecorder
	Clock    clock.Clock
	Limits   overrides.Limits
	// Avoid is which nodes are remembered as broken.
	Avoid avoid.Policy
	// Reports is set if this process serves the server to which training processes report (Progress).
	Reports bool
}

// Reconciler creates the children of TrainJobs that were started, deletes those of TrainJobs that were stopped, and
// keeps the status. It runs in one queue with the integration's.
type Reconciler struct {
	Config
	recorder *events.Recorder
	memory   *memory
	// listening is since when this process takes reports; zero if it takes none.
	listening time.Time
}

// NewReconciler returns a Reconciler. Whoever makes the client's cache indexes Workloads by their TrainJobs, as Kueue's
// integrations do (SetupWorkloadOwnerIndex).
func NewReconciler(config Config) *Reconciler {
	r := &Reconciler{Config: config, recorder: events.NewRecorder(config.Recorder), memory: newMemory()}
	if config.Reports {
		r.listening = config.Clock.Now()
	}
	return r
}

// Changed returns the TrainJobs whose gangs have changed.
func (r *Reconciler) Changed() <-chan event.GenericEvent { return r.Gangs.Changed() }
