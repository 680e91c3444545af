// Package status computes the status of a TrainJob of the bundled Trainer from its JobSet and its Workload, and when a
// change of it is worth a write. It asks and writes nothing.
package status

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

	"github.com/signalbox-dev/signalbox/admission/avoid"
	"github.com/signalbox-dev/signalbox/admission/checkpoint"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides"
	"github.com/signalbox-dev/signalbox/overrides/dialect"
	"github.com/signalbox-dev/signalbox/podsets"
)

// mirrored are the conditions of a Workload that its TrainJob carries.
var mirrored = []string{api.ConditionQuotaReserved, api.ConditionAdmitted, api.ConditionEvicted}

// Running are the conditions that only a running TrainJob has; nil for none.
type Running struct{ Gangs, Stalled *metav1.Condition }

// Of returns the status that a TrainJob should have: Kubeflow Trainer's conditions and job counts, from its
// JobSet, and Kueue's conditions, from its Workload. Both may be nil. An end that was written stays, whatever happens
// to the children afterwards.
func Of(
	job *api.TrainJob, js *jobset.JobSet, wl *kueue.Workload, running Running, now time.Time,
) *api.TrainJobStatus {
	status := job.Status.DeepCopy()
	if trainjobutil.IsTrainJobFinished(job.Upstream()) {
		markGeneration(status, job)
		return status
	}
	expand(status)
	if js != nil && !Restarts(job, js, wl) {
		takeEnd(status, js) // JobSet declares no end of one that is being deleted, so an end was declared before
	}
	setSuspended(status, job, now)
	status.JobsStatus = jobsStatus(job, js)
	status.Initializers = initializersOf(job, js, status.JobsStatus)
	status.Checkpoint = checkpoint.Saved(job, js, now)
	if wl == nil {
		unreserve(status, job, now)
	} else {
		mirror(status, job, wl)
	}
	if expired(job, status, now) {
		apimeta.SetStatusCondition(&status.Conditions, metav1.Condition{
			Type:               trainerapi.TrainJobFailed,
			Status:             metav1.ConditionTrue,
			Reason:             trainerapi.TrainJobDeadlineExceededReason,
			Message:            constants.TrainJobDeadlineExceededMessage,
			LastTransitionTime: metav1.NewTime(now),
		})
	}
	setRunning(status, running)
	markGeneration(status, job)
	status.Flavor, status.Nodes = strings.Join(podsets.Flavors(wl), ","), nodesOf(job, wl)
	condense(status, job)
	return status
}

// setRunning sets the conditions that only a running TrainJob has. One that ends hasn't stalled.
func setRunning(status *api.TrainJobStatus, running Running) {
	if running.Gangs != nil {
		setCondition(status, *running.Gangs)
	} else {
		apimeta.RemoveStatusCondition(&status.Conditions, api.ConditionGangScheduled)
	}
	apimeta.RemoveStatusCondition(&status.Conditions, api.ConditionStalled) // its time may change while it stays False
	if running.Stalled != nil && !Finished(status) {
		status.Conditions = append(status.Conditions, *running.Stalled)
	}
}

// queueConditions are the conditions of status.queue.
var queueConditions = append(slices.Clone(mirrored), api.ConditionGangScheduled, api.ConditionStalled)

// expand brings all conditions of a TrainJob together that condense has written.
func expand(status *api.TrainJobStatus) {
	if start := status.StartTime; start != nil &&
		apimeta.FindStatusCondition(status.Conditions, trainerapi.TrainJobSuspended) == nil {
		status.Conditions = append(status.Conditions, resumed(*start))
	}
	if status.Queue == nil {
		return
	}
	for _, c := range status.Queue.Conditions {
		if apimeta.FindStatusCondition(status.Conditions, c.Type) == nil {
			status.Conditions = append(status.Conditions, c)
		}
	}
}

// condense keeps the conditions of a TrainJob that runs in status.queue alone. The Kubeflow SDK (v0.5.0,
// backends/kubernetes/backend.py, __get_trainjob_from_cr) asks the pods whether a TrainJob is Running only if it has no
// condition, as one of Kubeflow Trainer has none that was never suspended.
func condense(status *api.TrainJobStatus, job *api.TrainJob) {
	status.Queue = nil
	for _, name := range queueConditions {
		if c := apimeta.FindStatusCondition(status.Conditions, name); c != nil {
			if status.Queue == nil {
				status.Queue = &api.QueueStatus{}
			}
			status.Queue.Conditions = append(status.Queue.Conditions, *c)
		}
	}
	if ptr.Deref(job.Spec.Suspend, false) || Finished(status) {
		return
	}
	status.Conditions = slices.DeleteFunc(status.Conditions, func(c metav1.Condition) bool {
		return c.Type == trainerapi.TrainJobSuspended || slices.Contains(queueConditions, c.Type)
	})
}

