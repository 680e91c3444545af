package integration

import (
	"cmp"
	"slices"
	"time"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/workload"
	workloadevict "sigs.k8s.io/kueue/pkg/workload/evict"
	workloadfinish "sigs.k8s.io/kueue/pkg/workload/finish"

	"github.com/signalbox-dev/signalbox/admission"
	"github.com/signalbox-dev/signalbox/overrides"
	"github.com/signalbox-dev/signalbox/store/events"
)

// asked is what jobframework has asked for in one reconcile. It is carried out afterwards.
type asked struct {
	start *start
	stop  *stop
	// requeue is the Workload to delete, because it was admitted for something else than what would run.
	requeue *deleteWorkload
	// failed is the event of a start that has failed for good; nil if none has.
	failed *events.Event
	// settling is what has to be done before the start.
	settling []step
	// created is the name of the Workload that was made; "" for none.
	created string
	// reclaim is what jobframework was told of the quota.
	reclaim reclaim
	// remember is what to keep of a start that could not be; nil for nothing.
	remember func(*record)
	delay
}

// delay is what an admitted TrainJob waits for before it starts.
type delay struct {
	waiting string        // "" for nothing
	retry   time.Duration // for how long, if that is known
}

// plan is what one reconcile does beside what jobframework has done.
type plan struct {
	steps []step
	// again is when to reconcile next, with the lowest priority, because no event triggers it; 0 for never.
	again time.Duration
	// retry is when to reconcile next a TrainJob that is blocked or waits to start; 0 for never.
	retry time.Duration
	// blocked is set if retry is because the TrainJob is blocked.
	blocked bool
	// waiting is what an admitted TrainJob waits for, for the log.
	waiting string
}

func (p *plan) do(steps ...step) { p.steps = append(p.steps, steps...) }

// later brings the time of the next reconcile forward.
func (p *plan) later(after time.Duration) {
	if after > 0 && (p.again == 0 || after < p.again) {
		p.again = after
	}
}

// beforehand returns what is decided before jobframework is asked, and whether that is all.
func beforehand(o *observed) (p plan, done bool) {
	p.later(o.left.again)
	switch o.stage {
	case stageBehind:
		p.retry = recheckDelay // the version that was written arrives before that
		return p, true
	case stageDeleted:
		p.do(afterDeletion(o)...)
		return p, !o.left.over
	case stageSuspended, stageRunning, stageEnded:
	}
	p.do(releaseEarlier(o)...)
	if o.workloads.earlierRuns || o.workloads.deleted {
		p.later(recheckDelay) // a watch that missed a creation has no event for the deletion
	}
	if wl := failedToStart(o); wl != nil && o.managed() {
		p.tryAgain(o, wl)
		p.do(report(o, &p)...)
		return p, true
	}
	if d := declared(o); d.all {
		p.do(d.release...)
		p.later(d.again)
		return p, true
	}
	if o.stage == stageEnded || !o.managed() || o.stage == stageSuspended && o.standing == unqueued {
		p.do(release(o)...)
		p.later(o.queue.again)
		p.do(report(o, &p)...)
		return p, true
	}
	return p, p.exceptional(o)
}

// exceptional adds what is done with a TrainJob that jobframework has no notion of, and reports whether that is all.
func (p *plan) exceptional(o *observed) (all bool) {
	if refused := o.place.refuse(o); refused != nil {
		p.do(report(o, p)...)
		p.do(refused)
		return true
	}
	if recalled(o) {
		p.do(suspend{reason: "it was started for another Trainer"})
		p.retry = recheckDelay
		return true
	}
	if all, held := staysSetBack(o); all {
		p.do(held...)
		p.do(report(o, p)...)
		p.retry, p.blocked = o.queue.blocked.RetryAfter, true
		return true
	}
	end := unwrittenEnd(o)
	p.do(end.release...)
	p.later(end.again)
	return end.all
}

