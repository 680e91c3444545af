package pipeline_test

import (
	"fmt"
	"strings"
	"testing"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides"
	"github.com/signalbox-dev/signalbox/overrides/dialect"
	"github.com/signalbox-dev/signalbox/overrides/pipeline"
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
func nodeOf(t *testing.T, spec, runtime, name string) (*overrides.Effective, *corev1.Container) {
	t.Helper()
	rt := must[trainerapi.TrainingRuntimeSpec](t, runtime)
	e, err := dialect.Bundled.Compute(jobOf(t, spec), &rt, nil)
	if err != nil {
		t.Fatal(err)
	}
	return e, pipeline.NodeContainer((&overrides.Effective{ReplicatedJobs: e.Built}).ReplicatedJob(name))
}

func valueOf(c *corev1.Container, name string) string {
	for _, v := range c.Env {
		if v.Name == name {
			return v.Value
		}
	}
	return ""
}

// must reads YAML into a T.
func must[T any](t *testing.T, text string) T {
	t.Helper()
	var v T
	if err := yaml.UnmarshalStrict([]byte(text), &v); err != nil {
		t.Fatal(err)
	}
	return v
}

func jobOf(t *testing.T, spec string) *api.TrainJob {
	t.Helper()
	return &api.TrainJob{Spec: must[api.TrainJobSpec](t, spec)}
}

func shape(e *overrides.Effective) string {
	var all []string
	for i := range e.ReplicatedJobs {
		rj := &e.ReplicatedJobs[i]
		all = append(all, fmt.Sprintf("%s:%d×%d", rj.Name, rj.Replicas, overrides.PodsPerJob(rj)))
	}
	return strings.Join(all, " ")
}

func gpus(c *corev1.Container) int64 { return ptr.To(c.Resources.Limits["nvidia.com/gpu"]).Value() }

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
			if node.Image != "mine" || valueOf(node, "A") != "mine" || gpus(node) != 8 {
				t.Errorf("the TrainJob's image, environment and resources are for the nodes: got %+v", node)
			}
			_, launcher := nodeOf(t, c.job, mpiNodes(c.policy, "{}", "{}"), "launcher")
			if launcher.Image != "mine" || valueOf(launcher, "A") != "mine" || gpus(launcher) != c.launcherGPUs {
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
			if got := overrides.Nodes(jobOf(t, "{}"), &rt); got != 1 {
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
	if gpus(node) != 8 || node.Resources.Requests.Cpu().Value() != 4 {
		t.Errorf("got %+v", node.Resources)
	}
}

// TestResourcesPerNode holds which nodes have the TrainJob's resources, beside the runtime's or in their place.
func TestResourcesPerNode(t *testing.T) {
	const has, asNode = "{requests: {cpu: 1, memory: 1Gi}}", "{mpi: {runLauncherAsNode: true}}"
	for name, c := range map[string]struct {
		dialect        *dialect.Dialect
		node, launcher string
	}{
		"merged since v2.3":             {dialect.Kubeflow23, "8 1Gi", "8 1Gi"},
		"replaced before":               {dialect.Kubeflow21, "8 0", "8 0"},
		"replaced, the launcher's only": {dialect.Kubeflow20, "1 1Gi", "8 0"},
		"merged by the bundled Trainer": {dialect.Bundled, "8 1Gi", "8 1Gi"},
	} {
		t.Run(name, func(t *testing.T) {
			rt := must[trainerapi.TrainingRuntimeSpec](t, mpiNodes(asNode, has, has))
			resources := func(spec, name string) string {
				e, err := c.dialect.Compute(jobOf(t, spec), &rt, nil)
				if err != nil {
					t.Fatal(err)
				}
				got := pipeline.NodeContainer(e.ReplicatedJob(name)).Resources.Requests
				return got.Cpu().String() + " " + got.Memory().String()
			}
			const given = "trainer: {resourcesPerNode: {requests: {cpu: 8}}}"
			if node, launcher := resources(given, "node"), resources(given, "launcher"); node != c.node ||
				launcher != c.launcher {
				t.Errorf("the node has %s, the launcher %s; want %s and %s", node, launcher, c.node, c.launcher)
			}
			if got := resources("trainer: {resourcesPerNode: {}}", "launcher"); got != "1 1Gi" {
				t.Errorf("no resources take no others' place: got %s", got)
			}
		})
	}
}

// TestDefaults holds the defaults that the runtimes' CRD sets and Trainer's plugins need.
func TestDefaults(t *testing.T) {
	rt := must[trainerapi.TrainingRuntimeSpec](t, nodesRuntime("{torch: {}}", "{}"))
	for _, policy := range []string{"{coscheduling: {}}", "{volcano: {networkTopology: {}}}"} {
		rt.PodGroupPolicy = ptr.To(must[trainerapi.PodGroupPolicy](t, policy))
		a, err := overrides.Prepare(dialect.Bundled.Rules, jobOf(t, "{}"), &rt, nil)
		if err != nil {
			t.Fatal(err)
		}
		p := a.Info.RuntimePolicy.PodGroupPolicy
		if p.Coscheduling != nil && ptr.Deref(p.Coscheduling.ScheduleTimeoutSeconds, 0) != 60 ||
			p.Volcano != nil && ptr.Deref(p.Volcano.NetworkTopology.HighestTierAllowed, 0) != 1 {
			t.Errorf("got %+v without the defaults", p)
		}
	}
}

// TestRefuses holds that a runtime that Trainer's plugins can't run is refused with its name.
func TestRefuses(t *testing.T) {
	for want, runtime := range map[string]string{
		`ML policy MPI of runtime "any"`:      mpiNodes("{mpi: {mpiImplementation: Intel}}", "{}", "{}"),
		`runtime "any" has no replicatedJobs`: "{}",
	} {
		rt := must[trainerapi.TrainingRuntimeSpec](t, runtime)
		job := jobOf(t, "runtimeRef: {name: any}")
		if _, err := dialect.Bundled.Compute(job, &rt, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}

// TestSecretOnce holds that the Secrets of initializers are in what is queued, and once in what is built.
func TestSecretOnce(t *testing.T) {
	rt := must[trainerapi.TrainingRuntimeSpec](t, `
template:
  spec:
    replicatedJobs:
    - name: dataset-initializer
      template:
        metadata: {labels: {trainer.kubeflow.org/trainjob-ancestor-step: dataset-initializer}}
        spec: {template: {spec: {containers: [{name: dataset-initializer}]}}}
    - name: model-initializer
      template:
        metadata: {labels: {trainer.kubeflow.org/trainjob-ancestor-step: model-initializer}}
        spec: {template: {spec: {containers: [{name: model-initializer}]}}}
`)
	job := jobOf(t, "initializer: {dataset: {secretRef: {name: a}}, model: {secretRef: {name: b}}}")
	e, err := dialect.Bundled.Compute(job, &rt, nil)
	if err != nil {
		t.Fatal(err)
	}
	a, err := overrides.Assemble(dialect.Bundled.Rules, job, &rt, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, rj := range a.JobSet().Spec.ReplicatedJobs {
		if n := len(rj.Template.Spec.Template.Spec.Containers[0].EnvFrom); n != 1 {
			t.Errorf("%s of the JobSet has %d Secrets, want 1", *rj.Name, n)
		}
	}
	for _, rj := range append(e.ReplicatedJobs, e.Built...) {
		if n := len(rj.Template.Spec.Template.Spec.Containers[0].EnvFrom); n != 1 {
			t.Errorf("%s has %d Secrets, want 1", rj.Name, n)
		}
	}
}
