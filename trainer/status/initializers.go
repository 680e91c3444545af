package status

import (
	"encoding/json"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"k8s.io/utils/ptr"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	jobsetac "sigs.k8s.io/jobset/client-go/applyconfiguration/jobset/v1alpha2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/podsets"
)

// InitializersAnnotation on a JobSet holds a hash of what each of its initializers is. It becomes status.initializers
// of the TrainJob when the initializer has succeeded, whatever the TrainJob is by then.
const InitializersAnnotation = "signalbox.dev/initializers"

// maxInitializers bounds the annotation, in bytes: all annotations of an object may have 256 KiB. Without it,
// initializers are compared as those of an earlier release are.
const maxInitializers = 64 << 10

// MarkInitializers writes what the initializers are to the JobSet.
func MarkInitializers(js *jobsetac.JobSetApplyConfiguration, initializers map[string]string) {
	delete(js.Annotations, InitializersAnnotation) // another client's, by an entry or the runtime
	if len(initializers) == 0 {
		return
	}
	if data, err := json.Marshal(initializers); err == nil && len(data) <= maxInitializers {
		js.WithAnnotations(map[string]string{InitializersAnnotation: string(data)})
	}
}

// initializersOf returns what the finished initializers were when they ran: those of the JobSet, and those that were
// left out of it, because they had finished before and were the same. Without a JobSet, nothing has changed.
func initializersOf(
	job *api.TrainJob, js *jobset.JobSet, statuses []trainerapi.JobStatus,
) map[string]string {
	if js == nil {
		return job.Status.Initializers
	}
	var built map[string]string
	if json.Unmarshal([]byte(js.Annotations[InitializersAnnotation]), &built) != nil {
		built = nil // an earlier release built it
	}
	finished := map[string]string{}
	for _, s := range statuses {
		hash, known := built[s.Name]
		if podsets.ReplicatedJob(js.Spec.ReplicatedJobs, s.Name) == nil && !known {
			hash, known = job.Status.Initializers[s.Name]
		}
		if known && ptr.Deref(s.Succeeded, 0) >= replicasOf(js, s.Name) {
			finished[s.Name] = hash
		}
	}
	if len(finished) == 0 {
		return nil
	}
	return finished
}

// replicasOf returns how many Jobs of a ReplicatedJob have to succeed; 1 for one that was left out.
func replicasOf(js *jobset.JobSet, name string) int32 {
	for i := range js.Spec.ReplicatedJobs {
		if rj := &js.Spec.ReplicatedJobs[i]; rj.Name == name {
			return max(rj.Replicas, 1)
		}
	}
	return 1
}
