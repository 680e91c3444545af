package admission

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/utils/ptr"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// Running returns why a TrainJob that is suspended may still hold resources, or "" where none of it is left: its JobSet
// has stopped its Jobs, and no pod is running (store.Pods.Running). A pod that is terminating still runs.
func Running(job *api.TrainJob, js *jobset.JobSet, pods []corev1.Pod) string {
	if !ptr.Deref(job.Spec.Suspend, false) {
		return "the TrainJob is not suspended"
	}
	if len(pods) > 0 {
		return fmt.Sprintf("pod %s has not ended", pods[0].Name)
	}
	if js == nil {
		return ""
	}
	if !ptr.Deref(js.Spec.Suspend, false) {
		return "the JobSet is not suspended"
	}
	for _, status := range js.Status.ReplicatedJobsStatus {
		if status.Active > 0 {
			return fmt.Sprintf("ReplicatedJob %s has active Jobs", status.Name)
		}
	}
	// A JobSet that was made suspended and never changed has not run; any other says so when its Jobs are suspended.
	if js.Generation > 1 && !apimeta.IsStatusConditionTrue(js.Status.Conditions, string(jobset.JobSetSuspended)) {
		return "the JobSet has not suspended its Jobs"
	}
	return ""
}
