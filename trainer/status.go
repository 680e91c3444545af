package trainer

import (
	"fmt"
	"slices"
	"strings"
	"time"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"github.com/kubeflow/trainer/v2/pkg/constants"
	trainjobutil "github.com/kubeflow/trainer/v2/pkg/util/trainjob"
	"k8s.io/apimachinery/pkg/api/equality"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides"
	"github.com/signalbox-dev/signalbox/podsets"
)

// mirrored are the conditions of a Workload that its TrainJob carries.
var mirrored = []string{api.ConditionQuotaReserved, api.ConditionAdmitted, api.ConditionEvicted}

// statusOf returns the status that a TrainJob is to have: Kubeflow Trainer's conditions and job counts, from its
// JobSet, and Kueue's conditions, from its Workload; both may be nil. An end that was written stays: whatever becomes
// of the children afterwards, the TrainJob has ended.
func statusOf(job *api.TrainJob, js *jobset.JobSet, wl *kueue.Workload, now time.Time) *trainerapi.TrainJobStatus {
	status := job.Status.TrainJobStatus.DeepCopy()
	if trainjobutil.IsTrainJobFinished(job.Upstream()) {
		markGeneration(status, job)
		return status
	}
	if js != nil && !restarts(job, js, wl) {
		takeEnd(status, js) // JobSet declares no end of one that is being deleted, so an end was declared before
	}
	setSuspended(status, job, now)
	status.JobsStatus = jobsStatus(job, js)
	mirror(status, job, wl)
	if expired(job, status, now) {
		apimeta.SetStatusCondition(&status.Conditions, metav1.Condition{
			Type: trainerapi.TrainJobFailed, Status: metav1.ConditionTrue, Reason: trainerapi.TrainJobDeadlineExceededReason,
			Message: constants.TrainJobDeadlineExceededMessage, LastTransitionTime: metav1.NewTime(now),
		})
	}
	markGeneration(status, job)
	return status
}

// takeEnd copies the end of a JobSet.
func takeEnd(status *trainerapi.TrainJobStatus, js *jobset.JobSet) {
	for _, end := range []struct {
		jobSet   jobset.JobSetConditionType
		trainJob string
	}{{jobset.JobSetCompleted, trainerapi.TrainJobComplete}, {jobset.JobSetFailed, trainerapi.TrainJobFailed}} {
		c := apimeta.FindStatusCondition(js.Status.Conditions, string(end.jobSet))
		if c == nil || c.Status != metav1.ConditionTrue {
			continue
		}
		ended := *c
		ended.Type, ended.ObservedGeneration = end.trainJob, 0
		apimeta.SetStatusCondition(&status.Conditions, ended)
	}
}

// setSuspended keeps Trainer's condition. It turns False at the time of the start, which the deadline counts from: a
// started TrainJob's own entry has it.
func setSuspended(status *trainerapi.TrainJobStatus, job *api.TrainJob, now time.Time) {
	c := metav1.Condition{Type: trainerapi.TrainJobSuspended, LastTransitionTime: metav1.NewTime(now)}
	own := overrides.Bundled.Own(job)
	switch {
	case ptr.Deref(job.Spec.Suspend, false):
		c.Status, c.Reason = metav1.ConditionTrue, trainerapi.TrainJobSuspendedReason
		c.Message = constants.TrainJobSuspendedMessage
	case apimeta.FindStatusCondition(status.Conditions, trainerapi.TrainJobSuspended) != nil || own != nil:
		c.Status, c.Reason = metav1.ConditionFalse, trainerapi.TrainJobResumedReason
		c.Message = constants.TrainJobResumedMessage
		if own != nil && own.Time != nil {
			c.LastTransitionTime = *own.Time
		}
	default:
		return
	}
	setCondition(status, c)
}

// setCondition sets a condition. If its status changes, its time is the one in c.
func setCondition(status *trainerapi.TrainJobStatus, c metav1.Condition) {
	if old := apimeta.FindStatusCondition(status.Conditions, c.Type); old != nil {
		c.ObservedGeneration = old.ObservedGeneration
	}
	apimeta.SetStatusCondition(&status.Conditions, c)
}

