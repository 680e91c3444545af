package integration

import (
	"cmp"
	"time"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/utils/ptr"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/workload"
	workloadevict "sigs.k8s.io/kueue/pkg/workload/evict"
	workloadfinish "sigs.k8s.io/kueue/pkg/workload/finish"

	"github.com/signalbox-dev/signalbox/admission"
	"github.com/signalbox-dev/signalbox/integration/managed"
	"github.com/signalbox-dev/signalbox/overrides/legacy"
	"github.com/signalbox-dev/signalbox/podsets"
	"github.com/signalbox-dev/signalbox/store/events"
)

// beforehand returns what is decided before jobframework is asked, and whether that is all.
func beforehand(o *situation) (p plan, done bool) {
	p.Later(o.left.again)
	switch o.stage {
	case stageBehind:
		p.retry = recheckDelay // the version that was written arrives before that
		return p, true
	case stageDeleted:
		p.Do(afterDeletion(o)...)
		return p, !o.left.over
	case stageSuspended, stageRunning, stageEnded:
	}
	if o.stage == stageSuspended || overdueEnd(o.observed) {
		p.unboost(o)
	}
	p.Do(releaseEarlier(o)...)
	p.setAside(o)
	if o.workloads.earlierRuns || o.workloads.deleted {
		p.Later(recheckDelay) // a watch that missed a creation has no event for the deletion
	}
	if heeds(o.queue.after) {
		p.Do(heed{o.queue.after})
		return p, true // the write triggers the next reconcile
	}
	if wl := failedToStart(o.observed, o.origin); wl != nil && o.managed() {
		p.tryAgain(o, wl)
		p.Do(report(o, &p)...)
		return p, true
	}
	if d := declared(o); d.all {
		p.Do(d.release...)
		p.Later(d.again)
		if o.stage == stageEnded {
			p.unboost(o)
		}
		return p, true
	}
	if o.stage == stageEnded || !o.managed() || o.stage == stageSuspended && o.standing == managed.Unqueued {
		p.Do(release(o.observed)...)
		p.Later(o.queue.again)
		p.Do(report(o, &p)...)
		return p, true
	}
	return p, p.exceptional(o)
}

// exceptional adds what is done with a TrainJob that jobframework has no notion of, and reports whether that is all.
func (p *plan) exceptional(o *situation) (all bool) {
	if refused := o.origin.refuse(o.observed); refused != nil {
		p.Do(report(o, p)...)
		p.Do(refused)
		return true
	}
	if recalled(o) {
		p.Do(suspend{reason: "it was started for another Trainer"})
		p.retry = recheckDelay
		return true
	}
	if all, held := staysSetBack(o); all {
		p.Do(held...)
		p.Do(report(o, p)...)
		p.retry, p.blocked = o.queue.blocked.RetryAfter, true
		return true
	}
	end := unwrittenEnd(o.observed)
	p.Do(end.release...)
	p.Later(end.again)
	return end.all
}

// staysSetBack reports whether nothing is done with a TrainJob that is set back but to put its Workload on hold. What
// its owner changes, the queue say, isn't written to the Workload meanwhile: each change would cost a write.
func staysSetBack(o *situation) (all bool, held []step) {
	if !o.queue.setBack || len(o.workloads.own) != 1 || len(o.workloads.earlier) > 0 || o.left.active ||
		stoppedByUser(o.job) || deactivating(o.observed) {
		return false, nil
	}
	wl := o.workloads.own[0]
	if !workload.IsActive(wl) || !wl.DeletionTimestamp.IsZero() || workloadevict.IsEvicted(wl) ||
		workloadfinish.IsFinished(wl) {
		return false, nil
	}
	if !workload.IsOnHold(wl) {
		held = []step{hold{wl, "Its last start has failed"}}
	}
	return true, held
}

// releaseEarlier returns the steps that remove the finalizer from Workloads of earlier TrainJobs of the name, when the
// last of their pods has ended. The present TrainJob may be one that Kueue doesn't manage: nobody else releases them.
func releaseEarlier(o *situation) []step {
	var steps []step
	for _, wl := range o.workloads.earlier {
		inUse := o.workloads.earlierRuns && podsets.HoldsQuota(wl)
		if !inUse && !wl.DeletionTimestamp.IsZero() && podsets.Finalized(wl) {
			steps = append(steps, releaseWorkload{wl})
		}
	}
	return steps
}

