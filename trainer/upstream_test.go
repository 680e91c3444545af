package trainer

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	trainerconfig "github.com/kubeflow/trainer/v2/pkg/apis/config/v1alpha1"
	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"github.com/kubeflow/trainer/v2/pkg/runtime/core"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	jobsetac "sigs.k8s.io/jobset/client-go/applyconfiguration/jobset/v1alpha2"
	"sigs.k8s.io/yaml"

	"github.com/signalbox-dev/signalbox/overrides/dialect"
	"github.com/signalbox-dev/signalbox/overrides/pipeline"
)

// everything is a runtime that sets all that a TrainJob can set too, on each step. Torch's environment is injected into
// the initializers, where Trainer has it.
const everything = `
mlPolicy: %s
template:
  spec:
    replicatedJobs:
    - name: dataset-initializer
      replicas: 1
      template:
        metadata: {labels: {trainer.kubeflow.org/trainjob-ancestor-step: dataset-initializer}}
        spec: {template: {spec: {containers: [{name: dataset-initializer, image: init,
          env: [{name: STORAGE_URI, value: runtime}, {name: A, value: runtime}, {name: B, value: runtime}],
          envFrom: [{secretRef: {name: runtime}}],
          volumeMounts: [{name: initializer, mountPath: /workspace}]}]}}}
    - name: model-initializer
      replicas: 1
      template:
        metadata: {labels: {trainer.kubeflow.org/trainjob-ancestor-step: model-initializer}}
        spec: {template: {spec: {containers: [{name: model-initializer, image: init,
          env: [{name: STORAGE_URI, value: runtime}, {name: A, value: runtime}],
          volumeMounts: [{name: initializer, mountPath: /workspace}]}]}}}
    - name: launcher
      replicas: 1
      template:
        metadata: {labels: {%s: trainer}}
        spec: {template: {spec: {containers: [{name: node, image: runtime, command: [runtime], args: [runtime],
          env: [{name: A, value: runtime}, {name: B, value: runtime}],
          resources: {requests: {cpu: 2, nvidia.com/gpu: 1}, limits: {nvidia.com/gpu: 1}}}]}}}
    - name: node
      replicas: 1
      template:
        metadata: {labels: {%s: trainer}}
        spec: {template: {spec: {containers: [{name: node, image: runtime, command: [runtime], args: [runtime],
          ports: [{containerPort: 80}],
          env: [{name: A, value: runtime}, {name: B, value: runtime}],
          resources: {requests: {cpu: 2, nvidia.com/gpu: 1}, limits: {nvidia.com/gpu: 1}}}]}}}
`

// policiesOf are ML policies, by whether the trainer step is a launcher beside the nodes.
var policiesOf = map[string]string{
	"{numNodes: 2, torch: {}}": "node",
	"{numNodes: 2, torch: {envInjection: {targets: [{jobName: dataset-initializer, containerNames: " +
		"[dataset-initializer]}, {jobName: model-initializer, containerNames: [model-initializer]}]}}}": "node",
	"{numNodes: 2, jax: {}}":                   "node",
	"{numNodes: 2, xgboost: {}}":               "node",
	"{numNodes: 2, flux: {numProcPerNode: 1}}": "node",
	"{numNodes: 2}":                            "node",
	"{numNodes: 1, mpi: {numProcPerNode: 1, mpiImplementation: OpenMPI, sshAuthMountPath: /root/.ssh, " +
		"runLauncherAsNode: true}}": "launcher",
	"{numNodes: 1, mpi: {numProcPerNode: 1, mpiImplementation: OpenMPI, sshAuthMountPath: /root/.ssh}}": "launcher",
}

// trainerFields and initializerFields set one field each, in another way than the runtime.
var trainerFields = map[string]func(*trainerapi.Trainer){
	"image":   func(t *trainerapi.Trainer) { t.Image = ptr.To("mine") },
	"command": func(t *trainerapi.Trainer) { t.Command = []string{"mine"} },
	"args":    func(t *trainerapi.Trainer) { t.Args = []string{"mine"} },
	"env": func(t *trainerapi.Trainer) {
		t.Env = []corev1.EnvVar{{Name: "A", Value: "mine"}, {Name: "NEW", Value: "mine"}}
	},
	"numNodes":       func(t *trainerapi.Trainer) { t.NumNodes = ptr.To[int32](3) },
	"numProcPerNode": func(t *trainerapi.Trainer) { t.NumProcPerNode = ptr.To[int32](4) },
	"resourcesPerNode": func(t *trainerapi.Trainer) {
		t.ResourcesPerNode = &corev1.ResourceRequirements{
			Requests: resourceList("cpu: 3, nvidia.com/gpu: 8"), Limits: resourceList("nvidia.com/gpu: 8"),
		}
	},
}

