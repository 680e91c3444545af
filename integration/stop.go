package integration

import (
	"slices"
	"time"

	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/workload"
	workloadfinish "sigs.k8s.io/kueue/pkg/workload/finish"

	"github.com/signalbox-dev/signalbox/admission"
	"github.com/signalbox-dev/signalbox/admission/checkpoint"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/integration/managed"
	"github.com/signalbox-dev/signalbox/podsets"
)

// suspendsDeleted reports whether a TrainJob that is being deleted, and that a finalizer keeps, has to be suspended so
// that its pods end.
func suspendsDeleted(o *situation) bool {
	return o.job.UID != "" && !o.suspended() && !o.ended() && !o.trainer.deletesJobSet &&
		o.jobSet != nil && o.jobSet.DeletionTimestamp.IsZero()
}

// afterDeletion returns the steps for a TrainJob that is deleted: they stop it, and free what others keep.
func afterDeletion(o *situation) []step {
	var steps []step
	for _, wl := range o.workloads.own { // all of them
		if podsets.SliceOf(wl) != nil && !podsets.HoldsQuota(wl) && !workloadfinish.IsFinished(wl) {
			steps = append(steps, withdraw{wl}) // Kueue would admit it, for pods that are ending
		}
	}
	if !o.left.over && suspendsDeleted(o) {
		steps = append(steps, suspend{reason: "the TrainJob is being deleted"})
	}
	steps = append(steps, unblockDeletion(o.observed)...)
	if o.left.over {
		steps = append(steps, freeKept(o.observed)...)
	}
	return steps
}

// stops returns the steps that stop a TrainJob, and that free its quota. They depend on nothing that jobframework does.
func stops(o *situation) []step {
	steps := slices.Concat(giveBack(o), deactivation(o), holding(o))
	if len(steps) == 0 && o.stage == stageRunning && !o.memory.stopRejected.since.IsZero() {
		return []step{remember{stops: true}} // nothing stops it any more
	}
	return steps
}

// giveBack returns the steps that stop a blocked TrainJob that runs, and help one that can't stop.
func giveBack(o *situation) []step {
	switch {
	case o.queue.blocked == nil || o.ended():
		return nil
	case !o.suspended():
		return []step{suspend{reason: "it is blocked: " + o.queue.blocked.Reason}}
	case o.queue.blocked.Reason == admission.ReasonNoPods:
		return o.trainer.stuck(o.observed)
	}
	return append(unblockDeletion(o.observed), freeKept(o.observed)...)
}

// awaitsRecheck is when to look again at a preempted TrainJob that runs on: no event says that its queue is drained.
const awaitsRecheck = 10 * time.Second

// awaits returns until when a preempted TrainJob runs on, zero if it is to be stopped now, and how that is told if it
// wasn't.
func awaits(o *situation, within time.Duration) (r respite) {
	wl := o.match()
	if wl == nil {
		return r
	}
	saved := checkpoint.Saved(o.job, o.jobSet, o.now)
	if within > 0 && mayRunOn(o) {
		r.until = checkpoint.Awaited(o.job, wl, saved, within, o.now)
	}
	told, announced := wl.Annotations[checkpoint.UntilAnnotation]
	switch {
	case r.until.IsZero() && announced:
		r.announce = &announce{workload: wl}
	case r.until.IsZero() || r.until.Equal(o.memory.announced) || told == r.until.UTC().Format(time.RFC3339):
	default:
		r.announce = &announce{wl, r.until, saved.Value}
	}
	return r
}

// mayRunOn reports whether nothing but a preemption stops a TrainJob, and it may save its work. Where two clusters are
// concerned it may not: Kueue passes on what happens in one of them only when it has stopped in the other.
func mayRunOn(o *situation) bool {
	return o.stage == stageRunning && o.ready() && !o.queue.drained && o.queue.blocked == nil && !stoppedByUser(o.job) &&
		!deactivating(o.observed) && !managed.Elsewhere(o.job) && o.job.Labels[kueue.MultiKueueOriginLabel] == ""
}

// deactivating reports whether the Workload is to be deactivated when the last pod has ended, as an admin has asked
// for.
func deactivating(o *observed) bool {
	wl := o.match()
	return wl != nil && workload.IsActive(wl) && !workloadfinish.IsFinished(wl) &&
		(wl.Annotations[api.DeactivateAnnotation] != "" || slices.ContainsFunc(o.workloads.aside, asksInVain))
}

// asksInVain reports whether an admin has deactivated a Workload that a slice has replaced meanwhile, or is about to.
// It stays until the slice is deactivated.
func asksInVain(wl *kueue.Workload) bool {
	return (wl.Annotations[api.DeactivateAnnotation] != "" || !workload.IsActive(wl)) &&
		(podsets.Replaced(wl) || podsets.HoldsQuota(wl))
}

// holding returns the steps that stop a TrainJob which its user has stopped, and keep it out of its queue. jobframework
// puts a Workload with quota on hold (job.IsOnHold).
func holding(o *situation) []step {
	if !stoppedByUser(o.job) || o.ended() || o.standing == managed.Owned || !o.managed() {
		return nil
	}
	if !o.suspended() {
		return []step{suspend{reason: "its user has stopped it", eviction: "StoppedByUser"}}
	}
	wl := o.match()
	if wl == nil || workload.HasQuotaReservation(wl) || workload.IsOnHold(wl) || workloadfinish.IsFinished(wl) {
		return nil
	}
	return []step{hold{wl, "It is stopped by annotation " + api.StopAnnotation}}
}

// reactivation returns the step that activates the Workload of a TrainJob that its user had stopped, and resumes, if a
// Signalbox before v0.2 has deactivated it for that. What an admin has deactivated stays so.
func reactivation(o *situation) []step {
	wl := o.match()
	if wl == nil || workload.IsActive(wl) || wl.Annotations[api.StopAnnotation] == "" || stoppedByUser(o.job) ||
		workloadfinish.IsFinished(wl) || o.ended() {
		return nil
	}
	return []step{activate{wl}}
}

// deactivation returns the step that stops a TrainJob whose Workload is to be deactivated, or deactivates that when the
// last pod has ended.
func deactivation(o *situation) []step {
	switch {
	case !deactivating(o.observed):
		return nil
	case !o.suspended() && !o.ended():
		return []step{suspend{reason: "its Workload is deactivated", eviction: kueue.WorkloadDeactivated}}
	case o.origin.awaitsEnd && o.left.active:
		return nil
	}
	wl := o.match()
	return []step{deactivate{wl}}
}
