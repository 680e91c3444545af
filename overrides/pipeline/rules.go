package pipeline

import (
	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"github.com/kubeflow/trainer/v2/pkg/constants"
	trainingruntimeutil "github.com/kubeflow/trainer/v2/pkg/util/trainingruntime"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
)

// Rules are how a Trainer makes a JobSet's ReplicatedJobs of a runtime with the entries merged into it.
type Rules struct {
	// Amends is set if Trainer's plugins are given what makes them do what the TrainJob asks for, and MPI has one
	// launcher. Others leave it at what the plugins do. Built is unknown then to a Memo: it is compared with Kubeflow
	// Trainer's JobSets alone.
	Amends bool
	// Replaces is set if spec.trainer.resourcesPerNode replaces the runtime's resources, as a whole, and isn't merged
	// with them. The ML policies of such a Trainer add other things than those that are compiled in.
	Replaces bool
	// LauncherAlone is set if with MPI's launcher as a node resourcesPerNode is the launcher's alone.
	LauncherAlone bool
}

// count returns how many pods an ML policy gives to a ReplicatedJob that is a trainer step, before its plugins run.
// With Kubeflow Trainer each trainer step has all nodes.
func (r Rules) count(all []jobset.ReplicatedJob, rj *jobset.ReplicatedJob, policy *trainerapi.MLPolicy) int32 {
	if r.Amends && isLauncher(policy, all, rj) {
		return 1 // however many nodes it starts processes on
	}
	return Nodes(policy)
}

// isNode reports whether resourcesPerNode is for a ReplicatedJob: the trainer step of a runtime with an ML policy, or
// also the nodes where MPI's launcher is one of them.
func (r Rules) isNode(all []jobset.ReplicatedJob, rj *jobset.ReplicatedJob, policy *trainerapi.MLPolicy) bool {
	if r.Amends {
		return isTrainingNode(all, rj, policy)
	}
	return policy != nil && IsTrainer(rj) || !r.LauncherAlone && launcherIsNode(policy) && rj.Name == constants.Node
}

// setResourcesPerNode sets the resources of the node container of the ReplicatedJobs that spec.trainer.resourcesPerNode
// is for.
func (r Rules) setResourcesPerNode(
	job *trainerapi.TrainJob, policy *trainerapi.MLPolicy, replicatedJobs []jobset.ReplicatedJob,
) error {
	if job.Spec.Trainer == nil || job.Spec.Trainer.ResourcesPerNode == nil {
		return nil
	}
	given := job.Spec.Trainer.ResourcesPerNode
	for i := range replicatedJobs {
		node := NodeContainer(&replicatedJobs[i])
		if node == nil || !r.isNode(replicatedJobs, &replicatedJobs[i], policy) {
			continue
		}
		resources, err := r.resources(node.Resources, *given)
		if err != nil {
			return field.Invalid(field.NewPath("spec", "trainer", "resourcesPerNode"), given, err.Error())
		}
		node.Resources = resources
	}
	return nil
}

// resources returns what a node has of the runtime's resources and those that are given.
func (r Rules) resources(have, given corev1.ResourceRequirements) (corev1.ResourceRequirements, error) {
	switch {
	case !r.Replaces:
		return trainingruntimeutil.MergeResourceRequirements(have, given)
	case given.Limits == nil && given.Requests == nil:
		return have, nil
	}
	return *given.DeepCopy(), nil
}

// NodeGroup names the launcher and the workers of an MPI runtime with runLauncherAsNode, in this order. It is empty for
// other runtimes, whose nodes are one ReplicatedJob.
func NodeGroup(runtime *trainerapi.TrainingRuntimeSpec) []string {
	replicatedJobs := runtime.Template.Spec.ReplicatedJobs
	if !launcherIsNode(runtime.MLPolicy) {
		return nil
	}
	launcher := Find(replicatedJobs, IsTrainer)
	if launcher == nil || launcher.Name == constants.Node || Find(replicatedJobs, named(constants.Node)) == nil {
		return nil
	}
	return []string{launcher.Name, constants.Node}
}

// IsTrainer reports whether a ReplicatedJob is the trainer step, by the label that Trainer's runtimes carry.
func IsTrainer(rj *jobset.ReplicatedJob) bool {
	return rj.Template.Labels[constants.LabelTrainJobAncestor] == constants.AncestorTrainer
}

// Nodes returns the number of nodes of an ML policy. The CRD takes any number, and Trainer runs one node for less.
func Nodes(policy *trainerapi.MLPolicy) int32 { return max(ptr.Deref(policy.NumNodes, 1), 1) }

// Find returns the first element that matches, nil where none does.
func Find[T any](all []T, matches func(*T) bool) *T {
	for i := range all {
		if matches(&all[i]) {
			return &all[i]
		}
	}
	return nil
}

func named(name string) func(*jobset.ReplicatedJob) bool {
	return func(rj *jobset.ReplicatedJob) bool { return rj.Name == name }
}

// isLauncher reports whether a ReplicatedJob is MPI's launcher: the trainer step, beside the nodes that it starts
// processes on. It is one pod, however many nodes there are.
func isLauncher(policy *trainerapi.MLPolicy, all []jobset.ReplicatedJob, rj *jobset.ReplicatedJob) bool {
	return policy != nil && policy.MPI != nil && IsTrainer(rj) && rj.Name != constants.Node &&
		Find(all, named(constants.Node)) != nil
}

// isTrainingNode reports whether the pods of a ReplicatedJob are nodes of the training: those of the trainer step, or
// those that MPI's launcher starts processes on, and the launcher itself only if it runs as a node.
func isTrainingNode(all []jobset.ReplicatedJob, rj *jobset.ReplicatedJob, policy *trainerapi.MLPolicy) bool {
	if isLauncher(policy, all, rj) {
		return launcherIsNode(policy)
	}
	return IsTrainer(rj) || rj.Name == constants.Node && policy != nil && policy.MPI != nil
}

func launcherIsNode(policy *trainerapi.MLPolicy) bool {
	return policy != nil && policy.MPI != nil && ptr.Deref(policy.MPI.RunLauncherAsNode, false)
}

// NodeContainer returns the container in which a ReplicatedJob trains, nil if there is none.
func NodeContainer(rj *jobset.ReplicatedJob) *corev1.Container {
	if rj == nil {
		return nil
	}
	trains := func(c *corev1.Container) bool { return c.Name == constants.Node }
	return Find(rj.Template.Spec.Template.Spec.Containers, trains)
}
