package overrides

import (
	"k8s.io/utils/ptr"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
)

// Effective is what a TrainJob runs: its runtime with the entries merged into it, and with the changes of the ML policy
// and of the TrainJob's own API.
type Effective struct {
	// ReplicatedJobs in the runtime's order. A ReplicatedJob's pods are its parallelism × replicas.
	ReplicatedJobs []jobset.ReplicatedJob
	// Built is the same with what the ML policy adds to the pods: environment, ports, volumes, a command. None of it
	// decides the placement or the resources of pods, some of it holds the TrainJob's name, and Kueue's built-in
	// integration leaves it out of its Workloads too. For Trainers before v2.3 it is unknown: Built is ReplicatedJobs.
	Built []jobset.ReplicatedJob
	// Annotations of the JobSet itself, of the runtime's template and the entries.
	Annotations map[string]string
	// NodeGroup names the launcher and the workers of an MPI runtime with runLauncherAsNode, in this order. It is
	// empty for other runtimes, whose nodes are one ReplicatedJob.
	NodeGroup []string
}

// ReplicatedJob returns the ReplicatedJob of that name, nil where there is none.
func (e *Effective) ReplicatedJob(name string) *jobset.ReplicatedJob {
	return find(e.ReplicatedJobs, name)
}

// PodsPerJob returns how many pods one Job of the ReplicatedJob runs at a time, as Kubernetes counts a Job's pods: its
// parallelism (default 1), or its completions where those are fewer.
func PodsPerJob(rj *jobset.ReplicatedJob) int32 {
	parallelism := ptr.Deref(rj.Template.Spec.Parallelism, 1)
	return min(parallelism, ptr.Deref(rj.Template.Spec.Completions, parallelism))
}
