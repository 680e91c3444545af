package trainer

import (
	"time"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"k8s.io/apimachinery/pkg/api/equality"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/kueue/pkg/workload"
	workloadevict "sigs.k8s.io/kueue/pkg/workload/evict"
	workloadfinish "sigs.k8s.io/kueue/pkg/workload/finish"

	"github.com/signalbox-dev/signalbox/admission"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides"
)

// plan is what one reconcile does.
type plan struct {
	steps []step
	// again is when to reconcile next, because no event triggers it; 0 for never.
	again time.Duration
	// statusAgain is the same for a status that waits, with statusPriority.
	statusAgain time.Duration
	// status is what the TrainJob's is to be; nil if nothing was decided of it.
	status *api.TrainJobStatus
}

func (p *plan) do(steps ...step) { p.steps = append(p.steps, steps...) }

// later brings the time of the next reconcile forward.
func (p *plan) later(after time.Duration) {
	if after > 0 && (p.again == 0 || after < p.again) {
		p.again = after
	}
}

func (p *plan) result() reconcile.Result {
	if p.statusAgain > 0 && (p.again == 0 || p.statusAgain <= p.again) {
		return reconcile.Result{RequeueAfter: p.statusAgain, Priority: ptr.To(statusPriority)}
	}
	return reconcile.Result{RequeueAfter: p.again}
}

// lifeless returns what is to be done with a TrainJob of which nothing is to run, or nothing can be decided.
func lifeless(o *observed) (p plan) {
	switch {
	case o.stage == stageBehind:
		p.again = time.Second // the version that was written arrives before that
	case o.stage == stageDeleting && o.jobSetStays():
		p.do(deleteJobSet{})
	}
	return p
}

// decide returns what is to be done with a TrainJob whose status is to be status. pending is for how long the status
// has differed; gangsAgain is when the gangs are to be kept again.
func decide(
	o *observed, status *api.TrainJobStatus, pending pendingStatus, gangsAgain time.Duration,
) (p plan) {
	p.status = status
	ended := finished(status)
	stopping := !ended && o.jobSetStays() && o.suspended()
	wait := delayOf(&o.job.Status, status, pending.others) - o.now.Sub(pending.since)
	switch {
	case !differs(o, status):
	case wait > 0 && !stopping:
		p.statusAgain = wait
	default:
		p.do(writeStatus{status}) // it has what is lost with the JobSet
	}
	p.later(gangsAgain)
	p.do(children(o, status, stopping)...)
	if end, limited := deadline(o.job, status); limited && !ended {
		p.later(max(end.Sub(o.now), 0) + time.Millisecond)
	}
	return p
}

// children returns the steps that create or delete the TrainJob's children.
func children(o *observed, status *api.TrainJobStatus, stopping bool) []step {
	ended := finished(status)
	switch {
	case stopping:
		return []step{deleteJobSet{}, deleteSideObjects{}}
	case ended && o.jobSetStays() && deadlineExceeded(status):
		return []step{deleteJobSet{}} // nobody has told the JobSet
	case !ended && startable(o):
		return []step{create{}}
	}
	return nil
}

// tell has a TrainJob that waits told why, when it has waited long enough.
func (p *plan) tell(c *metav1.Condition, now time.Time) {
	left := waitingAfter - now.Sub(c.LastTransitionTime.Time)
	switch {
	case left <= 0:
		p.do(tellWaiting{*c})
	case p.statusAgain == 0 || left < p.statusAgain:
		p.statusAgain = left
	}
}

// startable reports whether a TrainJob that was started has no JobSet yet, and is to have one.
func startable(o *observed) bool {
	return o.jobSet == nil && !o.failed && !o.suspended() && hasQuota(o) && !forAnotherTrainer(o.job)
}

// hasQuota reports whether the pods of a started TrainJob have quota, if they need any. One whose Workload has lost it
// is to be suspended; that the API server rejects this, too, gets it no pods.
func hasQuota(o *observed) bool {
	wl := o.workload
	if wl == nil || admission.IsNeutral(overrides.Bundled.Own(o.job)) {
		return true // Kueue doesn't manage it, or the integration has failed
	}
	return workload.IsAdmitted(wl) && workload.IsActive(wl) && !workloadevict.IsEvicted(wl) &&
		!workloadfinish.IsFinished(wl)
}

// differs reports whether a status differs from what is written.
func differs(o *observed, status *api.TrainJobStatus) bool {
	before := o.job.Status.DeepCopy()
	before.State = status.State // it follows from the rest
	return !equality.Semantic.DeepEqual(before, status)
}

// forAnotherTrainer reports whether a TrainJob was started for another Trainer, with an entry that the bundled one
// doesn't read. The integration stops it, and starts it again.
func forAnotherTrainer(job *api.TrainJob) bool {
	record, err := overrides.RecordOf(job)
	return err == nil && overrides.Bundled.Foreign(record)
}

// deadlineExceeded reports whether the TrainJob has failed by its deadline.
func deadlineExceeded(status *api.TrainJobStatus) bool {
	c := apimeta.FindStatusCondition(status.Conditions, trainerapi.TrainJobFailed)
	return c != nil && c.Status == metav1.ConditionTrue && c.Reason == trainerapi.TrainJobDeadlineExceededReason
}
