package overrides

import (
	"fmt"
	"strconv"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides/pipeline"
)

// MinParallelismAnnotation is Kueue's annotation for partial admission (Kueue v0.19.2, pkg/controller/jobs/job): the
// fewest nodes that a TrainJob may be admitted with. A TrainJob without it has its runtime's.
const MinParallelismAnnotation = "kueue.x-k8s.io/job-min-parallelism"

// NodesAnnotation is the number of nodes of a partially admitted TrainJob. It is in the integration's entry, in the
// metadata of the Job template of the ReplicatedJob that has fewer pods, and has no effect in other entries.
const NodesAnnotation = "signalbox.dev/nodes"

// Nodes returns the number of nodes that a TrainJob requests on a runtime.
func Nodes(job *api.TrainJob, runtime *trainerapi.TrainingRuntimeSpec) int32 {
	if n := trainerOf(job).NumNodes; n != nil {
		return *n
	}
	if runtime.MLPolicy != nil {
		return pipeline.Nodes(runtime.MLPolicy)
	}
	return 1
}

// MinNodes returns the fewest nodes that a TrainJob may be admitted with. It is the number that the TrainJob
// requests if there is no annotation, or if the runtime's is larger. The runtime's annotation is in its template's
// metadata (store.Runtime.Pinnable copies it there). An invalid annotation is a *field.Error.
func MinNodes(job *api.TrainJob, runtime *trainerapi.TrainingRuntimeSpec) (int32, error) {
	all := Nodes(job, runtime)
	annotations, path := job.Annotations, field.NewPath("metadata", "annotations")
	if _, own := annotations[MinParallelismAnnotation]; !own {
		annotations = runtime.Template.Annotations
		path = field.NewPath("runtime "+job.Spec.RuntimeRef.Name).Child("metadata", "annotations")
	}
	value, found := annotations[MinParallelismAnnotation]
	if !found {
		return all, nil
	}
	least, err := parseNodes(path.Key(MinParallelismAnnotation), value)
	if err != nil {
		return all, err
	}
	return min(least, all), nil
}

func parseNodes(path *field.Path, value string) (int32, *field.Error) {
	n, err := strconv.ParseInt(value, 10, 32)
	if err != nil || n < 1 {
		return 0, field.Invalid(path, value, "must be a whole number of nodes, 1 or more")
	}
	return int32(n), nil
}

// CheckMinNodes returns an error if the TrainJob's own annotation isn't a number of nodes below the one that it
// requests.
func CheckMinNodes(job *api.TrainJob, runtime *trainerapi.TrainingRuntimeSpec) field.ErrorList {
	value, found := job.Annotations[MinParallelismAnnotation]
	if !found {
		return nil
	}
	path := field.NewPath("metadata", "annotations").Key(MinParallelismAnnotation)
	least, err := parseNodes(path, value)
	if all := Nodes(job, runtime); err == nil && least >= all {
		err = field.Invalid(path, value, fmt.Sprintf("must be below the number of nodes that the TrainJob requests, %d; "+
			"remove the annotation if it needs all of them", all))
	}
	if err != nil {
		return field.ErrorList{err}
	}
	return nil
}

// WithNodes returns a copy of the TrainJob that requests that many nodes. The copy shares all else with the TrainJob.
func WithNodes(job *api.TrainJob, nodes int32) *api.TrainJob {
	other, trainer := *job, trainerOf(job)
	trainer.NumNodes, other.Spec.Trainer = &nodes, &trainer
	return &other
}

// admittedNodes returns the number of nodes of a partially admitted TrainJob, from the integration's entry of
// runtimePatches, which nobody else can write; 0 if the TrainJob isn't partially admitted.
func admittedNodes(entries []Entry) int32 {
	for _, e := range entries {
		if !e.IsOwn() || e.Field != RuntimePatches {
			continue
		}
		if n := nodesIn(e.Patch); n > 0 {
			return n
		}
	}
	return 0
}

// AdmittedNodes returns the number of nodes that the integration's entry says; 0 if it says none, as that of a TrainJob
// that isn't partially admitted.
func AdmittedNodes(own *trainerapi.RuntimePatch) int32 {
	if own == nil {
		return 0
	}
	return nodesIn(own.TrainingRuntimeSpec)
}

func nodesIn(patch *trainerapi.TrainingRuntimeSpecPatch) int32 {
	for _, rj := range ReplicatedJobsOf(patch) {
		if rj.Template == nil || rj.Template.Metadata == nil {
			continue
		}
		if n, err := parseNodes(nil, rj.Template.Metadata.Annotations[NodesAnnotation]); err == nil {
			return n
		}
	}
	return 0
}

// Resized reports whether an update changes the number of nodes or the resources per node.
func Resized(before, after *api.TrainJob) bool {
	was, is := trainerOf(before), trainerOf(after)
	return !ptr.Equal(was.NumNodes, is.NumNodes) ||
		!equality.Semantic.DeepEqual(was.ResourcesPerNode, is.ResourcesPerNode)
}

func trainerOf(job *api.TrainJob) trainerapi.Trainer {
	return ptr.Deref(job.Spec.Trainer, trainerapi.Trainer{})
}

// CheckResize returns an error if an update resizes a TrainJob whose JobSet, js, still exists: pods of the previous
// size hold quota until it is deleted. js is nil if there is none. The CRD's rules allow a resize only while the
// TrainJob is suspended (trainer#3995).
func CheckResize(before, after *api.TrainJob, js *jobset.JobSet) field.ErrorList {
	if js == nil || !Resized(before, after) {
		return nil
	}
	return field.ErrorList{field.Forbidden(trainerPath, "the TrainJob can't be resized while pods of its previous run "+
		"may exist; try again when JobSet "+js.Name+" is deleted")}
}