// recalled reports whether a running TrainJob has to be stopped because a previous Trainer was asked to start it and
// didn't: the present one doesn't read the entry that it was to run with. It starts again on the quota that it has.
func recalled(o *situation) bool {
	if !o.managed() || o.stage != stageRunning {
		return false
	}
	record, err := legacy.RecordOf(o.job)
	if err != nil || !o.trainer.Foreign(record) || record.Time == nil {
		return false // what can't be read is reported when the TrainJob stops
	}
	return o.jobSet == nil || !admission.RunsWith(o.jobSet, record.Entry())
}

// waitingRetry is when to reconcile a TrainJob again that is admitted and waits to start; events usually come before.
const waitingRetry = 10 * time.Second

// afterwards returns what follows from what was observed and what jobframework has asked for. frameworkFailed is set if
// jobframework returned an error: then only what it asked for is done.
func afterwards(o *situation, a *asked, frameworkFailed bool) (p plan) {
	p.boost(o, a)
	defer p.begins(o)
	p.grow(o, a)
	if !frameworkFailed {
		p.useFreed(o, a)
	}
	if o.stage == stageRunning && !overdueEnd(o.observed) { // else it was done beforehand
		defer p.unboost(o) // last: nothing delays a stop
	}
	p.Do(a.steps()...)
	if o.stage == stageDeleted || a.start != nil || a.stop != nil {
		return p // a write to the TrainJob triggers the next reconcile
	}
	if frameworkFailed {
		p.Do(stops(o)...)
		return p
	}
	if p.waiting = a.waiting; p.waiting != "" {
		p.retry = cmp.Or(a.retry, waitingRetry)
	} else if b := o.queue.blocked; b != nil {
		p.retry, p.blocked = b.RetryAfter, true
	}
	p.Later(o.queue.again)
	p.Later(a.reclaim.later)
	if until := a.respite.until; !until.IsZero() {
		p.Later(min(until.Sub(o.now), awaitsRecheck))
		p.holds = true
	}
	if a.reclaim.changed {
		p.Do(remember{reclaimed: o.now})
	}
	p.Do(report(o, &p)...)
	p.Do(stops(o)...)
	p.Do(reactivation(o)...)
	attended, after := o.origin.attend(o.observed)
	if attended != nil {
		p.Do(attended)
	}
	p.Later(after)
	p.Do(preparations(o)...)
	p.Later(o.memory.setback.waits(o.now))
	return p
}

// tryAgain deletes the Workload of a TrainJob that could not be started, if the TrainJob or its runtime has changed
// since, or after a time. What has failed before this process was there is taken for what would run now: an upgrade
// queues nothing again.
func (p *plan) tryAgain(o *situation, wl *kueue.Workload) {
	known, inputs := o.memory.setback, inputsOf(o.observed)
	if known.workload != wl.UID {
		finished := apimeta.FindStatusCondition(wl.Status.Conditions, kueue.WorkloadFinished)
		known = known.certain(finished.Reason, finished.Message, inputs, o.now).of(wl)
		if managed.Elsewhere(o.job) {
			p.Do(tell{events.FailedToStart.Of(finished.Message, wl.Name)}) // another cluster has tried
		}
		p.Do(remember{setback: &known})
	}
	if known.stands(inputs, o.now) {
		p.Later(known.until.Sub(o.now))
	} else {
		// A user may stop and resume it, after which it is what it was: that is tried, too.
		p.Do(deleteWorkload{workload: wl}, remember{setback: ptr.To(known.trying())})
	}
}

// preparations returns what a suspended TrainJob needs before its next start.
func preparations(o *situation) []step {
	if o.stage != stageSuspended || o.queue.blocked != nil || o.queue.choice == nil {
		return nil
	}
	var steps []step
	if wl := o.match(); wl != nil && workload.IsOnHold(wl) && !stoppedByUser(o.job) {
		steps = append(steps, unhold{wl})
	}
	if o.memory.setback.waits(o.now) > 0 {
		return steps // one of them was rejected a moment ago
	}
	prepared, _ := o.trainer.prepare(o.observed)
	return append(steps, prepared...)
}
