package status

import (
	"strconv"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/util/validation/field"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	workloadfinish "sigs.k8s.io/kueue/pkg/workload/finish"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// A TrainJob whose JobSet fails after it has lost a pod with its node is restarted, within a budget of its own. So is
// one of which a pod that was told to end, by a drain, has ended with success: its Job counts that as the program's
// end. It is suspended and keeps its Workload: when its pods have ended, it starts again on the quota that it has, or,
// if what it was admitted for isn't what it would run any more, it is queued again. What was lost is in the status, so
// that a manager that is killed goes on where it was.

// MaxRestarts returns how often a TrainJob may be restarted after a loss or a stall. The webhook rejects other values.
func MaxRestarts(job *api.TrainJob) int32 {
	n, err := strconv.ParseUint(job.Annotations[api.RestartsAnnotation], 10, 31)
	if err != nil {
		return api.DefaultRestarts
	}
	return int32(n)
}

// CheckRestarts rejects a budget that is no number.
func CheckRestarts(path *field.Path, annotations map[string]string) field.ErrorList {
	value, set := annotations[api.RestartsAnnotation]
	if _, err := strconv.ParseUint(value, 10, 31); !set || err == nil {
		return nil
	}
	return field.ErrorList{field.Invalid(path.Key(api.RestartsAnnotation), value,
		"must be a whole number of restarts, 0 for none")}
}

// Restarts reports whether the end of a JobSet is none of its TrainJob: the TrainJob is restarted instead. One that
// Kueue doesn't manage has no Workload, and nothing would start it again, as one whose Workload is finished. Once a
// restart is recorded (Loss.Restarting), it takes place whatever becomes of the Workload. One that has stalled, and
// lost no pod, isn't restarted if it has succeeded meanwhile.
func Restarts(job *api.TrainJob, js *jobset.JobSet, wl *kueue.Workload) bool {
	lost := job.Status.Lost
	if lost == nil || lost.JobSet != js.UID || wl != nil && workloadfinish.IsFinished(wl) {
		return false
	}
	if lost.Restarting {
		return lost.Pod != "" || !apimeta.IsStatusConditionTrue(js.Status.Conditions, string(jobset.JobSetCompleted))
	}
	return wl != nil && lost.Restarts < MaxRestarts(job) &&
		apimeta.IsStatusConditionTrue(js.Status.Conditions, string(jobset.JobSetFailed))
}
