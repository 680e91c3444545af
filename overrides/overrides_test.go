package overrides_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/validation/field"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	"sigs.k8s.io/yaml"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides"
	"github.com/signalbox-dev/signalbox/overrides/dialect"
)

// must reads YAML into a T.
func must[T any](t testing.TB, text string) T {
	t.Helper()
	var v T
	if err := yaml.UnmarshalStrict([]byte(text), &v); err != nil {
		t.Fatal(err)
	}
	return v
}

// listed returns the entries of runtimePatches.
func listed(patches []trainerapi.RuntimePatch) []overrides.Entry {
	return dialect.Bundled.Entries(&api.TrainJob{
		Spec: api.TrainJobSpec{TrainJobSpec: trainerapi.TrainJobSpec{RuntimePatches: patches}}})
}

// replicatedJob returns the ReplicatedJob of that name.
func replicatedJob(all []jobset.ReplicatedJob, name string) *jobset.ReplicatedJob {
	return &all[slices.IndexFunc(all, func(rj jobset.ReplicatedJob) bool { return rj.Name == name })]
}

// container returns the container of that name.
func container(all []corev1.Container, name string) *corev1.Container {
	return &all[slices.IndexFunc(all, func(c corev1.Container) bool { return c.Name == name })]
}

const torchRuntime = `
mlPolicy: {numNodes: 2, torch: {}}
template:
  spec:
    replicatedJobs:
    - name: dataset-initializer
      replicas: 1
      template:
        metadata: {labels: {trainer.kubeflow.org/trainjob-ancestor-step: dataset-initializer}}
        spec:
          template:
            spec:
              containers:
              - {name: dataset-initializer, image: example.com/init:1}
    - name: node
      replicas: 1
      dependsOn: [{name: dataset-initializer, status: Complete}]
      template:
        metadata: {labels: {trainer.kubeflow.org/trainjob-ancestor-step: trainer}}
        spec:
          template:
            metadata: {labels: {from: runtime}}
            spec:
              nodeSelector: {zone: east}
              tolerations: [{key: spot, operator: Exists}]
              containers:
              - {name: node, image: example.com/train:1, resources: {requests: {cpu: 1, memory: 1Gi}}}
              - {name: sidecar, image: example.com/sidecar:1}
`

const mpiRuntime = `
mlPolicy: {numNodes: 1, mpi: {runLauncherAsNode: true}}
template:
  spec:
    replicatedJobs:
    - name: node
      replicas: 1
      template: {spec: {template: {spec: {containers: [{name: node, image: example.com/mpi:1}]}}}}
    - name: launcher
      replicas: 1
      template:
        metadata: {labels: {trainer.kubeflow.org/trainjob-ancestor-step: trainer}}
        spec: {template: {spec: {containers: [{name: node, image: example.com/mpi:1}]}}}
`

func plainRuntime(policy string) string {
	return fmt.Sprintf(`
%s
template:
  spec:
    replicatedJobs:
    - name: node
      replicas: 3
      template:
        metadata: {labels: {trainer.kubeflow.org/trainjob-ancestor-step: trainer}}
        spec:
          parallelism: 5
          template: {spec: {containers: [{name: node, image: example.com/train:1}]}}
    - name: cache
      replicas: 3
      template: {spec: {parallelism: 5, template: {spec: {containers: [{name: cache, image: example.com/cache:1}]}}}}
`, policy)
}

func shape(e *overrides.Effective) string {
	var all []string
	for i := range e.ReplicatedJobs {
		rj := &e.ReplicatedJobs[i]
		all = append(all, fmt.Sprintf("%s:%d×%d", rj.Name, rj.Replicas, overrides.PodsPerJob(rj)))
	}
	return strings.Join(all, " ")
}

