package integration

import (
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/signalbox-dev/signalbox/admission"
	"github.com/signalbox-dev/signalbox/podsets"
)

// Whoever may write an object can keep it from being deleted: by a finalizer, or by another object that names it as its
// owner and blocks its deletion. What is kept so holds no quota once nothing of it runs.

// keptBack returns why a TrainJob can't be queued: something of its last run, or its last Workload, is kept.
func keptBack(o *observed) error {
	if o.left.kept != "" {
		by := "look for a finalizer on it or its pods, and for objects that name it as their owner"
		if o.jobSet != nil {
			by = keepers(o.jobSet, metav1.FinalizerDeleteDependents, by)
		}
		return &admission.BlockedError{Reason: ReasonLastRunKept, RetryAfter: keptAfter, Err: fmt.Errorf(
			"%s of the last run isn't deleted, although all its pods have ended; %s", o.left.kept, by)}
	}
	for _, wl := range o.workloads.own {
		if !keptByOthers(wl) {
			continue
		}
		if left := keptIn(wl, o.now); left > 0 {
			o.queue.again = left
			continue
		}
		return &admission.BlockedError{Reason: ReasonWorkloadKept, RetryAfter: keptAfter, Err: fmt.Errorf(
			"Workload %s was deleted and is kept; %s", wl.Name, keepers(wl, "", ""))}
	}
	return nil
}

// keepers says which finalizers but one to remove from an object, or else what otherwise says.
func keepers(o client.Object, but, otherwise string) string {
	others := slices.DeleteFunc(slices.Clone(o.GetFinalizers()), func(name string) bool { return name == but })
	if len(others) == 0 {
		return otherwise
	}
	return "remove its finalizers " + strings.Join(others, ", ")
}

// freeKept returns the steps that give back the quota of Workloads which others keep.
func freeKept(o *observed) []step {
	var steps []step
	for _, wl := range o.workloads.own {
		if keptByOthers(wl) && podsets.HoldsQuota(wl) {
			steps = append(steps, finishWorkload{wl, kueue.WorkloadFinishedReasonOwnerNotFound,
				"The Workload was deleted, and finalizers of others keep it"})
		}
	}
	return steps
}

// unblockDeletion returns the step that lets the deletion of a JobSet go on which something keeps. One that was deleted
// in the background, and that a finalizer keeps, has its dependents deleted too; otherwise its pods would run on. One
// of which nothing runs needn't wait for its dependents any more, of which another may never go.
func unblockDeletion(o *observed) []step {
	js := o.jobSet
	switch {
	case js == nil || js.DeletionTimestamp.IsZero():
		return nil
	case !slices.Contains(js.Finalizers, metav1.FinalizerDeleteDependents):
		if o.left.over || o.left.kept != "" {
			return nil
		}
		return []step{deleteJobSet{jobSet: js, foreground: true}}
	case o.left.kept != "" || o.stage == stageDeleted && o.left.over:
		return []step{deleteJobSet{jobSet: js}}
	}
	return nil
}

// keptAfter is how long after its deletion a JobSet of which nothing runs counts as kept by a finalizer.
const keptAfter = 30 * time.Second

// keptIn returns how long it takes until an object that is being deleted counts as kept by a finalizer; 0 if it isn't
// being deleted, or has been for as long.
func keptIn(o metav1.Object, now time.Time) time.Duration {
	deleted := o.GetDeletionTimestamp()
	if deleted.IsZero() {
		return 0
	}
	return max(keptAfter-now.Sub(deleted.Time), 0)
}

// isKept reports whether a JobSet or a Job is kept by a finalizer: its deletion takes long. Nothing is created for it
// any more.
func isKept(o metav1.Object, now time.Time) bool {
	return !o.GetDeletionTimestamp().IsZero() && keptIn(o, now) == 0
}
