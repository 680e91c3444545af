package overrides

import (
	"fmt"
	"strings"
	"testing"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

// nodesRuntime is a runtime of a policy whose nodes have resources.
func nodesRuntime(policy, resources string) string {
	return fmt.Sprintf(`
mlPolicy: %s
template:
  spec:
    replicatedJobs:
    - name: node
      template:
        metadata: {labels: {trainer.kubeflow.org/trainjob-ancestor-step: trainer}}
        spec: {template: {spec: {containers: [{name: node, image: runtime, resources: %s}]}}}
`, policy, resources)
}

// mpiNodes is an MPI runtime with a launcher beside its nodes.
func mpiNodes(policy, launcher, node string) string {
	return fmt.Sprintf(`
mlPolicy: %s
template:
  spec:
    replicatedJobs:
    - name: launcher
      replicas: 1
      template:
        metadata: {labels: {trainer.kubeflow.org/trainjob-ancestor-step: trainer}}
        spec: {template: {spec: {containers: [{name: node, image: runtime, resources: %s}]}}}
    - name: node
      replicas: 1
      template: {spec: {template: {spec: {containers: [{name: node, image: runtime, resources: %s}]}}}}
`, policy, launcher, node)
}

// nodeOf returns the container of a ReplicatedJob as it is built, with a TrainJob's spec on a runtime.
func nodeOf(t *testing.T, spec, runtime, name string) (*Effective, *corev1.Container) {
	t.Helper()
	rt := must[trainerapi.TrainingRuntimeSpec](t, runtime)
	e, err := Bundled.Compute(jobOf(t, spec), &rt, nil)
	if err != nil {
		t.Fatal(err)
	}
	return e, nodeContainer(find(e.Built, name))
}

func valueOf(c *corev1.Container, name string) string {
	v := first(c.Env, func(v *corev1.EnvVar) bool { return v.Name == name })
	return ptr.Deref(v, corev1.EnvVar{}).Value
}

// TestProcesses holds that the number of processes on a node follows from what its pod has: from the runtime's
// resources and the TrainJob's together.
func TestProcesses(t *testing.T) {
	const gpus, cpus = "{limits: {nvidia.com/gpu: 8}, requests: {cpu: 4}}", "{requests: {cpu: 6}}"
	cases := map[string]struct{ resources, job, torch, mpi, xgboost string }{
		"the runtime's":        {gpus, "{}", "auto", "8", "8"},
		"memory alone":         {gpus, "{trainer: {resourcesPerNode: {requests: {memory: 64Gi}}}}", "auto", "8", "8"},
		"cpu alone":            {gpus, "{trainer: {resourcesPerNode: {requests: {cpu: 32}}}}", "auto", "8", "8"},
		"nothing":              {gpus, "{trainer: {resourcesPerNode: {}}}", "auto", "8", "8"},
		"other GPUs":           {gpus, "{trainer: {resourcesPerNode: {limits: {nvidia.com/gpu: 2}}}}", "auto", "2", "2"},
		"without GPUs":         {gpus, "{trainer: {resourcesPerNode: {limits: {nvidia.com/gpu: 0}}}}", "4", "1", "1"},
		"asked for":            {gpus, "{trainer: {numProcPerNode: 3}}", "3", "3", "8"},
		"CPUs":                 {cpus, "{trainer: {resourcesPerNode: {requests: {memory: 1Gi}}}}", "6", "1", "1"},
		"the TrainJob's CPUs":  {cpus, "{trainer: {resourcesPerNode: {requests: {cpu: 2}}}}", "2", "1", "1"},
		"a limit of CPUs":      {"{limits: {cpu: 6}}", "{}", "6", "1", "1"},
		"no resources":         {"{}", "{}", "1", "1", "1"},
		"the TrainJob's alone": {"{}", "{trainer: {resourcesPerNode: {limits: {nvidia.com/gpu: 4}}}}", "auto", "4", "4"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			_, node := nodeOf(t, c.job, nodesRuntime("{torch: {}}", c.resources), "node")
			if got := valueOf(node, "PET_NPROC_PER_NODE"); got != c.torch {
				t.Errorf("PET_NPROC_PER_NODE is %q, want %q", got, c.torch)
			}
			_, node = nodeOf(t, c.job, nodesRuntime("{xgboost: {}}", c.resources), "node")
			if got := valueOf(node, "DMLC_NUM_WORKER"); got != c.xgboost {
				t.Errorf("DMLC_NUM_WORKER is %q, want %q", got, c.xgboost)
			}
			_, launcher := nodeOf(t, c.job, mpiNodes("{mpi: {runLauncherAsNode: true}}", c.resources, c.resources), "launcher")
			if got := valueOf(launcher, "OMPI_MCA_orte_set_default_slots"); got != c.mpi {
				t.Errorf("MPI's slots are %q, want %q", got, c.mpi)
			}
		})
	}
}