func TestComputeCounts(t *testing.T) {
	cases := map[string]struct {
		reason, runtime, job, want string
	}{
		"torch, by the runtime": {"mlPolicy.numNodes counts the trainer's nodes", torchRuntime, `{}`,
			"dataset-initializer:1×1 node:1×2"},
		"torch, by the TrainJob": {"spec.trainer.numNodes goes before mlPolicy.numNodes", torchRuntime,
			`{trainer: {numNodes: 5}}`, "dataset-initializer:1×1 node:1×5"},
		"mpi, launcher as a node": {"the launcher is one of the nodes", mpiRuntime, `{trainer: {numNodes: 4}}`,
			"node:1×3 launcher:1×1"},
		"mpi, launcher apart": {"the launcher comes on top", strings.Replace(mpiRuntime, "runLauncherAsNode: true",
			"runLauncherAsNode: false", 1), `{trainer: {numNodes: 4}}`, "node:1×4 launcher:1×1"},
		"mpi, one node": {"Trainer v2.3.0 keeps one worker beside the launcher", mpiRuntime,
			`{trainer: {numNodes: 1}}`, "node:1×1 launcher:1×1"},
		"mpi, nothing said": {"each has one pod", mpiRuntime, `{}`, "node:1×1 launcher:1×1"},
		"jax": {"as torch", strings.Replace(torchRuntime, "torch: {}", "jax: {}", 1),
			`{trainer: {numNodes: 3}}`, "dataset-initializer:1×1 node:1×3"},
		"xgboost": {"as torch", strings.Replace(torchRuntime, "torch: {}", "xgboost: {}", 1),
			`{trainer: {numNodes: 3}}`, "dataset-initializer:1×1 node:1×3"},
		"plain, with a policy": {"an ML policy without a framework counts nodes; the trainer has one replica, others " +
			"keep theirs", plainRuntime("mlPolicy: {numNodes: 2}"), `{}`, "node:1×2 cache:3×5"},
		"plain, without a policy": {"the runtime's parallelism stands", plainRuntime(""), `{}`, "node:1×5 cache:3×5"},
		"plain, by the TrainJob": {"spec.trainer.numNodes counts without a policy too", plainRuntime(""),
			`{trainer: {numNodes: 7}}`, "node:1×7 cache:3×5"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			job := &api.TrainJob{Spec: must[api.TrainJobSpec](t, c.job)}
			job.Name = "job"
			rt := must[trainerapi.TrainingRuntimeSpec](t, c.runtime)
			jobBefore, before := job.DeepCopy(), rt.DeepCopy()
			e, err := dialect.Bundled.Compute(job, &rt, nil)
			if err != nil {
				t.Fatal(err)
			}
			if got := shape(e); got != c.want {
				t.Errorf("%s: got %s, want %s", c.reason, got, c.want)
			}
			if !equality.Semantic.DeepEqual(&rt, before) || !equality.Semantic.DeepEqual(job, jobBefore) {
				t.Error("Compute changed what it was given")
			}
		})
	}
}