// jobsStatus are the JobSet's counts. What the JobSet doesn't have, because it is gone or because it was left out of
// it, keeps what is true without it: what has succeeded.
func jobsStatus(job *api.TrainJob, js *jobset.JobSet) []trainerapi.JobStatus {
	var statuses []trainerapi.JobStatus
	if js != nil {
		statuses = podsets.Statuses(js)
	} else if !ptr.Deref(job.Spec.Suspend, false) {
		return job.Status.JobsStatus // the JobSet is about to be created
	}
	for _, old := range job.Status.JobsStatus {
		if slices.ContainsFunc(statuses, func(s trainerapi.JobStatus) bool { return s.Name == old.Name }) {
			continue
		}
		if js == nil || ptr.Deref(old.Succeeded, 0) > 0 && !hasReplicatedJob(js.Spec.ReplicatedJobs, old.Name) {
			done := old.Succeeded
			if js == nil && editedSinceStop(job) {
				done = new(int32) // it was done for what the TrainJob was then
			}
			statuses = append(statuses, trainerapi.JobStatus{
				Name: old.Name, Succeeded: done,
				Ready: new(int32), Failed: new(int32), Active: new(int32), Suspended: new(int32),
			})
		}
	}
	return statuses
}

// editedSinceStop reports whether an entry was changed since the TrainJob was stopped.
func editedSinceStop(job *api.TrainJob) bool {
	stopped := apimeta.FindStatusCondition(job.Status.Conditions, trainerapi.TrainJobSuspended)
	if stopped == nil || stopped.Status != metav1.ConditionTrue {
		return false
	}
	return slices.ContainsFunc(overrides.Bundled.Others(job), func(e overrides.Entry) bool {
		return e.Time != nil && e.Time.After(stopped.LastTransitionTime.Time)
	})
}

// mirror copies the Workload's conditions, with Kueue's reasons, messages and times. A Workload without any waits.
func mirror(status *trainerapi.TrainJobStatus, job *api.TrainJob, wl *kueue.Workload) {
	if wl == nil {
		return
	}
	suspended := ptr.Deref(job.Spec.Suspend, false)
	c := apimeta.FindStatusCondition(wl.Status.Conditions, kueue.WorkloadFinished)
	if suspended && c != nil && c.Status == metav1.ConditionTrue {
		// Its start has failed for good, or somebody has finished its Workload: nothing will start it.
		ended := metav1.Condition{Reason: c.Reason, Message: c.Message, LastTransitionTime: c.LastTransitionTime}
		ended.Type, ended.Status = api.ConditionBlocked, metav1.ConditionTrue
		setCondition(status, ended)
		ended.Type, ended.Status = api.ConditionQuotaReserved, metav1.ConditionFalse
		setCondition(status, ended)
		apimeta.RemoveStatusCondition(&status.Conditions, api.ConditionAdmitted)
		return
	}
	for _, name := range mirrored {
		c := apimeta.FindStatusCondition(wl.Status.Conditions, name)
		switch {
		case c != nil:
			message := c.Message
			if nodes := nodesOf(job, wl); nodes != "" && name == api.ConditionAdmitted && c.Status == metav1.ConditionTrue {
				message += ", with " + nodes + " nodes"
			}
			setCondition(status, metav1.Condition{
				Type: name, Status: c.Status, Reason: c.Reason, Message: message, LastTransitionTime: c.LastTransitionTime,
			})
		case name == api.ConditionQuotaReserved && suspended:
			setCondition(status, metav1.Condition{
				Type: name, Status: metav1.ConditionFalse, Reason: "Pending",
				Message:            "Workload " + wl.Name + " waits in LocalQueue " + string(wl.Spec.QueueName),
				LastTransitionTime: wl.CreationTimestamp,
			})
		default:
			apimeta.RemoveStatusCondition(&status.Conditions, name)
		}
	}
}

// markGeneration gives the conditions a generation. Kubeflow Trainer's have none, so that a status that it has written
// is written once more, with the state that it lacks.
func markGeneration(status *trainerapi.TrainJobStatus, job *api.TrainJob) {
	for i := range status.Conditions {
		if c := &status.Conditions[i]; c.ObservedGeneration == 0 {
			c.ObservedGeneration = job.Generation
		}
	}
}

