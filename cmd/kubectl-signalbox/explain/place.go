package explain

import (
	"time"

	utilpriority "sigs.k8s.io/kueue/pkg/util/priority"

	"github.com/signalbox-dev/signalbox/cmd/kubectl-signalbox/simulate"
)

// Waiting is a Workload that waits in the same ClusterQueue.
type Waiting struct {
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	Priority  int32     `json:"priority"`
	Since     time.Time `json:"since"`
}

// Position returns the TrainJob's place in its ClusterQueue, from 1, and how many wait there; 0 if it isn't known.
func (f *Facts) Position() (place, waiting int) {
	lq := f.localQueue()
	if !f.OthersRead || f.Workload == nil || lq == nil {
		return 0, 0
	}
	line := f.Queues.lines[string(lq.Spec.ClusterQueue)]
	if at, waits := f.Queues.places[f.Workload.UID]; waits {
		return at + 1, len(line)
	}
	return 0, 0
}

// ahead returns the first Workloads that Kueue considers before the TrainJob's.
func (f *Facts) ahead(most int) []Waiting {
	place, _ := f.Position()
	if place < 2 {
		return nil
	}
	var ahead []Waiting
	by := f.Queues.Ordering()
	for _, wl := range f.Queues.lines[string(f.localQueue().Spec.ClusterQueue)][:min(most, place-1)] {
		ahead = append(ahead, Waiting{wl.Namespace, simulate.Owner(wl), utilpriority.Priority(wl),
			by.GetQueueOrderTimestamp(wl).Time})
	}
	return ahead
}
