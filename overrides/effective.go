package overrides

import (
	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"k8s.io/utils/ptr"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides/pipeline"
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
	// NodeGroup is that of the runtime (pipeline.NodeGroup).
	NodeGroup []string
}

// Prepare returns the JobSet of the TrainJob with the given entries on the runtime, before any plugin has run.
func Prepare(
	rules pipeline.Rules, trainJob *api.TrainJob, runtime *trainerapi.TrainingRuntimeSpec, entries []Entry,
) (*pipeline.Assembly, error) {
	merged, err := Merge(runtime, entries)
	if err != nil {
		return nil, err
	}
	if n := admittedNodes(entries); n > 0 {
		trainJob = WithNodes(trainJob, n)
	}
	return rules.Prepare(trainJob.Upstream().DeepCopy(), merged)
}

// Assemble returns the same after the ML policies have run. All that runs on quota is in the result: a TrainJob is
// queued with it, and the bundled Trainer builds from it.
func Assemble(
	rules pipeline.Rules, trainJob *api.TrainJob, runtime *trainerapi.TrainingRuntimeSpec, entries []Entry,
) (*pipeline.Assembly, error) {
	a, err := Prepare(rules, trainJob, runtime, entries)
	if err != nil {
		return nil, err
	}
	return a, a.Run()
}

// Compute returns what the TrainJob runs with the given entries on the runtime. It changes none of its arguments. An
// entry that names a ReplicatedJob that the runtime doesn't have is an error: a strategic merge would append it.
func Compute(
	rules pipeline.Rules, trainJob *api.TrainJob, runtime *trainerapi.TrainingRuntimeSpec, entries []Entry,
) (*Effective, error) {
	return compute(rules, trainJob, runtime, entries, true)
}

// compute does what Compute does, and leaves Built out unless it is asked for.
func compute(
	rules pipeline.Rules, trainJob *api.TrainJob, runtime *trainerapi.TrainingRuntimeSpec, entries []Entry, built bool,
) (*Effective, error) {
	a, err := Assemble(rules, trainJob, runtime, entries)
	if err != nil {
		return nil, err
	}
	queued, err := a.Queued()
	if err != nil {
		return nil, err
	}
	e := &Effective{queued.ReplicatedJobs, nil, a.Info.Annotations, pipeline.NodeGroup(runtime)}
	switch {
	case built && rules.Replaces:
		e.Built = e.ReplicatedJobs
	case built:
		with, err := a.Built()
		if err != nil {
			return nil, err
		}
		e.Built = with.ReplicatedJobs
	}
	return e, nil
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
