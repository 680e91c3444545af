package trainer

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/store/events"
	"github.com/signalbox-dev/signalbox/trainer/gang"
)

// step is one thing that a reconcile does: one of the types below. act carries it out.
type step any

type (
	// forget drops what this process remembers of a TrainJob that isn't this Trainer's, or is gone.
	forget struct{}

	// writeStatus writes the status.
	writeStatus struct{ status *api.TrainJobStatus }

	// writeLoss writes what was lost into the status; if it is about a stall, only if the TrainJob hasn't changed.
	writeLoss struct {
		lost   api.Loss
		event  events.Event
		asRead bool
	}

	// stopStalled stops a TrainJob that has stalled, as its user would.
	stopStalled struct {
		since string
		event events.Event
	}

	// suspend stops the TrainJob; the integration starts it again.
	suspend struct{}

	// keepGangs deletes, creates and releases groups of pods.
	keepGangs struct{ outlook gang.Outlook }

	// create creates the children of a TrainJob that was started, the JobSet last.
	create struct{}

	// deleteJobSet deletes the JobSet, in the foreground: it exists until the last of its pods is gone, and as long as
	// it exists, something may run. It is deleted in the version that was observed, because the next may have come to
	// its end.
	deleteJobSet struct{}

	// deleteSideObjects deletes what was created beside the JobSet of a TrainJob that stops; its next start creates it
	// again. A failure doesn't keep the TrainJob running: the side objects are deleted with the TrainJob at the latest.
	deleteSideObjects struct{}

	// announceWaiting sends the event of a TrainJob that waits for quota, unless it has been sent or exceeds the limit.
	announceWaiting struct{ condition metav1.Condition }
)