// staysSetBack reports whether nothing is done with a TrainJob that is set back but to put its Workload on hold. What
// its owner changes, the queue say, isn't written to the Workload meanwhile: each change would cost a write.
func staysSetBack(o *observed) (all bool, held []step) {
	if !o.queue.setBack || len(o.workloads.own) != 1 || len(o.workloads.earlier) > 0 || o.active() ||
		stoppedByUser(o.job) || deactivating(o) {
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
func releaseEarlier(o *observed) []step {
	var steps []step
	for _, wl := range o.workloads.earlier {
		inUse := o.workloads.earlierRuns && holdsQuota(wl)
		if !inUse && !wl.DeletionTimestamp.IsZero() && finalized(wl) {
			steps = append(steps, releaseWorkload{wl})
		}
	}
	return steps
}

// recalled reports whether a running TrainJob has to be stopped because a previous Trainer was asked to start it and
// didn't: the present one doesn't read the entry that it was to run with. It starts again on the quota that it has.
func recalled(o *observed) bool {
	if !o.managed() || o.stage != stageRunning {
		return false
	}
	record, err := overrides.RecordOf(o.job)
	if err != nil || !o.trainer.dialect().Foreign(record) || record.Time == nil {
		return false // what can't be read is reported when the TrainJob stops
	}
	return o.jobSet == nil || !admission.RunsWith(o.jobSet, record.Entry())
}

// waitingRetry is when to reconcile a TrainJob again that is admitted and waits to start; events usually come before.
const waitingRetry = 10 * time.Second

// afterwards returns what follows from what was observed and what jobframework has asked for. frameworkFailed is set if
// jobframework returned an error: then only what it asked for is done.
func afterwards(o *observed, a *asked, frameworkFailed bool) (p plan) {
	p.do(a.steps()...)
	if o.stage == stageDeleted || a.start != nil || a.stop != nil {
		return p // a write to the TrainJob triggers the next reconcile
	}
	if frameworkFailed {
		p.do(stops(o)...)
		return p
	}
	if p.waiting = a.waiting; p.waiting != "" {
		p.retry = cmp.Or(a.retry, waitingRetry)
	} else if b := o.queue.blocked; b != nil {
		p.retry, p.blocked = b.RetryAfter, true
	}
	p.later(o.queue.again)
	p.later(a.reclaim.later)
	if a.reclaim.changed {
		p.do(remember{func(r *record) { r.reclaimed = o.now }})
	}
	p.do(report(o, &p)...)
	p.do(stops(o)...)
	p.do(reactivation(o)...)
	attended, after := o.place.attend(o)
	if attended != nil {
		p.do(attended)
	}
	p.later(after)
	p.do(preparations(o)...)
	p.later(o.memory.setback.waits(o.now))
	return p
}

// steps returns what jobframework has asked for, and what is to be remembered of it.
func (a *asked) steps() []step {
	var steps []step
	if a.created != "" {
		steps = append(steps, remember{func(r *record) { r.workload = a.created }})
	}
	if a.stop != nil {
		steps = append(steps, *a.stop)
	}
	if a.start != nil {
		steps = append(steps, *a.start)
	}
	if a.requeue != nil {
		steps = append(steps, *a.requeue)
	}
	if a.remember != nil {
		steps = append(steps, remember{a.remember})
	}
	if a.failed != nil {
		steps = append(steps, failStart{*a.failed})
	}
	return append(steps, a.settling...)
}

// tryAgain deletes the Workload of a TrainJob that could not be started, if the TrainJob or its runtime has changed
// since, or after a time. What has failed before this process was there is taken for what would run now: an upgrade
// queues nothing again.
func (p *plan) tryAgain(o *observed, wl *kueue.Workload) {
	known, inputs := o.memory.setback, inputsOf(o)
	if known.workload != wl.UID {
		finished := apimeta.FindStatusCondition(wl.Status.Conditions, kueue.WorkloadFinished)
		known = known.certain(finished.Reason, finished.Message, inputs, o.now).of(wl)
		if elsewhere(o.job) {
			p.do(tell{events.FailedToStart.Of(finished.Message, wl.Name)}) // another cluster has tried
		}
		p.do(remember{func(r *record) { r.setback = known }})
	}
	if known.stands(inputs, o.now) {
		p.later(known.until.Sub(o.now))
	} else {
		// A user may stop and resume it, after which it is what it was: that is tried, too.
		p.do(deleteWorkload{workload: wl}, remember{func(r *record) { r.setback = r.setback.trying() }})
	}
}

// askedAgain reports whether a user has deleted the Workload of a TrainJob that could not be started, which is kept
// until the next attempt. That is tried after setbackLook, and again after twice as long each time: an attempt may
// preempt others, and Kueue deletes finished Workloads by itself where objectRetentionPolicies says so.
func askedAgain(o *observed) bool {
	s := o.memory.setback
	after := min(setbackLook<<min(s.asked, 6), setbackFor)
	return !s.tried() && o.now.Sub(s.since) >= after &&
		s.reason != ReasonStartRejected && s.reason != ReasonAdmissionMismatch &&
		!slices.ContainsFunc(o.workloads.own, func(wl *kueue.Workload) bool { return wl.DeletionTimestamp.IsZero() })
}

// failedToStart returns the Workload of a TrainJob that was finished because it could not be started, and that is
// deleted when the TrainJob or its runtime has changed; nil if there is none.
func failedToStart(o *observed) *kueue.Workload {
	if o.stage != stageSuspended {
		return nil
	}
	for _, wl := range o.workloads.own {
		c := apimeta.FindStatusCondition(wl.Status.Conditions, kueue.WorkloadFinished)
		if c != nil && o.place.triesAgain(c) && wl.DeletionTimestamp.IsZero() {
			return wl
		}
	}
	return nil
}

// preparations returns what a suspended TrainJob needs before its next start.
func preparations(o *observed) []step {
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
	prepared, _ := o.trainer.prepare(o)
	return append(steps, prepared...)
}