// TestOneGPU holds that GPUs are counted by the resources that are GPUs, however many others there are. Go walks
// through maps in random order, so that each case is tried several times.
func TestOneGPU(t *testing.T) {
	cases := map[string]int64{
		"{limits: {nvidia.com/gpu: 8, rdma/hca: 1, example.com/fpga: 2}}":                  8,
		"{limits: {nvidia.com/gpu: 2, nvidia.com/gpumem: 16000, nvidia.com/gpucores: 50}}": 2,
		"{limits: {nvidia.com/gpu: 1, nvidia.com/gpumem-percentage: 50}}":                  1,
		"{limits: {amd.com/gpu: 4}, requests: {amd.com/gpu: 4}}":                           4,
		"{requests: {amd.com/gpu: 4}}":                                                     4,
		"{limits: {nvidia.com/gpu: 2, amd.com/gpu: 3}}":                                    5,
		"{limits: {nvidia.com/gpu: 2}, requests: {amd.com/gpu: 3}}":                        5,
		"{limits: {nvidia.com/mig-1g.5gb: 2, cpu: 30}}":                                    2,
		"{limits: {gpu.intel.com/i915: 2, gpu.intel.com/memory.max: 99, gpu.intel.com/millicores: 500, " +
			"gpu.intel.com/i915_monitoring: 1}}": 2,
		"{limits: {volcano.sh/vgpu-number: 2, volcano.sh/vgpu-memory: 4096, volcano.sh/vgpu-cores: 40}}": 2,
		"{limits: {nvidia.com/gpu.shared: 3}}":                                                3,
		"{limits: {aliyun.com/gpu-mem: 12}}":                                                  1,
		"{limits: {aliyun.com/gpu-mem: 0}}":                                                   0,
		"{limits: {nvidia.com/gpu: 0}}":                                                       0,
		"{limits: {cpu: 8, memory: 1Gi, rdma/hca: 1, hugepages-2Mi: 2Mi, google.com/tpu: 4}}": 0,
	}
	for text, want := range cases {
		resources := must[corev1.ResourceRequirements](t, text)
		for range 20 {
			if got := gpusOf(resources); got != want {
				t.Fatalf("%s: got %d GPUs, want %d", text, got, want)
			}
		}
		slots := fmt.Sprint(max(want, 1))
		for range 5 {
			_, launcher := nodeOf(t, "{}", mpiNodes("{mpi: {runLauncherAsNode: true}}", text, text), "launcher")
			if got := valueOf(launcher, "OMPI_MCA_orte_set_default_slots"); got != slots {
				t.Fatalf("%s: MPI has %s slots a node, want %s", text, got, slots)
			}
		}
	}
}

