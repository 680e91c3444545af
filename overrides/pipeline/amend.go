package pipeline

import (
	"cmp"
	"slices"
	"strings"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"github.com/kubeflow/trainer/v2/pkg/constants"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
)

// amend does what Rules.Amends says. Trainer v2.3.0's plugins leave their environment out without
// spec.trainer. They take the number of processes from spec.trainer.resourcesPerNode alone, although it is merged with
// the runtime's resources. They take the first resource with "gpu" in its name, in Go's random order of maps. They give
// MPI's nodes neither the number nor the image that the TrainJob asks for.
func amend(job *trainerapi.TrainJob, policy *trainerapi.MLPolicy, replicatedJobs []jobset.ReplicatedJob) {
	job.Spec.Trainer = cmp.Or(job.Spec.Trainer, &trainerapi.Trainer{})
	trainer := job.Spec.Trainer
	launches := func(rj *jobset.ReplicatedJob) bool { return isLauncher(policy, replicatedJobs, rj) }
	if Find(replicatedJobs, launches) != nil {
		if n := Nodes(policy); n > 1 {
			trainer.NumNodes = cmp.Or(trainer.NumNodes, &n)
		}
		if node := NodeContainer(Find(replicatedJobs, named(constants.Node))); node != nil {
			node.Image = ptr.Deref(trainer.Image, node.Image)
			setEnv(node, trainer.Env)
		}
	}
	if node := countedContainer(policy, replicatedJobs); node != nil {
		trainer.ResourcesPerNode = processors(node.Resources)
	}
}

// countedContainer returns the container by whose resources processes are counted: of MPI's nodes, or else of the
// trainer step. It is nil if there is none.
func countedContainer(policy *trainerapi.MLPolicy, replicatedJobs []jobset.ReplicatedJob) *corev1.Container {
	return NodeContainer(Find(replicatedJobs, func(rj *jobset.ReplicatedJob) bool {
		return isTrainingNode(replicatedJobs, rj, policy) && !isLauncher(policy, replicatedJobs, rj)
	}))
}

// setEnv sets environment variables, in place of those of the same names.
func setEnv(container *corev1.Container, env []corev1.EnvVar) {
	for _, v := range env {
		i := slices.IndexFunc(container.Env, func(e corev1.EnvVar) bool { return e.Name == v.Name })
		if i < 0 {
			container.Env = append(container.Env, v)
		} else {
			container.Env[i] = v
		}
	}
}

// countedGPU is the name by which all GPUs of a node are given to Trainer's plugins, which look for "gpu" in it.
const countedGPU corev1.ResourceName = "nvidia.com/gpu"

// processors returns a container's CPUs and GPUs in the form in which Trainer's plugins count them.
func processors(resources corev1.ResourceRequirements) *corev1.ResourceRequirements {
	counted := &corev1.ResourceRequirements{Requests: corev1.ResourceList{}, Limits: corev1.ResourceList{}}
	for _, lists := range [][2]corev1.ResourceList{
		{resources.Requests, counted.Requests}, {resources.Limits, counted.Limits},
	} {
		if cpu, found := lists[0][corev1.ResourceCPU]; found {
			lists[1][corev1.ResourceCPU] = cpu
		}
	}
	if n := gpusOf(resources); n > 0 {
		counted.Requests[countedGPU] = *resource.NewQuantity(n, resource.DecimalSI)
	}
	return counted
}

// gpusOf returns how many GPUs a container has, of all kinds. One that has only a share of a GPU's memory or cores has
// one.
func gpusOf(resources corev1.ResourceRequirements) (gpus int64) {
	shared := false
	count := func(name corev1.ResourceName, quantity resource.Quantity) {
		switch isGPU, isShare := gpuOf(name); {
		case isGPU && isShare:
			shared = shared || !quantity.IsZero()
		case isGPU:
			gpus += quantity.Value()
		}
	}
	for name, quantity := range resources.Limits {
		count(name, quantity)
	}
	for name, quantity := range resources.Requests {
		if _, limited := resources.Limits[name]; !limited { // a limit of an extended resource is its request
			count(name, quantity)
		}
	}
	if gpus == 0 && shared {
		return 1
	}
	return gpus
}

// sharesOfGPUs are what the names of resources contain that don't count devices: HAMi's and Volcano's memory and cores,
// Intel's millicores, tiles and monitoring.
var sharesOfGPUs = []string{"mem", "core", "milli", "percent", "ratio", "tile", "monitoring", "util"}

// gpuOf reports whether a resource is of a GPU, by its name: Kubernetes knows no more of it. A share is memory or
// computing time, counted in units of its own; all else are devices, or partitions that a process takes for devices.
// NVIDIA's MIG devices are the only ones without "gpu" in their names that torchrun finds by itself.
func gpuOf(name corev1.ResourceName) (isGPU, isShare bool) {
	lower := strings.ToLower(string(name))
	_, device, extended := strings.Cut(lower, "/")
	isGPU = extended && (strings.Contains(lower, "gpu") || strings.HasPrefix(lower, "nvidia.com/mig-"))
	isShare = slices.ContainsFunc(sharesOfGPUs, func(share string) bool { return strings.Contains(device, share) })
	return isGPU, isShare
}
