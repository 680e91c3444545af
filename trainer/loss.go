package trainer

import (
	"strconv"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	workloadfinish "sigs.k8s.io/kueue/pkg/workload/finish"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/store"
	"github.com/signalbox-dev/signalbox/store/events"
)

// A TrainJob whose JobSet fails after it has lost a pod with its node is restarted, within a budget of its own. So is
// one of which a pod that was told to end, by a drain, has ended with success: its Job counts that as the program's
// end. It is suspended and keeps its Workload: when its pods have ended, it starts again on the quota that it has, or,
// if what it was admitted for isn't what it would run any more, it is queued again. What was lost is in the status, so
// that a manager that is killed goes on where it was.

// restartsOf returns how often a TrainJob may be restarted after a loss. The webhook rejects other values.
func restartsOf(job *api.TrainJob) int32 {
	n, err := strconv.ParseUint(job.Annotations[api.RestartsAnnotation], 10, 31)
	if err != nil {
		return api.DefaultRestarts
	}
	return int32(n)
}

// checkRestarts rejects a budget that is no number.
func checkRestarts(path *field.Path, annotations map[string]string) field.ErrorList {
	value, set := annotations[api.RestartsAnnotation]
	if _, err := strconv.ParseUint(value, 10, 31); !set || err == nil {
		return nil
	}
	return field.ErrorList{field.Invalid(path.Key(api.RestartsAnnotation), value,
		"must be a whole number of restarts, 0 for none")}
}

// restarts reports whether the end of a JobSet is none of its TrainJob: the TrainJob is restarted instead. One that
// Kueue doesn't manage has no Workload, and nobody would start it again, as one whose Workload is finished. Once
// decided, that stands, whatever else becomes of the Workload.
func restarts(job *api.TrainJob, js *jobset.JobSet, wl *kueue.Workload) bool {
	lost := job.Status.Lost
	if lost == nil || lost.JobSet != js.UID || wl != nil && workloadfinish.IsFinished(wl) {
		return false
	}
	return lost.Restarting || wl != nil && lost.Restarts < restartsOf(job) &&
		apimeta.IsStatusConditionTrue(js.Status.Conditions, string(jobset.JobSetFailed))
}

// decideLoss returns the next step of a TrainJob that has lost a pod; nil if nothing is to be done about it.
func decideLoss(o *observed) step {
	switch {
	case !o.running() || !o.jobSetStays():
		return nil
	case o.workload != nil && !workloadfinish.IsFinished(o.workload):
		return stepOfLoss(o, lossOf(o.job, o.jobSet))
	case o.workload == nil && restarts(o.job, o.jobSet, nil):
		return suspend{}
	}
	return nil
}

// lossOf returns what is recorded of a JobSet's losses. Earlier JobSets leave how often the TrainJob was restarted.
func lossOf(job *api.TrainJob, js *jobset.JobSet) api.Loss {
	old := ptr.Deref(job.Status.Lost, api.Loss{})
	if old.JobSet == js.UID {
		return old
	}
	return api.Loss{JobSet: js.UID, Restarts: old.Restarts}
}

func stepOfLoss(o *observed, lost api.Loss) step {
	most := restartsOf(o.job)
	cut := o.lostPod != nil && store.PodCutShort(o.lostPod) && lost.Restarts < most
	switch {
	case o.lostPod != nil && lost.Pod == "" && lost.Restarts < most:
		lost.Pod = o.lostPod.Name
		return writeLoss{lost, events.PodLost.Of(lost.Pod, lost.Restarts, most)}
	case lost.Restarting:
		return suspend{}
	case cut:
		lost.Pod = o.lostPod.Name
		lost.Restarting, lost.Restarts = true, lost.Restarts+1
		return writeLoss{lost, events.CutShort.Of(lost.Pod, lost.Restarts, most)}
	case restarts(o.job, o.jobSet, o.workload):
		lost.Restarting, lost.Restarts = true, lost.Restarts+1
		return writeLoss{lost, events.Restarting.Of(lost.Pod, lost.Restarts, most)}
	}
	return nil
}