// TestMPINodes holds that MPI has one launcher and as many nodes as it should, and that what the TrainJob says of its
// nodes is for them.
func TestMPINodes(t *testing.T) {
	const (
		asNode = "{numNodes: 2, mpi: {runLauncherAsNode: true}}"
		beside = "{numNodes: 2, mpi: {}}"
		whole  = `{trainer: {image: mine, env: [{name: A, value: mine}], resourcesPerNode: {limits: {nvidia.com/gpu: 8}}}}`
		sized  = `{trainer: {numNodes: 4, image: mine, env: [{name: A, value: mine}],
			resourcesPerNode: {limits: {nvidia.com/gpu: 8}}}}`
	)
	cases := map[string]struct {
		policy, job, want string
		launcherGPUs      int64
	}{
		"as a node, by the runtime":  {asNode, whole, "launcher:1×1 node:1×1", 8},
		"as a node, by the TrainJob": {asNode, sized, "launcher:1×1 node:1×3", 8},
		"beside, by the runtime":     {beside, whole, "launcher:1×1 node:1×2", 0},
		"beside, by the TrainJob":    {beside, sized, "launcher:1×1 node:1×4", 0},
		"one node":                   {"{numNodes: 1, mpi: {runLauncherAsNode: true}}", whole, "launcher:1×1 node:1×1", 8},
		"nothing said":               {"{mpi: {}}", whole, "launcher:1×1 node:1×1", 0},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			e, node := nodeOf(t, c.job, mpiNodes(c.policy, "{}", "{}"), "node")
			if got := shape(e); strings.ReplaceAll(got, ":0×", ":1×") != c.want {
				t.Errorf("got %s, want %s", got, c.want)
			}
			if node.Image != "mine" || valueOf(node, "A") != "mine" || gpusOf(node.Resources) != 8 {
				t.Errorf("the TrainJob's image, environment and resources are for the nodes: got %+v", node)
			}
			_, launcher := nodeOf(t, c.job, mpiNodes(c.policy, "{}", "{}"), "launcher")
			if launcher.Image != "mine" || valueOf(launcher, "A") != "mine" || gpusOf(launcher.Resources) != c.launcherGPUs {
				t.Errorf("the launcher has the resources of a node if it is one: got %+v", launcher)
			}
			if got := valueOf(launcher, "OMPI_MCA_orte_set_default_slots"); got != "8" {
				t.Errorf("MPI starts %s processes on a node that has 8 GPUs", got)
			}
		})
	}
	parallel := strings.Replace(mpiNodes("{numNodes: 1, mpi: {}}", "{}", "{}"),
		"template: {spec: {template: {spec: {containers", "template: {spec: {parallelism: 3, template: {spec: {containers", 1)
	if e, _ := nodeOf(t, "{}", parallel, "node"); !strings.HasSuffix(shape(e), "node:1×3") {
		t.Errorf("a runtime that counts nodes by their parallelism keeps them: got %s", shape(e))
	}
}

// TestNoNodes holds that a runtime whose mlPolicy has less than one node has one, as Kubeflow Trainer has it: the CRD
// takes any number.
func TestNoNodes(t *testing.T) {
	for _, n := range []int{0, -1} {
		for _, policy := range []string{"torch: {}", "jax: {}", "xgboost: {}", "flux: {}", "mpi: {}"} {
			text := nodesRuntime(fmt.Sprintf("{numNodes: %d, %s}", n, policy), "{}")
			rt := must[trainerapi.TrainingRuntimeSpec](t, text)
			if got := Nodes(jobOf(t, "{}"), &rt); got != 1 {
				t.Errorf("%s has %d nodes", policy, got)
			}
			if e, _ := nodeOf(t, "{}", text, "node"); strings.ReplaceAll(shape(e), ":0×", ":1×") != "node:1×1" {
				t.Errorf("%s: got %s", policy, shape(e))
			}
			if e, _ := nodeOf(t, "{trainer: {numNodes: 3}}", text, "node"); !strings.HasSuffix(shape(e), "×3") {
				t.Errorf("%s with 3: got %s", policy, shape(e))
			}
		}
	}
}

// TestResourcesWithoutPolicy holds that a runtime's trainer step has the TrainJob's resources without an ML policy too.
func TestResourcesWithoutPolicy(t *testing.T) {
	_, node := nodeOf(t, "{trainer: {numNodes: 3, resourcesPerNode: {limits: {nvidia.com/gpu: 8}}}}",
		nodesRuntime("null", "{requests: {cpu: 4}}"), "node")
	if gpusOf(node.Resources) != 8 || node.Resources.Requests.Cpu().Value() != 4 {
		t.Errorf("got %+v", node.Resources)
	}
}
