package status

import (
	"slices"
	"time"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// urgent reports whether a change of status is worth a write of its own at once: an end, the reason of a stop, which a
// stall may be, or a node that is avoided, which nothing but the pods shows.
func urgent(before, after *api.TrainJobStatus) bool {
	if !equality.Semantic.DeepEqual(before.Avoided, after.Avoided) {
		return true
	}
	for _, name := range []string{
		trainerapi.TrainJobComplete, trainerapi.TrainJobFailed, api.ConditionEvicted, api.ConditionStalled,
	} {
		if isTrue(after.Condition(name)) && !isTrue(before.Condition(name)) {
			return true
		}
	}
	return false
}

// stateDelay is how long a change of status waits for others to be written with it. A state that is about to be
// followed by another waits for passingDelay, and so do a checkpoint and the end of a TrainJob's first Job. Other
// counts of Jobs wait for countsDelay, as does the end of further Jobs: a TrainJob can have many that end one after the
// other. While a TrainJob starts, counts wait for longestDelay: its state says as much, and it takes a minute until a
// thousand pods are ready. An end doesn't wait. When many TrainJobs of a namespace change at once each waits longer, by
// crowdDelay for every other up to longestDelay: the API server is busy with their starts, and most have changed again
// by then.
const (
	stateDelay   = 2 * time.Second
	passingDelay = 4 * time.Second
	countsDelay  = 30 * time.Second
	longestDelay = 2 * time.Minute
	crowdDelay   = 300 * time.Millisecond
)

// Delay returns how long a change of status may wait for others to be written with it, if so many other TrainJobs
// have had one meanwhile; 0 for not at all.
func Delay(before, after *api.TrainJobStatus, others int) time.Duration {
	if urgent(before, after) {
		return 0
	}
	delay, state := stateDelay, api.StateOf(&after.TrainJobStatus)
	countsAlone := api.StateOf(&before.TrainJobStatus) == state &&
		equality.Semantic.DeepEqual(before.Conditions, after.Conditions) &&
		equality.Semantic.DeepEqual(exceptQuiet(before), exceptQuiet(after))
	saved := !equality.Semantic.DeepEqual(before.Checkpoint, after.Checkpoint)
	if saved && isTrue(after.Condition(trainerapi.TrainJobSuspended)) {
		return 0 // which metric it is may be known by the JobSet alone, which is about to go
	}
	switch {
	case saved:
		delay = passingDelay
	case countsAlone && before.State == state:
		delay = delayOfCounts(state, jobsEnded(before), jobsEnded(after))
	case countsAlone || state == api.StateAdmitted || state == api.StateStarting:
		delay = passingDelay
	}
	return delay + min(time.Duration(others)*crowdDelay, longestDelay)
}

// delayOfCounts returns how long a change of counts alone may wait. before and after are how many Jobs have finished.
func delayOfCounts(state api.TrainJobState, before, after int32) time.Duration {
	switch {
	case before != after && before == 0:
		return passingDelay
	case before == after && state == api.StateStarting:
		return longestDelay
	}
	return countsDelay
}

// exceptQuiet returns the queue's conditions except GangScheduled=True and Stalled=False. They aren't worth a write of
// their own: the pods of a gang that is placed are ready soon, and pods may be ready and not ready in turns.
func exceptQuiet(status *api.TrainJobStatus) []metav1.Condition {
	if status.Queue == nil {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(status.Queue.Conditions), func(c metav1.Condition) bool {
		return c.Type == api.ConditionGangScheduled && c.Status == metav1.ConditionTrue ||
			c.Type == api.ConditionStalled && c.Status == metav1.ConditionFalse
	})
}

// jobsEnded returns how many Jobs of a TrainJob have finished.
func jobsEnded(status *api.TrainJobStatus) int32 {
	n := int32(0)
	for i := range status.JobsStatus {
		n += ptr.Deref(status.JobsStatus[i].Succeeded, 0) + ptr.Deref(status.JobsStatus[i].Failed, 0)
	}
	return n
}
