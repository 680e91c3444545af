package integration

import (
	"k8s.io/utils/clock"

	"github.com/signalbox-dev/signalbox/overrides"
)

// observer observes TrainJobs. It writes nothing: what this process is to remember is returned with what was
// observed.
type observer struct {
	reads
	trainer Trainer
	clock   clock.Clock
	memory  *memory
	memo    *overrides.Memo
}
