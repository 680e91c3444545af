package trainer

import (
	"time"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/kueue/pkg/workload"
	workloadevict "sigs.k8s.io/kueue/pkg/workload/evict"
	workloadfinish "sigs.k8s.io/kueue/pkg/workload/finish"

	"github.com/signalbox-dev/signalbox/admission"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides/dialect"
	"github.com/signalbox-dev/signalbox/overrides/legacy"
	"github.com/signalbox-dev/signalbox/store/steps"
	"github.com/signalbox-dev/signalbox/trainer/gang"
	"github.com/signalbox-dev/signalbox/trainer/status"
)

// statusPriority is the priority, in the controller's queue, of a TrainJob of which only the status is to be written:
// everything else takes precedence.
const statusPriority = -10

// plan is what one reconcile does.
type plan struct {
	steps.Plan[step]
	// statusAgain is when to reconcile next for a status that waits, with statusPriority; 0 for never.
	statusAgain time.Duration
	// status is what the TrainJob's is to be; nil if nothing was decided of it.
	status *api.TrainJobStatus
}

func (p *plan) result() reconcile.Result {
	if p.statusAgain > 0 && (p.Again == 0 || p.statusAgain <= p.Again) {
		return reconcile.Result{RequeueAfter: p.statusAgain, Priority: ptr.To(statusPriority)}
	}
	return reconcile.Result{RequeueAfter: p.Again}
}

// decideInactive returns what is to be done with a TrainJob of which nothing is to run, or nothing can be decided.
func decideInactive(o *observed) (p plan) {
	switch {
	case o.stage == stageGone:
		p.Do(forget{})
	case o.stage == stageBehind:
		p.Later(time.Second) // the version that was written arrives before that
	case o.stage == stageDeleting && o.jobSetStays():
		p.Do(deleteJobSet{})
	}
	return p
}

// decide returns what is to be done with a TrainJob whose status is to be want, and whose gangs are as in outlook.
func decide(o *observed, want *api.TrainJobStatus, outlook gang.Outlook, pending pendingStatus) (p plan) {
	p.status = want
	ended := status.Finished(want)
	stopping := !ended && o.jobSetStays() && o.suspended()
	if o.groups != nil {
		p.Do(keepGangs{outlook})
		p.Later(outlook.Again)
	}
	wait := status.Delay(&o.job.Status, want, pending.others) - o.now.Sub(pending.since)
	switch {
	case !status.Differs(&o.job.Status, want):
	case wait > 0 && !stopping:
		p.statusAgain = wait
	default:
		p.Do(writeStatus{want}) // it has what is lost with the JobSet
	}
	p.Do(children(o, want, stopping)...)
	if end, limited := status.Deadline(o.job, want); limited && !ended {
		p.Later(max(end.Sub(o.now), 0) + time.Millisecond)
	}
	if o.undecided {
		p.Later(undecidedRecheck)
	}
	if c := waits(want); c != nil {
		p.announce(c, o.now)
	}
	return p
}

// undecidedRecheck is how often a TrainJob is looked at while a container doesn't start, and it isn't known yet whether
// the others do. It reads caches alone.
const undecidedRecheck = 20 * time.Second

// children returns the steps that create or delete the TrainJob's children.
func children(o *observed, want *api.TrainJobStatus, stopping bool) []step {
	ended := status.Finished(want)
	switch {
	case stopping:
		return []step{deleteJobSet{}, deleteSideObjects{}}
	case ended && o.jobSetStays() && status.DeadlineExceeded(want):
		return []step{deleteJobSet{}} // JobSet doesn't know the TrainJob's deadline
	case !ended && startable(o):
		return []step{create{}}
	}
	return nil
}

// waitingAfter is after which time a TrainJob that waits for quota gets an event that says why: the Kubeflow SDK and
// `kubectl describe` show the events of a TrainJob, but not those of its Workload. It gets one for each time that it
// waits. The queue decides most in that time.
const waitingAfter = 30 * time.Second

// announce sends that event when the TrainJob has waited long enough.
func (p *plan) announce(c *metav1.Condition, now time.Time) {
	left := waitingAfter - now.Sub(c.LastTransitionTime.Time)
	switch {
	case left <= 0:
		p.Do(announceWaiting{*c})
	case p.statusAgain == 0 || left < p.statusAgain:
		p.statusAgain = left
	}
}

// waits returns the condition that says why a TrainJob waits for quota; nil if it doesn't.
func waits(want *api.TrainJobStatus) *metav1.Condition {
	if api.StateOf(&want.TrainJobStatus) != api.StateQueued {
		return nil
	}
	return apimeta.FindStatusCondition(want.Conditions, api.ConditionQuotaReserved)
}

// gangCondition returns the condition of the TrainJob's gangs; nil for none.
func gangCondition(o *observed, outlook gang.Outlook) *metav1.Condition {
	known := o.unread == nil && !o.ended()
	switch {
	case known && outlook.Condition != nil:
		return outlook.Condition
	case known && !o.running():
		return nil
	}
	return o.job.Status.Condition(api.ConditionGangScheduled)
}

// startable reports whether a TrainJob that was started has no JobSet yet, and is to have one.
func startable(o *observed) bool {
	return o.jobSet == nil && !o.failed && !o.suspended() && hasQuota(o) && !forAnotherTrainer(o.job)
}

// hasQuota reports whether the pods of a started TrainJob have quota, if they need any. One whose Workload has lost it
// is to be suspended; that the API server rejects this, too, gets it no pods.
func hasQuota(o *observed) bool {
	wl := o.workload
	if wl == nil || admission.IsNeutral(dialect.Bundled.Own(o.job)) {
		return true // Kueue doesn't manage it, or the integration has failed
	}
	return workload.IsAdmitted(wl) && workload.IsActive(wl) && !workloadevict.IsEvicted(wl) &&
		!workloadfinish.IsFinished(wl)
}

// forAnotherTrainer reports whether a TrainJob was started for another Trainer, with an entry that the bundled one
// doesn't read. The integration stops it, and starts it again.
func forAnotherTrainer(job *api.TrainJob) bool {
	record, err := legacy.RecordOf(job)
	return err == nil && dialect.Bundled.Foreign(record)
}
