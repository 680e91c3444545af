package integration

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"github.com/kubeflow/trainer/v2/pkg/constants"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/workload"
	workloadevict "sigs.k8s.io/kueue/pkg/workload/evict"
	workloadfinish "sigs.k8s.io/kueue/pkg/workload/finish"

	"github.com/signalbox-dev/signalbox/admission"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/podsets"
)

// No Trainer runs a TrainJob in the cluster that dispatches it, and Kueue copies its status only from a worker that has
// admitted it. Before that, and when no worker will run it, the integration writes its state and reasons.

// reports is false if a worker runs a dispatched TrainJob, or has ended it.
func (dispatchedTrainer) reports(o *observed) bool {
	switch {
	case o.ended():
		return false
	case startFailure(o, dispatched{}) != nil:
		return true
	case runsElsewhere(o.job) && !o.left.lost:
		return false
	case o.queue.blocked != nil:
		return true
	}
	return !slices.ContainsFunc(o.workloads.own, func(wl *kueue.Workload) bool {
		return workload.IsAdmitted(wl) && !o.left.lost || workloadfinish.IsFinished(wl)
	})
}

// rejected returns why no worker runs a dispatched TrainJob: an admission check was rejected, which deactivates its
// Workload, or an admin has deactivated it. It is nil if nothing has.
func (dispatched) rejected(o *observed) *admission.BlockedError {
	for _, wl := range o.workloads.own {
		if workload.IsActive(wl) || stoppedByUser(o.job) || workloadfinish.IsFinished(wl) || o.left.active {
			continue
		}
		why := "its Workload is deactivated"
		if c := apimeta.FindStatusCondition(wl.Status.Conditions, kueue.WorkloadEvicted); c != nil && c.Message != "" {
			why = strings.TrimSuffix(c.Message, ".")
		}
		for i := range wl.Status.AdmissionChecks {
			if check := &wl.Status.AdmissionChecks[i]; check.State == kueue.CheckStateRejected {
				why += fmt.Sprintf("; admission check %s is rejected: %s", check.Name, check.Message)
			}
		}
		return &admission.BlockedError{Reason: ReasonDeactivated, Err: fmt.Errorf("%s. Correct that, and set spec.active of "+
			"Workload %s to true, or delete the Workload", why, wl.Name)}
	}
	return nil
}

// show writes what a dispatched TrainJob waits for into its status: what the bundled Trainer shows of those that run in
// this cluster.
func (dispatched) show(o *observed, status *api.TrainJobStatus) {
	if !o.managed() {
		return // it is in no queue: whoever managedBy names says what it does
	}
	status.StartTime, status.JobsStatus, status.Queue = nil, nil, nil
	show := func(c metav1.Condition) {
		c.ObservedGeneration = o.job.Generation
		apimeta.SetStatusCondition(&status.Conditions, c)
	}
	show(metav1.Condition{Type: trainerapi.TrainJobSuspended, Status: metav1.ConditionTrue,
		Reason: trainerapi.TrainJobSuspendedReason, Message: constants.TrainJobSuspendedMessage,
		LastTransitionTime: metav1.NewTime(o.now)})
	if len(o.workloads.own) > 0 {
		wl := o.workloads.own[0]
		for _, name := range []string{api.ConditionQuotaReserved, api.ConditionEvicted} {
			if c := apimeta.FindStatusCondition(wl.Status.Conditions, name); c != nil {
				show(*c)
			} else if name == api.ConditionQuotaReserved {
				show(metav1.Condition{Type: name, Status: metav1.ConditionFalse, Reason: "Pending",
					Message:            "Workload " + wl.Name + " waits in LocalQueue " + string(wl.Spec.QueueName),
					LastTransitionTime: wl.CreationTimestamp})
			} else {
				apimeta.RemoveStatusCondition(&status.Conditions, name)
			}
		}
		apimeta.RemoveStatusCondition(&status.Conditions, api.ConditionAdmitted)
		if c := notAdmitted(o, wl); c != nil {
			show(*c)
		}
	}
}

// notAdmitted returns the condition Admitted of a TrainJob that has quota here, and that no worker has admitted; nil if
// it has no quota.
func notAdmitted(o *observed, wl *kueue.Workload) *metav1.Condition {
	if !podsets.HoldsQuota(wl) || workload.IsAdmitted(wl) {
		return nil
	}
	since := apimeta.FindStatusCondition(wl.Status.Conditions, kueue.WorkloadQuotaReserved).LastTransitionTime
	var why []string
	for i := range wl.Status.AdmissionChecks {
		if check := &wl.Status.AdmissionChecks[i]; check.State != kueue.CheckStateReady {
			why = append(why, fmt.Sprintf("admission check %s is %s: %s", check.Name, check.State,
				cmp.Or(check.Message, "no worker has admitted it")))
		}
	}
	why = append(why, o.left.unreachable...)
	return &metav1.Condition{Type: api.ConditionAdmitted, Status: metav1.ConditionFalse, Reason: "WaitingForWorker",
		Message: cmp.Or(strings.Join(why, "; "), "no worker has admitted it"), LastTransitionTime: since}
}

// startFailure returns why a suspended TrainJob's Workload was finished that has not run to its end; nil if none was.
func startFailure(o *observed, of originQueues) *admission.BlockedError {
	if wl := failedToStart(o, of); wl != nil {
		c := apimeta.FindStatusCondition(wl.Status.Conditions, kueue.WorkloadFinished)
		return &admission.BlockedError{Reason: c.Reason, Err: errors.New(c.Message)}
	}
	return nil
}

// dispatched is the origin of a TrainJob that MultiKueue gives to another cluster.
type dispatched struct{ local }

// dispatchWithin is how long a Workload with quota may take to be admitted by a worker before Kueue is made to look
// at it again. The time doubles, so that one that waits for a worker to have room costs few writes.
const dispatchWithin = 15 * time.Second

// attend makes Kueue look at a Workload again that has had quota for long and that no worker has admitted.
func (dispatched) attend(o *observed) (s step, after time.Duration) {
	wl := o.match()
	if wl == nil || !podsets.HoldsQuota(wl) || workload.IsAdmitted(wl) || workloadevict.IsEvicted(wl) {
		return nil, 0
	}
	reserved := apimeta.FindStatusCondition(wl.Status.Conditions, kueue.WorkloadQuotaReserved).LastTransitionTime.Time
	next := reserved.Add(dispatchWithin)
	last, err := time.Parse(time.RFC3339, wl.Annotations[DispatchAnnotation])
	if err == nil && last.After(reserved) && !last.After(o.now) { // anybody may write it
		next = reserved.Add(2 * last.Sub(reserved))
	}
	if left := next.Sub(o.now); left > 0 {
		return nil, left
	}
	return lookAgain{wl}, 0
}

// triesAgain is true if a worker has refused the TrainJob; any other end is in its own status.
func (dispatched) triesAgain(finished *metav1.Condition) bool {
	return finished.Reason != kueue.WorkloadFinishedReasonSucceeded &&
		finished.Reason != kueue.WorkloadFinishedReasonFailed
}

func (dispatched) finished(*observed, *kueue.Workload, *asked) {}
