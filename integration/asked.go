package integration

import (
	"time"

	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/signalbox-dev/signalbox/store/steps"
)

// asked is what jobframework has asked for in one reconcile. It is carried out afterwards.
type asked struct {
	start *start
	stop  *stop
	// respite is set instead of stop if a preempted TrainJob runs on until its next checkpoint.
	respite respite
	// noted are further steps: what the start needs before it, and what follows if it is impossible.
	noted []step
	// reclaim is what jobframework was told of the quota.
	reclaim reclaim
	waiting string        // what an admitted TrainJob waits for before it starts; "" for nothing
	retry   time.Duration // for how long, if that is known
}

// respite is until when a preempted TrainJob runs on.
type respite struct {
	until    time.Time // at the latest; zero if it is to be stopped now
	announce *announce // how that is told; nil if it was
}

// plan is what one reconcile does beside what jobframework has done. It is reconciled next with the lowest priority.
type plan struct {
	steps.Plan[step]
	// retry is when to reconcile next a TrainJob that is blocked or waits to start; 0 for never.
	retry time.Duration
	// blocked is set if retry is because the TrainJob is blocked.
	blocked bool
	// holds is set if others wait for what it holds: it isn't reconciled next with the lowest priority.
	holds bool
	// waiting is what an admitted TrainJob waits for, for the log.
	waiting string
}

// steps returns what jobframework has asked for, and what is to be remembered of it.
func (a *asked) steps() []step {
	all := a.noted
	if a.stop != nil {
		all = append(all, *a.stop)
	}
	if a.respite.announce != nil {
		all = append(all, *a.respite.announce)
	}
	if a.start != nil {
		all = append(all, *a.start)
	}
	return all
}

// reclaim is what the quota of a TrainJob is no longer needed for.
type reclaim struct {
	pods []kueue.ReclaimablePod
	// changed is set if the Workload doesn't say so yet.
	changed bool
	// later is when there is more to be given back; 0 for never.
	later time.Duration
}