// takeEnd copies the end of a JobSet.
func takeEnd(status *api.TrainJobStatus, js *jobset.JobSet) {
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

// setSuspended keeps Trainer's condition, and the time of the start: the integration's entry has it.
func setSuspended(status *api.TrainJobStatus, job *api.TrainJob, now time.Time) {
	if ptr.Deref(job.Spec.Suspend, false) {
		status.StartTime = nil
		setCondition(status, metav1.Condition{
			Type: trainerapi.TrainJobSuspended, Status: metav1.ConditionTrue, Reason: trainerapi.TrainJobSuspendedReason,
			Message: constants.TrainJobSuspendedMessage, LastTransitionTime: metav1.NewTime(now),
		})
		return
	}
	c, own := apimeta.FindStatusCondition(status.Conditions, trainerapi.TrainJobSuspended), dialect.Bundled.Own(job)
	switch {
	case own != nil && own.Time != nil:
		status.StartTime = own.Time
	case status.StartTime != nil || c == nil:
		return // a TrainJob that was never suspended has no time of start, as it has no condition
	case c.Status == metav1.ConditionFalse:
		status.StartTime = &c.LastTransitionTime // written by Kubeflow Trainer, or by a previous Signalbox
	default:
		status.StartTime = ptr.To(metav1.NewTime(now))
	}
	setCondition(status, resumed(*status.StartTime))
}

// resumed returns Trainer's condition of a TrainJob that was suspended and runs.
func resumed(start metav1.Time) metav1.Condition {
	return metav1.Condition{
		Type: trainerapi.TrainJobSuspended, Status: metav1.ConditionFalse, Reason: trainerapi.TrainJobResumedReason,
		Message: constants.TrainJobResumedMessage, LastTransitionTime: start,
	}
}

// setCondition sets a condition. If its status changes, its time is the one in c.
func setCondition(status *api.TrainJobStatus, c metav1.Condition) {
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
		return dialect.Bundled.Done(job, nil) // the JobSet is about to be created
	}
	kept := job.Status.JobsStatus
	if js == nil {
		kept = dialect.Bundled.Done(job, nil)
	}
	for _, old := range kept {
		if slices.ContainsFunc(statuses, func(s trainerapi.JobStatus) bool { return s.Name == old.Name }) {
			continue
		}
		if js == nil || ptr.Deref(old.Succeeded, 0) > 0 && podsets.ReplicatedJob(js.Spec.ReplicatedJobs, old.Name) == nil {
			statuses = append(statuses, trainerapi.JobStatus{
				Name: old.Name, Succeeded: old.Succeeded,
				Ready: new(int32), Failed: new(int32), Active: new(int32), Suspended: new(int32),
			})
		}
	}
	return statuses
}

// unreserve says that a suspended TrainJob without a Workload has no quota: one whose slice is gone gets a Workload
// only when its user doesn't stop it any more.
func unreserve(status *api.TrainJobStatus, job *api.TrainJob, now time.Time) {
	if !ptr.Deref(job.Spec.Suspend, false) ||
		!apimeta.IsStatusConditionTrue(status.Conditions, api.ConditionQuotaReserved) {
		return
	}
	setCondition(status, metav1.Condition{
		Type: api.ConditionQuotaReserved, Status: metav1.ConditionFalse, Reason: "Pending", Message: "It has no Workload",
		LastTransitionTime: metav1.NewTime(now),
	})
	apimeta.RemoveStatusCondition(&status.Conditions, api.ConditionAdmitted)
}