// flavorOf returns the ResourceFlavors that the Workload is admitted on, joined by commas; "" if it isn't admitted.
func flavorOf(wl *kueue.Workload) string {
	if wl == nil || wl.Status.Admission == nil {
		return ""
	}
	var names []string
	for _, assignment := range wl.Status.Admission.PodSetAssignments {
		for _, flavor := range assignment.Flavors {
			names = append(names, string(flavor))
		}
	}
	slices.Sort(names)
	return strings.Join(slices.Compact(names), ",")
}

// nodesOf returns the number of nodes of a partially admitted TrainJob, such as "8 of 16"; "" for others.
func nodesOf(job *api.TrainJob, wl *kueue.Workload) string {
	podSet, fewer := podsets.PartiallyAdmitted(wl)
	if podSet == nil {
		return ""
	}
	all := podSet.Count
	if t := job.Spec.Trainer; t != nil {
		all = ptr.Deref(t.NumNodes, all) // one more than the pods where MPI's launcher is a node
	}
	return fmt.Sprintf("%d of %d", all-fewer, all)
}

// deadline returns when a running TrainJob has used up its activeDeadlineSeconds, and false if it has none. It counts
// from the last start, as Kubeflow Trainer does.
func deadline(job *api.TrainJob, status *trainerapi.TrainJobStatus) (time.Time, bool) {
	if job.Spec.ActiveDeadlineSeconds == 0 || ptr.Deref(job.Spec.Suspend, false) {
		return time.Time{}, false
	}
	start := job.CreationTimestamp.Time
	c := apimeta.FindStatusCondition(status.Conditions, trainerapi.TrainJobSuspended)
	if c != nil && c.Status == metav1.ConditionFalse {
		start = c.LastTransitionTime.Time
	}
	return start.Add(time.Duration(job.Spec.ActiveDeadlineSeconds) * time.Second), true
}

func expired(job *api.TrainJob, status *trainerapi.TrainJobStatus, now time.Time) bool {
	if apimeta.IsStatusConditionTrue(status.Conditions, trainerapi.TrainJobComplete) ||
		apimeta.IsStatusConditionTrue(status.Conditions, trainerapi.TrainJobFailed) {
		return false
	}
	end, limited := deadline(job, status)
	return limited && now.After(end)
}

// urgent reports whether a change of status is worth a write of its own at once: an end, or the reason of a stop.
func urgent(before, after *trainerapi.TrainJobStatus) bool {
	for _, name := range []string{trainerapi.TrainJobComplete, trainerapi.TrainJobFailed, api.ConditionEvicted} {
		if apimeta.IsStatusConditionTrue(after.Conditions, name) && !apimeta.IsStatusConditionTrue(before.Conditions, name) {
			return true
		}
	}
	return false
}

// joinDelay is how long a change of status waits for others to be written with it. Counts alone, and a state that is
// about to be followed by another, wait for passingDelay. An end doesn't wait. When many TrainJobs change at once each
// waits longer, by eachDelays for every other up to crowdDelay: the API server is busy with their starts, and most have
// changed again by then.
const (
	joinDelay    = 2 * time.Second
	passingDelay = 4 * time.Second
	eachDelays   = 300 * time.Millisecond
	crowdDelay   = 86 * time.Second
)

// delayOf returns how long a change of status may wait for others to be written with it, if so many other TrainJobs
// have had one meanwhile; 0 for not at all.
func delayOf(before, after *trainerapi.TrainJobStatus, others int) time.Duration {
	if urgent(before, after) {
		return 0
	}
	delay, state := joinDelay, api.StateOf(after)
	countsAlone := equality.Semantic.DeepEqual(before.Conditions, after.Conditions) && api.StateOf(before) == state
	if countsAlone || state == api.StateAdmitted || state == api.StateStarting {
		delay = passingDelay
	}
	return delay + min(time.Duration(others)*eachDelays, crowdDelay)
}

// withGangs returns the status with what the gangs report.
func withGangs(o *observed, status *trainerapi.TrainJobStatus, kept keptGangs) *trainerapi.TrainJobStatus {
	switch {
	case !kept.known || o.ended():
	case kept.condition != nil:
		setCondition(status, *kept.condition)
		markGeneration(status, o.job)
	case !o.running():
		apimeta.RemoveStatusCondition(&status.Conditions, api.ConditionGangScheduled)
	}
	return status
}