var initializerFields = map[string]func(*trainerapi.DatasetInitializer){
	"storageUri": func(d *trainerapi.DatasetInitializer) { d.StorageUri = ptr.To("hf://mine") },
	"env": func(d *trainerapi.DatasetInitializer) {
		d.Env = []corev1.EnvVar{{Name: "A", Value: "mine"}, {Name: "NEW", Value: "mine"}}
	},
	"secretRef": func(d *trainerapi.DatasetInitializer) { d.SecretRef = &corev1.LocalObjectReference{Name: "mine"} },
}

func resourceList(text string) corev1.ResourceList {
	var list corev1.ResourceList
	if err := yaml.Unmarshal([]byte("{"+text+"}"), &list); err != nil {
		panic(err)
	}
	return list
}

func everythingOf(t testing.TB, policy, step string) *trainerapi.TrainingRuntimeSpec {
	t.Helper()
	launcher, node := "trainer.kubeflow.org/trainjob-ancestor-step", "other"
	if step == "node" {
		launcher, node = node, launcher
	}
	var spec trainerapi.TrainingRuntimeSpec
	if err := yaml.UnmarshalStrict(fmt.Appendf(nil, everything, policy, launcher, node), &spec); err != nil {
		t.Fatal(err)
	}
	return &spec
}

// specsOfEachField returns TrainJobs' specs: without anything, with each field alone, and with all.
func specsOfEachField() map[string]trainerapi.TrainJobSpec {
	specs := map[string]trainerapi.TrainJobSpec{"nothing": {}}
	all := &trainerapi.Trainer{}
	for name, set := range trainerFields {
		one := &trainerapi.Trainer{}
		set(one)
		set(all)
		specs["trainer."+name] = trainerapi.TrainJobSpec{Trainer: one}
	}
	both := &trainerapi.Initializer{Dataset: &trainerapi.DatasetInitializer{}}
	for name, set := range initializerFields {
		one := &trainerapi.DatasetInitializer{}
		set(one)
		set(both.Dataset)
		specs["initializer.dataset."+name] = trainerapi.TrainJobSpec{Initializer: &trainerapi.Initializer{Dataset: one}}
		specs["initializer.model."+name] = trainerapi.TrainJobSpec{
			Initializer: &trainerapi.Initializer{Model: (*trainerapi.ModelInitializer)(one)}}
	}
	both.Model = (*trainerapi.ModelInitializer)(both.Dataset)
	specs["all"] = trainerapi.TrainJobSpec{Trainer: all, Initializer: both}
	return specs
}

// TestFieldsOfTheTrainJob holds that the tests of each field have all that the API has.
func TestFieldsOfTheTrainJob(t *testing.T) {
	for of, fields := range map[reflect.Type][]string{
		reflect.TypeFor[trainerapi.Trainer]():            keysOf(trainerFields),
		reflect.TypeFor[trainerapi.DatasetInitializer](): keysOf(initializerFields),
		reflect.TypeFor[trainerapi.ModelInitializer]():   keysOf(initializerFields),
	} {
		for i := range of.NumField() {
			name, _, _ := strings.Cut(of.Field(i).Tag.Get("json"), ",")
			if !slices.Contains(fields, name) {
				t.Errorf("%s.%s has no test", of, name)
			}
		}
	}
}

func keysOf[T any](m map[string]T) (keys []string) {
	for key := range m {
		keys = append(keys, key)
	}
	return keys
}

