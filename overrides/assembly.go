package overrides

import (
	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"github.com/kubeflow/trainer/v2/pkg/constants"
	trainingruntimeutil "github.com/kubeflow/trainer/v2/pkg/util/trainingruntime"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
)

// Rules are how a Trainer makes a JobSet's ReplicatedJobs of a runtime with the entries merged into it.
type Rules struct {
	// name keeps the results of different rules apart in a Memo.
	name string
	// resources returns what a node has of the runtime's resources and spec.trainer.resourcesPerNode.
	resources func(have, given corev1.ResourceRequirements) (corev1.ResourceRequirements, error)
	// isNode reports whether resourcesPerNode is for a ReplicatedJob, which is one of those given.
	isNode func(replicatedJobs []jobset.ReplicatedJob, rj *jobset.ReplicatedJob, policy *trainerapi.MLPolicy) bool
	// built returns Effective.Built, given Effective.ReplicatedJobs and a function that adds what the ML policies do.
	built func(without []jobset.ReplicatedJob, with func() ([]jobset.ReplicatedJob, error)) ([]jobset.ReplicatedJob, error)
	// count returns how many pods an ML policy gives to a ReplicatedJob that is a trainer step, before its plugins run.
	count func(replicatedJobs []jobset.ReplicatedJob, rj *jobset.ReplicatedJob, policy *trainerapi.MLPolicy) int32
	// amend changes what Trainer's plugins are given, so that they do what the TrainJob asks for. Kubeflow Trainer leaves
	// it at what they do.
	amend func(job *trainerapi.TrainJob, policy *trainerapi.MLPolicy, replicatedJobs []jobset.ReplicatedJob)
	// dropsBuilt is set if a Memo doesn't keep Built, which is compared with Kubeflow Trainer's JobSets alone.
	dropsBuilt bool
}

// The rules of the Trainers that are known.
var (
	// amending is the bundled Trainer's.
	amending = &Rules{
		name: "amending", dropsBuilt: true,
		resources: trainingruntimeutil.MergeResourceRequirements, isNode: isTrainingNode, built: builtWithPolicies,
		count: countSteps, amend: amend,
	}
	// merging is Kubeflow Trainer's since v2.3.
	merging = &Rules{
		name:      "merging",
		resources: trainingruntimeutil.MergeResourceRequirements, isNode: isNode, built: builtWithPolicies,
		count: countNodes, amend: amendNothing,
	}
	// replacing is Kubeflow Trainer's in v2.1 and v2.2.
	replacing = &Rules{
		name:      "replacing",
		resources: replaceResources, isNode: isNode, built: builtWithoutPolicies, count: countNodes, amend: amendNothing,
	}
	// replacingAlone is Kubeflow Trainer's in v2.0, where with MPI's launcher as a node resourcesPerNode is the launcher's
	// alone.
	replacingAlone = &Rules{
		name:      "replacing alone",
		resources: replaceResources, isNode: isTrainerStep, built: builtWithoutPolicies, count: countNodes,
		amend: amendNothing,
	}
)

// countNodes is Kubeflow Trainer's: each trainer step has all nodes.
func countNodes(_ []jobset.ReplicatedJob, _ *jobset.ReplicatedJob, policy *trainerapi.MLPolicy) int32 {
	return nodesOf(policy)
}

func amendNothing(*trainerapi.TrainJob, *trainerapi.MLPolicy, []jobset.ReplicatedJob) {}

// isTrainerStep reports whether a ReplicatedJob is the trainer step of a runtime with an ML policy.
func isTrainerStep(_ []jobset.ReplicatedJob, rj *jobset.ReplicatedJob, policy *trainerapi.MLPolicy) bool {
	return policy != nil && isTrainer(rj)
}

// isNode reports whether a ReplicatedJob is the trainer step, or the nodes where MPI's launcher is one of them.
func isNode(replicatedJobs []jobset.ReplicatedJob, rj *jobset.ReplicatedJob, policy *trainerapi.MLPolicy) bool {
	return isTrainerStep(replicatedJobs, rj, policy) || launcherIsNode(policy) && rj.Name == constants.Node
}

// nodeGroup returns Effective.NodeGroup.
func nodeGroup(runtime *trainerapi.TrainingRuntimeSpec) []string {
	replicatedJobs := runtime.Template.Spec.ReplicatedJobs
	if !launcherIsNode(runtime.MLPolicy) {
		return nil
	}
	launcher := first(replicatedJobs, isTrainer)
	if launcher == nil || launcher.Name == constants.Node || find(replicatedJobs, constants.Node) == nil {
		return nil
	}
	return []string{launcher.Name, constants.Node}
}

// replaceResources returns the given resources, as a whole, unless they are empty.
func replaceResources(have, given corev1.ResourceRequirements) (corev1.ResourceRequirements, error) {
	if given.Limits == nil && given.Requests == nil {
		return have, nil
	}
	return *given.DeepCopy(), nil
}

// builtWithPolicies returns the ReplicatedJobs with what the ML policies add.
func builtWithPolicies(
	_ []jobset.ReplicatedJob, with func() ([]jobset.ReplicatedJob, error),
) ([]jobset.ReplicatedJob, error) {
	return with()
}

// builtWithoutPolicies returns the ReplicatedJobs as they are: the ML policies of earlier Trainers add other things
// than those that are compiled in.
func builtWithoutPolicies(
	without []jobset.ReplicatedJob, _ func() ([]jobset.ReplicatedJob, error),
) ([]jobset.ReplicatedJob, error) {
	return without, nil
}

// setResourcesPerNode sets the resources of the node container of the ReplicatedJobs that spec.trainer.resourcesPerNode
// is for.
func (r *Rules) setResourcesPerNode(
	job *trainerapi.TrainJob, policy *trainerapi.MLPolicy, replicatedJobs []jobset.ReplicatedJob,
) error {
	if job.Spec.Trainer == nil || job.Spec.Trainer.ResourcesPerNode == nil {
		return nil
	}
	given := job.Spec.Trainer.ResourcesPerNode
	for i := range replicatedJobs {
		node := findContainer(replicatedJobs[i].Template.Spec.Template.Spec.Containers, constants.Node)
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
