package integration

import (
	"fmt"
	"time"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/controller/jobframework"
	workloadfinish "sigs.k8s.io/kueue/pkg/workload/finish"

	"github.com/signalbox-dev/signalbox/admission"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/podsets"
)

// origin is what differs with the cluster that a TrainJob is from and the one that runs it: local, dispatched or
// received. What it decides are pure functions of what was observed.
type origin struct {
	// awaitsEnd is set if a Workload is deactivated only when the last pod of its TrainJob has ended.
	awaitsEnd bool
	originQueues
	originReports
}

// originQueues is what an origin decides of the Workload.
type originQueues interface {
	// check rejects a TrainJob whose Workload, of another cluster, isn't what would run here.
	check(o *observed) error
	// equivalent reports whether a prebuilt Workload counts as the TrainJob's.
	equivalent(o *observed, wl *kueue.Workload) bool
	// refuse returns the step that tells another cluster that the TrainJob can't be queued here; nil for none.
	refuse(o *observed) step
	// attend returns the step that a Workload with quota needs to be admitted; nil for none, and when it will need one.
	attend(o *observed) (s step, after time.Duration)
	// triesAgain reports whether a TrainJob whose Workload was finished like that is queued again when it has changed.
	triesAgain(finished *metav1.Condition) bool
	// finished notes what follows from the end of the Workload of a TrainJob that has not ended.
	finished(o *observed, wl *kueue.Workload, a *asked)
}

// originReports is what an origin tells users.
type originReports interface {
	// rejected returns why a TrainJob isn't run although it was queued; nil if nothing is wrong.
	rejected(o *observed) *admission.BlockedError
	// show completes the status of a TrainJob that no Trainer of this cluster writes.
	show(o *observed, status *api.TrainJobStatus)
}

// local is the origin of a TrainJob that is of the cluster that runs it.
type local struct{}

func (local) check(*observed) error { return nil }

func (local) equivalent(o *observed, wl *kueue.Workload) bool { return o.fits(wl) }

func (local) refuse(*observed) step { return nil }

func (local) triesAgain(finished *metav1.Condition) bool {
	return finished.Reason == jobframework.FailedToStartFinishedReason
}

func (local) rejected(*observed) *admission.BlockedError { return nil }

func (local) show(*observed, *api.TrainJobStatus) {}

func (local) attend(*observed) (step, time.Duration) { return nil, 0 }

// finished stops the TrainJob: its quota was released, but Trainer v2.3.0 runs a failed one again whose JobSet was
// deleted (trainer#3737).
func (local) finished(o *observed, _ *kueue.Workload, a *asked) {
	if !o.suspended() && jobSetEnd(o.jobSet) == nil {
		a.stop = &stop{suspend: suspend{reason: "its Workload is finished"}}
	}
}

// received is the origin of a TrainJob that MultiKueue has created here for another cluster.
type received struct{ local }

// equivalent takes any Workload: jobframework would finish one without saying what differs, which check says.
func (received) equivalent(*observed, *kueue.Workload) bool { return true }

// triesAgain is false: the cluster that it is from is told by the end of the Workload.
func (received) triesAgain(*metav1.Condition) bool { return false }

// prebuilt returns the Workload that MultiKueue has created for a TrainJob; nil if the TrainJob hasn't taken it yet.
func prebuilt(o *observed) *kueue.Workload {
	for _, wl := range o.workloads.own {
		if wl.Name == jobframework.PrebuiltWorkloadNameFor(o.job) {
			return wl
		}
	}
	return nil
}

// check rejects a TrainJob whose Workload was computed by another cluster from another runtime.
func (received) check(o *observed) error {
	wl := prebuilt(o)
	if wl == nil {
		return nil
	}
	difference := podsets.Difference(o.queue.podSets, wl.Spec.PodSets)
	if difference == "" {
		return nil
	}
	return blocked(ReasonRuntimesDiffer, fmt.Errorf("runtime %q isn't the same in the cluster that the TrainJob is from "+
		"and in the one that is to run it: here, %s; make them the same", o.job.Spec.RuntimeRef.Name, difference))
}

// refuse ends the Workload. If its quota were released instead, Kueue would dispatch it again at once, and show the
// other cluster nothing of why it doesn't run; it does show the end.
func (received) refuse(o *observed) step {
	wl, why := prebuilt(o), o.queue.blocked
	if o.stage != stageSuspended || why == nil || why.RetryAfter > 0 || wl == nil ||
		workloadfinish.IsFinished(wl) || o.left.active {
		return nil
	}
	return finishWorkload{wl, why.Reason, why.Error()}
}

// failedToStart returns the Workload of a TrainJob that was finished because it could not be started, and that is
// deleted when the TrainJob or its runtime has changed; nil if there is none.
func failedToStart(o *observed, of originQueues) *kueue.Workload {
	if o.stage != stageSuspended {
		return nil
	}
	for _, wl := range o.workloads.own {
		c := apimeta.FindStatusCondition(wl.Status.Conditions, kueue.WorkloadFinished)
		if c != nil && of.triesAgain(c) && wl.DeletionTimestamp.IsZero() {
			return wl
		}
	}
	return nil
}