// TestBuiltKeepsTheTrainJobsOwn holds that Effective.Built is what Kubeflow Trainer's own controller builds, for each
// field that both a TrainJob and its runtime set, and each ML policy. A start waits until the JobSet fits it.
func TestBuiltKeepsTheTrainJobsOwn(t *testing.T) {
	for policy, step := range policiesOf {
		spec := everythingOf(t, policy, step)
		for name, fields := range specsOfEachField() {
			job := jobOf(t, "everything", "{}")
			fields.RuntimeRef = job.Spec.RuntimeRef
			job.Spec.TrainJobSpec = *fields.DeepCopy()
			if strings.Contains(policy, "flux") { // Trainer v2.3.0's plugin panics without
				job.Spec.Trainer = ptr.To(ptr.Deref(job.Spec.Trainer, trainerapi.Trainer{}))
				job.Spec.Trainer.NumNodes = ptr.To(ptr.Deref(job.Spec.Trainer.NumNodes, 2))
			}
			e, err := dialect.Kubeflow23.Compute(job, spec, nil)
			if err != nil {
				t.Fatal(err)
			}
			want, got := inOrder(upstream(t, job.Upstream(), spec)), inOrder(e.Built)
			for i := range want {
				if !equality.Semantic.DeepEqual(want[i].Template, got[i].Template) || want[i].Replicas != got[i].Replicas {
					t.Errorf("%s, spec.%s: Trainer builds\n%s, Effective.Built is\n%s", policy, name, jsonOf(t, want[i]),
						jsonOf(t, got[i]))
				}
			}
		}
	}
}

// noIndexes are those of a client without a cache.
type noIndexes struct{}

func (noIndexes) IndexField(context.Context, client.Object, string, client.IndexerFunc) error {
	return nil
}

// upstream returns the ReplicatedJobs that Kubeflow Trainer v2.3.0 builds.
func upstream(
	t testing.TB, job *trainerapi.TrainJob, spec *trainerapi.TrainingRuntimeSpec,
) []jobset.ReplicatedJob {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		clientgoscheme.AddToScheme, trainerapi.AddToScheme, jobset.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(&trainerapi.TrainingRuntime{
		ObjectMeta: metav1.ObjectMeta{Namespace: job.Namespace, Name: job.Spec.RuntimeRef.Name}, Spec: *spec.DeepCopy(),
	}).Build()
	ctx := context.Background()
	trainer, err := core.NewTrainingRuntime(ctx, c, noIndexes{}, &trainerconfig.Configuration{})
	if err != nil {
		t.Fatal(err)
	}
	objects, err := trainer.NewObjects(ctx, job.DeepCopy())
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range objects {
		if js, ok := o.(*jobsetac.JobSetApplyConfiguration); ok {
			built, err := pipeline.SpecOf(js)
			if err != nil {
				t.Fatal(err)
			}
			return built.ReplicatedJobs
		}
	}
	t.Fatal("Trainer builds no JobSet")
	return nil
}

// inOrder returns ReplicatedJobs with their environment in order: Trainer runs its plugins in none.
func inOrder(replicatedJobs []jobset.ReplicatedJob) []jobset.ReplicatedJob {
	for i := range replicatedJobs {
		for j := range replicatedJobs[i].Template.Spec.Template.Spec.Containers {
			slices.SortFunc(replicatedJobs[i].Template.Spec.Template.Spec.Containers[j].Env,
				func(a, b corev1.EnvVar) int { return strings.Compare(a.Name, b.Name) })
		}
	}
	return replicatedJobs
}

func jsonOf(t testing.TB, v any) string {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// TestQueuedIsBuilt holds that what is built of a TrainJob is what was computed for its queue, for each field and each
// ML policy.
func TestQueuedIsBuilt(t *testing.T) {
	b := testBuilder(t, testClient(t))
	for policy, step := range policiesOf {
		spec := everythingOf(t, policy, step)
		for name, fields := range specsOfEachField() {
			job := jobOf(t, "everything", "{}")
			fields.RuntimeRef = job.Spec.RuntimeRef
			job.Spec.TrainJobSpec = *fields.DeepCopy()
			e, err := dialect.Bundled.Compute(job, spec, nil)
			if err != nil {
				t.Fatal(err)
			}
			js, err := builtJobSet(b.Build(t.Context(), job, spec))
			if err != nil {
				t.Fatal(err)
			}
			built, err := pipeline.SpecOf(js)
			if err != nil {
				t.Fatal(err)
			}
			want, got := inOrder(e.Built), inOrder(built.ReplicatedJobs)
			for i := range want {
				if !equality.Semantic.DeepEqual(want[i].Template, got[i].Template) || want[i].Replicas != got[i].Replicas {
					t.Errorf("%s, spec.%s: built is\n%s, Effective.Built is\n%s", policy, name, jsonOf(t, got[i]),
						jsonOf(t, want[i]))
				}
			}
		}
	}
}
