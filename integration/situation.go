package integration

import (
	"k8s.io/utils/clock"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/signalbox-dev/signalbox/podsets"
)

// situation is what was observed of a TrainJob, with those who know what follows from it: its Trainer, and its origin.
type situation struct {
	*observed
	trainer Trainer
	origin  origin
}

// weigh decides whether something of the TrainJob may run. It has to follow each observation of what is left.
func (o *situation) weigh() {
	o.left.active = !o.left.over && (o.ended() || !o.suspended() || o.trainer.active(o.observed))
}

func (o *situation) ready() bool {
	return o.ended() || o.trainer.ready(o.observed)
}

func (o *situation) reclaimable() []kueue.ReclaimablePod {
	if o.jobSet != nil {
		return podsets.Reclaimable(o.jobSet.Spec.ReplicatedJobs, podsets.Final(o.jobSet), podsets.Statuses(o.jobSet))
	}
	return o.trainer.reclaimable(o.observed)
}

// observer observes TrainJobs. It writes nothing: what this process is to remember is returned with what was
// observed.
type observer struct {
	reads
	trainer Trainer
	clock   clock.Clock
	memory  *memory
	meter   *meter
}