// mirror copies the Workload's conditions, with Kueue's reasons, messages and times. A Workload without any waits.
func mirror(status *api.TrainJobStatus, job *api.TrainJob, wl *kueue.Workload) {
	suspended := ptr.Deref(job.Spec.Suspend, false)
	c := apimeta.FindStatusCondition(wl.Status.Conditions, kueue.WorkloadFinished)
	if suspended && c != nil && c.Status == metav1.ConditionTrue {
		// Its start has failed permanently, or its Workload was finished by another client: nothing will start it.
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
			if name == api.ConditionQuotaReserved && c.Status == metav1.ConditionFalse {
				message += keepsOff(job, wl)
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

// keepsOff says off which nodes a TrainJob that waits is queued: they may be all that would fit.
func keepsOff(job *api.TrainJob, wl *kueue.Workload) string {
	hosts := avoid.Written(wl.Spec.PodSets)
	if len(job.Status.Avoided) == 0 || len(hosts) == 0 {
		return ""
	}
	return "; it is queued off nodes that it remembers in status.avoided: " + strings.Join(hosts, ", ")
}

// markGeneration gives the conditions a generation. Kubeflow Trainer's have none, so that a status that it has written
// is written once more, with the state that it lacks.
func markGeneration(status *api.TrainJobStatus, job *api.TrainJob) {
	for i := range status.Conditions {
		if c := &status.Conditions[i]; c.ObservedGeneration == 0 {
			c.ObservedGeneration = job.Generation
		}
	}
}

// nodesOf returns the number of nodes of a partially admitted TrainJob, such as "8 of 16"; "" for others. One that has
// the quota to grow, and waits for a checkpoint to be started with it, still has its former number.
func nodesOf(job *api.TrainJob, wl *kueue.Workload) string {
	if own := dialect.Bundled.Own(job); wl != nil && !ptr.Deref(job.Spec.Suspend, false) {
		if s := podsets.SliceOf(wl); s != nil && s.From == overrides.AdmittedNodes(own) {
			return fmt.Sprintf("%d of %d", s.From, nodesAsked(job, s.Of))
		}
	}
	podSet, fewer := podsets.PartiallyAdmitted(wl)
	if podSet == nil {
		return ""
	}
	all := nodesAsked(job, podSet.Count)
	return fmt.Sprintf("%d of %d", all-fewer, all)
}

// nodesAsked returns how many nodes a TrainJob asks for whose PodSet has so many pods for them.
func nodesAsked(job *api.TrainJob, pods int32) int32 {
	if t := job.Spec.Trainer; t != nil {
		return ptr.Deref(t.NumNodes, pods) // one more than the pods where MPI's launcher is a node
	}
	return pods
}

// maxSeconds is a hundred years, which leaves room in a time.Duration for what is added to it.
const maxSeconds = 100 * 365 * 24 * 60 * 60

// Deadline returns when a running TrainJob has used up its activeDeadlineSeconds, and false if it has none. It counts
// from the last start, as Kubeflow Trainer does. Seconds that a time.Duration can't hold never pass.
func Deadline(job *api.TrainJob, status *api.TrainJobStatus) (time.Time, bool) {
	if job.Spec.ActiveDeadlineSeconds == 0 || ptr.Deref(job.Spec.Suspend, false) {
		return time.Time{}, false
	}
	start := ptr.Deref(status.StartTime, job.CreationTimestamp)
	return start.Add(time.Duration(min(job.Spec.ActiveDeadlineSeconds, maxSeconds)) * time.Second), true
}

func expired(job *api.TrainJob, status *api.TrainJobStatus, now time.Time) bool {
	end, limited := Deadline(job, status)
	return limited && now.After(end) && !Finished(status)
}

// Differs reports whether a status differs from what is written.
func Differs(written, status *api.TrainJobStatus) bool {
	written = written.DeepCopy()
	written.State = status.State // it follows from the rest
	return !equality.Semantic.DeepEqual(written, status)
}

// Finished reports whether a status has the end of a TrainJob.
func Finished(status *api.TrainJobStatus) bool {
	return apimeta.IsStatusConditionTrue(status.Conditions, trainerapi.TrainJobComplete) ||
		apimeta.IsStatusConditionTrue(status.Conditions, trainerapi.TrainJobFailed)
}

func isTrue(c *metav1.Condition) bool { return c != nil && c.Status == metav1.ConditionTrue }

// DeadlineExceeded reports whether the TrainJob has failed by its deadline.
func DeadlineExceeded(status *api.TrainJobStatus) bool {
	c := apimeta.FindStatusCondition(status.Conditions, trainerapi.TrainJobFailed)
	return c != nil && c.Status == metav1.ConditionTrue && c.Reason == trainerapi.TrainJobDeadlineExceededReason
}
