package integration

import (
	"time"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/workload"
	workloadfinish "sigs.k8s.io/kueue/pkg/workload/finish"

	"github.com/signalbox-dev/signalbox/admission"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/events"
	"github.com/signalbox-dev/signalbox/overrides"
)

// asked is what jobframework has asked for in one reconcile. It is carried out afterwards.
type asked struct {
	start *start
	stop  *stop
	// requeue is the Workload to delete, because it was admitted for something else than what would run.
	requeue *deleteWorkload
	// failed is the event of a start that has failed for good; nil if none has.
	failed *events.Event
	// told is an event about what has happened elsewhere; nil for none.
	told *events.Event
	// settling is what has to be done before the start.
	settling []step
	// created is the name of the Workload that was made; "" for none.
	created string
	// reclaim is what jobframework was told of the quota.
	reclaim reclaim
	// waiting is what an admitted TrainJob waits for; "" for nothing.
	waiting string
	// declared is set when jobframework has declared the end to Kueue.
	declared bool
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
		if !o.left.over && suspendsDeleted(o) {
			p.do(suspend{reason: "the TrainJob is being deleted"})
		}
		return p, !o.left.over
	case stageSuspended, stageRunning, stageEnded:
	}
	p.do(releaseEarlier(o)...)
	if o.workloads.earlierRuns || o.workloads.deleted {
		p.later(recheckDelay) // a watch that missed a creation has no event for the deletion
	}
	if d := declared(o); d.all {
		p.do(d.release...)
		p.later(d.again)
		return p, true
	}
	if refused := o.place.refuse(o); refused != nil {
		p.do(report(o, &p)...)
		p.do(refused)
		return p, true
	}
	if recalled(o) {
		p.do(suspend{reason: "it was started for another Trainer"})
		p.retry = recheckDelay
		return p, true
	}
	return p, false
}

