package integration

import (
	"fmt"
)

// migration returns the steps that move what a TrainJob said to a previous Trainer into the present one's fields. They
// are taken while nothing runs: only then may entries change. The present Trainer can't stop a JobSet that the previous
// one has created: without what the TrainJob said, it would have to change immutable fields. So the JobSet is deleted.
func migration(o *observed, to string) ([]step, string) {
	waiting := fmt.Sprintf("what it said in spec.%s is not brought to spec.%s yet",
		o.queue.foreign.Field, to)
	if !o.left.active {
		return []step{migrate{record: o.queue.foreign}}, waiting
	}
	if o.jobSet == nil || jobSetSuspended(o.jobSet) || !o.jobSet.DeletionTimestamp.IsZero() {
		return nil, waiting
	}
	return []step{deleteJobSet{jobSet: o.jobSet, foreground: true}}, waiting
}