func TestComputeTrainJobsOwnAPI(t *testing.T) {
	job := &api.TrainJob{Spec: must[api.TrainJobSpec](t, `
trainer:
  image: example.com/mine:2
  command: [run]
  args: [fast]
  env: [{name: A, value: b}]
  resourcesPerNode: {requests: {nvidia.com/gpu: 8, cpu: 4}, limits: {nvidia.com/gpu: 8}}
initializer: {dataset: {storageUri: "hf://data"}}
`)}
	rt := must[trainerapi.TrainingRuntimeSpec](t, torchRuntime)
	e, err := dialect.Bundled.Compute(job, &rt, nil)
	if err != nil {
		t.Fatal(err)
	}
	c := container(e.ReplicatedJob("node").Template.Spec.Template.Spec.Containers, "node")
	if c.Image != "example.com/mine:2" || c.Command[0] != "run" || c.Args[0] != "fast" {
		t.Errorf("spec.trainer sets image, command and args: got %+v", c)
	}
	want := must[corev1.ResourceRequirements](
		t, `{requests: {nvidia.com/gpu: 8, cpu: 4, memory: 1Gi}, limits: {nvidia.com/gpu: 8}}`)
	if !equality.Semantic.DeepEqual(c.Resources, want) {
		t.Errorf("resourcesPerNode is merged over the runtime's resources, key by key: got %+v", c.Resources)
	}
	if container(e.ReplicatedJob("node").Template.Spec.Template.Spec.Containers, "sidecar").Resources.Requests != nil {
		t.Error("resourcesPerNode is for the node container only")
	}
	env := func(jobs []jobset.ReplicatedJob) string {
		var names []string
		for _, v := range container(replicatedJob(jobs, "node").Template.Spec.Template.Spec.Containers, "node").Env {
			names = append(names, v.Name)
		}
		return strings.Join(names, " ")
	}
	if got := env(e.ReplicatedJobs); got != "A" {
		t.Errorf("the ML policy's environment is not for the Workload: got %s", got)
	}
	if got := env(e.Built); got != "A PET_NNODES PET_NPROC_PER_NODE PET_NODE_RANK PET_MASTER_ADDR PET_MASTER_PORT" {
		t.Errorf("the ML policy's environment is what runs: got %s", got)
	}
	init := e.ReplicatedJob("dataset-initializer").Template.Spec.Template.Spec.Containers[0]
	if len(init.Env) != 1 || init.Env[0].Value != "hf://data" {
		t.Errorf("the initializer's storageUri becomes its environment: got %+v", init.Env)
	}
	if e.ReplicatedJob("unknown") != nil {
		t.Error("there is no ReplicatedJob of that name")
	}
	launcher := must[trainerapi.TrainingRuntimeSpec](t, mpiRuntime)
	m, err := dialect.Bundled.Compute(job, &launcher, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"node", "launcher"} {
		if got := m.ReplicatedJob(name).Template.Spec.Template.Spec.Containers[0].Resources.Requests; got.Cpu().Value() != 4 {
			t.Errorf("where the launcher is a node, resourcesPerNode is for both: %s has %v", name, got)
		}
	}
}

func TestComputeRefuses(t *testing.T) {
	rt := must[trainerapi.TrainingRuntimeSpec](t, torchRuntime)
	_, err := dialect.Bundled.Compute(&api.TrainJob{}, &rt, listed(
		entries(t, `[{manager: a.com/a, trainingRuntimeSpec: {template: {spec: {replicatedJobs: [{name: nodes}]}}}}]`)))
	var invalid *field.Error
	if !errors.As(err, &invalid) ||
		invalid.Field != "spec.runtimePatches[a.com/a].trainingRuntimeSpec.template.spec.replicatedJobs[nodes]" ||
		!strings.Contains(err.Error(), `"dataset-initializer", "node"`) {
		t.Errorf("an entry for a ReplicatedJob that the runtime doesn't have is refused with its path and the names that "+
			"there are: got %v", err)
	}
	_, err = dialect.Bundled.Compute(&api.TrainJob{}, &trainerapi.TrainingRuntimeSpec{}, nil)
	if !errors.As(err, &invalid) ||
		invalid.Type != field.ErrorTypeRequired {
		t.Errorf("a runtime without ReplicatedJobs is refused: got %v", err)
	}
}

// jobOf reads a TrainJob's spec.
func jobOf(t *testing.T, spec string) *api.TrainJob {
	t.Helper()
	job := &api.TrainJob{}
	if err := yaml.UnmarshalStrict([]byte(spec), &job.Spec); err != nil {
		t.Fatal(err)
	}
	job.Spec.RuntimeRef.Name = "torch"
	return job
}