// suspendsDeleted reports whether a TrainJob that is being deleted, and that a finalizer keeps, has to be suspended so
// that its pods end.
func suspendsDeleted(o *observed) bool {
	return o.job.UID != "" && !o.suspended() && !o.ended() && !o.trainer.deletesJobSet() &&
		o.jobSet != nil && o.jobSet.DeletionTimestamp.IsZero()
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

// declaration says whether the end of a TrainJob has been declared to Kueue.
type declaration struct {
	all     bool // nothing is left for jobframework
	release []step
	again   time.Duration
}

// finishedSeen bounds how long the cache may take to have the end of a Workload that this process has declared.
const finishedSeen = 10 * time.Second

// declaredLeft returns for how long a declaration that the cache doesn't have counts. The cache never gets it if Kueue
// v0.19.2, from a stale cache, overwrites the conditions: then the end is declared again.
func declaredLeft(o *observed) time.Duration {
	if !o.ended() {
		return 0
	}
	return finishedSeen - o.now.Sub(o.memory.finished)
}

// declared decides whether the TrainJob's end has been declared, so that no later event repeats it, and which
// finalizers are to be removed.
func declared(o *observed) (d declaration) {
	ended := o.stage == stageEnded
	if !ended && o.stage != stageSuspended {
		return d
	}
	left := declaredLeft(o)
	if len(o.workloads.own)+len(o.workloads.earlier) == 0 {
		return declaration{all: ended && left > 0}
	}
	if len(o.workloads.earlier) > 0 && left <= 0 {
		return declaration{}
	}
	d.all = true
	for _, wl := range o.workloads.own {
		one := declaredBy(o, wl, left)
		if !one.all {
			return declaration{}
		}
		d.release = append(d.release, one.release...)
		if one.again > 0 {
			d.again = one.again
		}
	}
	return d
}

// declaredBy decides the same for one Workload of the TrainJob. left is for how long a declaration counts that the
// cache doesn't have.
func declaredBy(o *observed, wl *kueue.Workload, left time.Duration) declaration {
	switch {
	case !workloadfinish.IsFinished(wl):
		return declaration{all: left > 0, again: left}
	case !finalized(wl):
		return declaration{all: true}
	case o.stage != stageEnded:
		return declaration{} // jobframework removes it
	}
	if wait := releaseWait(o, wl); wait > 0 {
		return declaration{all: true, again: wait}
	}
	return declaration{all: true, release: []step{releaseWorkload{wl}}}
}

// releaseAtLeast is for how long after its end a Workload keeps its finalizer. For as long after its start, a manager
// removes no finalizers: it doesn't know yet how many other TrainJobs there are, and starts what was admitted
// meanwhile.
const releaseAtLeast = time.Minute

// releaseDelay returns for how long after its end a TrainJob's Workload keeps the finalizer, with so many others that
// have not ended: a minute, and 200 ms for each of the others, at most ten minutes. Nobody waits for that write: it
// follows the burst that the TrainJob was part of, or the deletion of the Workload.
func releaseDelay(others int) time.Duration {
	return min(releaseAtLeast+time.Duration(others)*200*time.Millisecond, 10*time.Minute)
}

// releaseWait returns how long a finished Workload still keeps its finalizer; 0 or less if it is due.
func releaseWait(o *observed, wl *kueue.Workload) time.Duration {
	if !wl.DeletionTimestamp.IsZero() {
		return 0
	}
	ended := apimeta.FindStatusCondition(wl.Status.Conditions, kueue.WorkloadFinished).LastTransitionTime
	return max(releaseDelay(o.memory.unfinished)-o.now.Sub(ended.Time), releaseAtLeast-o.now.Sub(o.memory.since))
}

// recalled reports whether a running TrainJob has to be stopped because a previous Trainer was asked to start it and
// didn't: the present one doesn't read the entry that it was to run with. It starts again on the quota that it has.
func recalled(o *observed) bool {
	if !o.managed || o.stage != stageRunning {
		return false
	}
	record, err := overrides.RecordOf(o.job)
	if err != nil || !o.trainer.Foreign(record) || record.Time == nil {
		return false // what can't be read is reported when the TrainJob stops
	}
	return o.jobSet == nil || !admission.RunsWith(o.jobSet, record.Entry(o.job))
}

// waitingRetry is when to reconcile a TrainJob again that is admitted and waits to start; events usually come before.
const waitingRetry = 10 * time.Second

// afterwards returns what follows from what was observed and what jobframework has asked for. frameworkFailed is set if
// jobframework returned an error: then only what it asked for is done.
func afterwards(o *observed, a *asked, frameworkFailed bool) (p plan) {
	p.do(a.steps(o.now)...)
	if frameworkFailed || o.stage == stageDeleted || a.start != nil || a.stop != nil {
		return p // a write to the TrainJob triggers the next reconcile
	}
	if p.waiting = a.waiting; p.waiting != "" {
		p.retry = waitingRetry
	} else if b := o.queue.blocked; b != nil {
		p.retry, p.blocked = b.RetryAfter, true
	}
	p.later(o.queue.again)
	p.later(a.reclaim.later)
	if a.reclaim.changed {
		p.do(remember{func(r *record) { r.reclaimed = o.now }})
	}
	p.do(report(o, &p)...)
	p.do(giveBack(o)...)
	p.do(deactivation(o)...)
	p.do(reactivation(o)...)
	attended, after := o.place.attend(o)
	if attended != nil {
		p.do(attended)
	}
	p.later(after)
	p.do(preparations(o)...)
	return p
}

// steps returns what jobframework has asked for, and what is to be remembered of it.
func (a *asked) steps(now time.Time) []step {
	var steps []step
	if a.created != "" {
		steps = append(steps, remember{func(r *record) { r.workload = a.created }})
	}
	if a.declared {
		steps = append(steps, remember{func(r *record) { r.finished = now }})
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
	if a.failed != nil {
		steps = append(steps, failStart{*a.failed})
	}
	if a.told != nil {
		steps = append(steps, tell{*a.told})
	}
	return append(steps, a.settling...)
}

// giveBack returns the steps that stop a blocked TrainJob that runs, and help one that can't stop.
func giveBack(o *observed) []step {
	switch {
	case o.queue.blocked == nil || o.ended():
		return nil
	case !o.suspended():
		return []step{suspend{reason: "it is blocked: " + o.queue.blocked.Reason}}
	case o.queue.blocked.Reason == ReasonNoPods:
		return o.trainer.stuck(o)
	}
	return nil
}

// deactivating reports whether the Workload is to be deactivated when the last pod has ended: an admin has asked for
// it, or a user has stopped the TrainJob.
func deactivating(o *observed) bool {
	wl := o.match()
	return wl != nil && (wl.Annotations[DeactivateAnnotation] != "" || stoppedByUser(o.job)) && workload.IsActive(wl) &&
		!workloadfinish.IsFinished(wl)
}

func stoppedByUser(job *api.TrainJob) bool {
	_, stopped := job.Annotations[api.StopAnnotation]
	return stopped
}

// reactivation returns the step that queues a TrainJob again that its user had stopped. What an admin has deactivated
// stays so.
func reactivation(o *observed) []step {
	wl := o.match()
	if wl == nil || workload.IsActive(wl) || wl.Annotations[api.StopAnnotation] == "" || stoppedByUser(o.job) ||
		workloadfinish.IsFinished(wl) || o.ended() {
		return nil
	}
	return []step{activate{wl}}
}

// deactivation returns the step that stops a TrainJob whose Workload is to be deactivated, or deactivates that when the
// last pod has ended.
func deactivation(o *observed) []step {
	switch {
	case !deactivating(o):
		return nil
	case !o.suspended() && !o.ended():
		return []step{suspend{reason: "its Workload is deactivated", eviction: kueue.WorkloadDeactivated}}
	case o.place.awaitsEnd() && o.active():
		return nil
	}
	wl := o.match()
	return []step{deactivate{wl, wl.Annotations[DeactivateAnnotation] == ""}}
}

// preparations returns what a suspended TrainJob needs before its next start.
func preparations(o *observed) []step {
	if o.stage != stageSuspended || o.queue.blocked != nil || o.queue.choice == nil {
		return nil
	}
	var steps []step
	if wl := o.match(); wl != nil && workload.IsOnHold(wl) {
		steps = append(steps, unhold{wl})
	}
	prepared, _ := o.trainer.prepare(o)
	return append(steps, prepared...)
}
