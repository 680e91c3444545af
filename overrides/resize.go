package overrides

import (
	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

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
