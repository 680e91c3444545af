package integration

import (
	"slices"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides/legacy"
	"github.com/signalbox-dev/signalbox/store"
)

var gvk = trainerapi.GroupVersion.WithKind(trainerapi.TrainJobKind)

func isTrainJob(owner *metav1.OwnerReference) bool {
	return owner != nil && owner.Kind == gvk.Kind && owner.APIVersion == gvk.GroupVersion().String()
}

// endOf returns the condition by which a Trainer declares the end of a TrainJob; nil if it has not ended.
func endOf(job *api.TrainJob) *metav1.Condition {
	return trueCondition(job.Status.Conditions, trainerapi.TrainJobComplete, trainerapi.TrainJobFailed)
}

// blockedCondition returns the condition Blocked of a TrainJob that says that it is blocked; nil if it doesn't.
func blockedCondition(job *api.TrainJob) *metav1.Condition {
	return trueCondition(job.Status.Conditions, api.ConditionBlocked)
}

// trueCondition returns the first condition of the types that is true; nil if none is.
func trueCondition(conditions []metav1.Condition, types ...string) *metav1.Condition {
	for _, name := range types {
		if c := apimeta.FindStatusCondition(conditions, name); c != nil && c.Status == metav1.ConditionTrue {
			return c
		}
	}
	return nil
}

func hasEnded(job *api.TrainJob) bool { return endOf(job) != nil }

// elsewhere reports whether a TrainJob is managed by MultiKueue: it runs in another cluster.
func elsewhere(job *api.TrainJob) bool {
	return ptr.Deref(job.Spec.ManagedBy, "") == kueue.MultiKueueControllerName
}

// runsElsewhere reports whether something of a TrainJob may run in another cluster, by the status that was copied from
// there.
func runsElsewhere(job *api.TrainJob) bool {
	c := apimeta.FindStatusCondition(job.Status.Conditions, trainerapi.TrainJobSuspended)
	return job.Status.StartTime != nil || c != nil && c.Status == metav1.ConditionFalse ||
		slices.ContainsFunc(job.Status.JobsStatus, func(s trainerapi.JobStatus) bool { return ptr.Deref(s.Active, 0) > 0 })
}

// stoppedByUser reports whether a user has stopped the TrainJob. Its Workload is put on hold, and not deactivated:
// spec.active is the admins', who may set it before, meanwhile and afterwards.
func stoppedByUser(job *api.TrainJob) bool {
	_, stopped := job.Annotations[api.StopAnnotation]
	return stopped
}

// DeactivateAnnotation on a Workload names the user who deactivates it. Signalbox stops its TrainJob, and sets
// spec.active to false when the last of its pods has ended. If the annotation is removed, the TrainJob starts again.
const DeactivateAnnotation = "signalbox.dev/deactivate"

// DispatchAnnotation on a Workload is the time, in RFC 3339, of the last change by which Signalbox made Kueue reconcile
// it again. Kueue v0.19.2 never dispatches a Workload that gets its quota before a restarted Kueue has connected to the
// workers (multikueue/workload.go, nominateAndSynchronizeWorkers: no event follows the connection).
const DispatchAnnotation = "signalbox.dev/dispatch"

// ownAnnotations are the integration's. Nobody else may add, change or remove them.
var ownAnnotations = []string{store.PinAnnotation, legacy.RecordAnnotation}

// saysFailure reports whether a condition is about requests that fail.
func saysFailure(c *metav1.Condition) bool {
	return c.Status == metav1.ConditionTrue && c.Reason == ReasonReconcileFailed
}

func jobSetSuspended(js *jobset.JobSet) bool { return ptr.Deref(js.Spec.Suspend, false) }

// jobSetEnd returns the condition by which JobSet declares an end; nil if it hasn't.
func jobSetEnd(js *jobset.JobSet) *metav1.Condition {
	if js == nil {
		return nil
	}
	return trueCondition(js.Status.Conditions, string(jobset.JobSetCompleted), string(jobset.JobSetFailed))
}