func TestNodeGroup(t *testing.T) {
	cases := map[string]struct {
		reason, runtime string
		want            []string
	}{
		"launcher as a node": {"both are nodes", mpiRuntime, []string{"launcher", "node"}},
		"launcher apart": {"it is no node",
			strings.Replace(mpiRuntime, "runLauncherAsNode: true", "runLauncherAsNode: false", 1), nil},
		"no workers": {"there is one ReplicatedJob",
			strings.Replace(mpiRuntime, "name: node\n      replicas", "name: w\n      replicas", 1), nil},
		"torch":     {"one ReplicatedJob has all nodes", torchRuntime, nil},
		"no policy": {"there are no nodes", plainRuntime(""), nil},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			rt := must[trainerapi.TrainingRuntimeSpec](t, c.runtime)
			e, err := dialect.Bundled.Compute(jobOf(t, "{}"), &rt, nil)
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(e.NodeGroup, c.want) {
				t.Errorf("%s: got %v", c.reason, e.NodeGroup)
			}
		})
	}
}

// A Memo gives what Compute gives, whatever it was asked for before: of two TrainJobs with other names the same, of one
// that says something else what that is.
func TestMemo(t *testing.T) {
	entry := listed(entries(t, "["+podEntry("a.com/a", `{spec: {nodeSelector: {gpu: a100}}}`)+"]"))
	runtimes := map[string]string{"torch": torchRuntime, "mpi": mpiRuntime,
		"plain": plainRuntime("mlPolicy: {numNodes: 2}"), "jax": strings.Replace(torchRuntime, "torch: {}", "jax: {}", 1)}
	const tune = `{trainer: {numNodes: 2, command: [tune, run]}, runtimeRef: {name: torchtune-llama3_2_1b}}`
	for _, d := range []*dialect.Dialect{dialect.Bundled, dialect.Kubeflow23, dialect.Kubeflow20} {
		m := overrides.NewMemo(64 << 20)
		for name, text := range runtimes {
			rt := must[trainerapi.TrainingRuntimeSpec](t, text)
			for _, of := range []struct {
				job, spec string
				entries   []overrides.Entry
			}{
				{"first-job", `{}`, nil}, {"other-job", `{}`, nil}, {"first-job", `{}`, nil},
				{"first-job", `{trainer: {numNodes: 3}}`, nil},
				{"other-job", `{}`, entry}, {"first-job", `{}`, entry},
				// The same patch is the number of admitted nodes in the integration's entry alone.
				{"first-job", `{}`, admittedWith(t, "a.com/a", "5")}, {"first-job", `{}`, admittedWith(t, overrides.Manager, "5")},
				{"first-job", `{initializer: {dataset: {storageUri: "hf://a/b"}}}`, nil},
				// torchtune's command holds the address of the first pod, and a configuration named by the runtime.
				{"first-job", tune, nil}, {"other-job", tune, nil},
				{"other-job", strings.Replace(tune, "llama3_2_1b", "qwen2_5_1.5b", 1), nil},
			} {
				job := &api.TrainJob{Spec: must[api.TrainJobSpec](t, of.spec)}
				job.Namespace, job.Name = "ns", of.job
				want, err := d.Compute(job, &rt, of.entries)
				if err != nil {
					t.Fatal(err)
				}
				got, err := m.Compute(d.Rules, job, &rt, of.entries)
				if err != nil {
					t.Fatal(err)
				}
				if !equality.Semantic.DeepEqual(got.ReplicatedJobs, want.ReplicatedJobs) ||
					!equality.Semantic.DeepEqual(got.Annotations, want.Annotations) {
					t.Errorf("%s, %s, TrainJob %s %s: got %v, want %v", d.Name, name, of.job, of.spec, got.ReplicatedJobs,
						want.ReplicatedJobs)
				}
				if (d == dialect.Bundled) != (got.Built == nil) || d != dialect.Bundled && len(got.Built) != len(want.Built) {
					t.Errorf("%s, %s: got %d ReplicatedJobs built, want %d for Kubeflow Trainer and none for ours", d.Name, name,
						len(got.Built), len(want.Built))
				}
			}
		}
	}
}
