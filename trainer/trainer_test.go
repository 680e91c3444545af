package trainer

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	trainerconfig "github.com/kubeflow/trainer/v2/pkg/apis/config/v1alpha1"
	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	"sigs.k8s.io/yaml"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides"
)

// template is a runtime with an initializer onto a volume, a trainer and a sidecar.
const template = `
  spec:
    replicatedJobs:
    - name: dataset-initializer
      replicas: 1
      template:
        metadata: {labels: {trainer.kubeflow.org/trainjob-ancestor-step: dataset-initializer}}
        spec: {template: {spec: {
          volumes: [{name: initializer, %s}],
          containers: [{name: dataset-initializer, image: init, volumeMounts: [{name: initializer, mountPath: /workspace}]}]}}}
    - name: node
      replicas: 1
      dependsOn: [{name: dataset-initializer, status: Complete}]
      template:
        metadata: {labels: {trainer.kubeflow.org/trainjob-ancestor-step: trainer}}
        spec: {template: {spec: {containers: [{name: node, image: train}, {name: sidecar, image: side}]}}}
    - name: launcher
      replicas: 1
      template: {spec: {template: {spec: {containers: [{name: node, image: launch}]}}}}
`

const lastingVolume, lostVolume = "persistentVolumeClaim: {claimName: data}", "emptyDir: {}"

func runtimeOf(t testing.TB, policy, volume string) *trainerapi.TrainingRuntimeSpec {
	t.Helper()
	var spec trainerapi.TrainingRuntimeSpec
	text := "mlPolicy: " + policy + "\ntemplate:" + fmt.Sprintf(template, volume)
	if err := yaml.UnmarshalStrict([]byte(text), &spec); err != nil {
		t.Fatal(err)
	}
	return &spec
}

func jobOf(t testing.TB, name, text string) *api.TrainJob {
	t.Helper()
	job := &api.TrainJob{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "job", UID: "uid"}}
	job.Spec.RuntimeRef = trainerapi.RuntimeRef{
		APIGroup: &trainerapi.GroupVersion.Group,
		Kind:     ptr.To(trainerapi.TrainingRuntimeKind),
		Name:     name,
	}
	if err := yaml.UnmarshalStrict([]byte(text), job); err != nil {
		t.Fatal(err)
	}
	return job
}

func testClient(t testing.TB) client.Client {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, api.AddToScheme, jobset.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	var objects []client.Object
	for name, policy := range map[string]string{
		"torch": "{numNodes: 2, torch: {}}", "mpi": "{numNodes: 2, mpi: {numProcPerNode: 1, runLauncherAsNode: " +
			"true}}", "flux": "{numNodes: 2, flux: {numProcPerNode: 1}}",
	} {
		objects = append(
			objects,
			&api.TrainingRuntime{
				ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name},
				Spec:       *runtimeOf(t, policy, lastingVolume),
			},
		)
	}
	return fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).Build()
}

func testBuilder(t testing.TB, c client.Client) *Builder {
	t.Helper()
	b, err := NewBuilder(context.Background(), c, &trainerconfig.Configuration{})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestBuildLeavesOutWhatIsDone(t *testing.T) {
	const succeeded = "status: {jobsStatus: [{name: dataset-initializer, succeeded: 1}, {name: launcher, succeeded: 1}]}"
	b := testBuilder(t, testClient(t))
	cases := map[string]struct{ reason, volume, job, want string }{
		"first run": {
			"everything is to be done",
			lastingVolume,
			"{}",
			"dataset-initializer node<dataset-initializer launcher",
		},
		"done, lasting": {
			"the initializer is not run again, and nobody waits for it",
			lastingVolume,
			succeeded,
			"node launcher",
		},
		"done, lost": {
			"what it wrote went with the JobSet",
			lostVolume,
			succeeded,
			"dataset-initializer node<dataset-initializer launcher",
		},
		"failed": {
			"it has not succeeded",
			lastingVolume,
			"status: {jobsStatus: [{name: dataset-initializer, failed: 1}]}",
			"dataset-initializer node<dataset-initializer launcher",
		},
		"no initializer": {
			"only what others wait for is an initializer",
			lastingVolume,
			"status: {jobsStatus: [{name: launcher, succeeded: 1}]}",
			"dataset-initializer node<dataset-initializer launcher",
		},
		"writes elsewhere": {
			"another volume of its own would be lost",
			lastingVolume + "}, {name: other, emptyDir: {}",
			succeeded,
			"dataset-initializer node<dataset-initializer launcher",
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			spec := runtimeOf(t, "{torch: {}}", c.volume)
			if name == "writes elsewhere" {
				container := &spec.Template.Spec.ReplicatedJobs[0].Template.Spec.Template.Spec.Containers[0]
				container.VolumeMounts = append(container.VolumeMounts, corev1.VolumeMount{Name: "other", MountPath: "/other"})
			}
			spec.Template.Spec.SuccessPolicy = &jobset.SuccessPolicy{
				Operator:             jobset.OperatorAll,
				TargetReplicatedJobs: []string{"dataset-initializer", "node"},
			}
			js, err := builtJobSet(b.Build(context.Background(), jobOf(t, "torch", c.job), spec))
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, rj := range js.Spec.ReplicatedJobs {
				text := *rj.Name
				for _, d := range rj.DependsOn {
					text += "<" + *d.Name
				}
				got = append(got, text)
			}
			if strings.Join(got, " ") != c.want {
				t.Errorf("%s: got %s, want %s", c.reason, got, c.want)
			}
			targets := js.Spec.SuccessPolicy.TargetReplicatedJobs
			if left := len(js.Spec.ReplicatedJobs) == 2; left == slices.Contains(targets, "dataset-initializer") {
				t.Errorf("policies name only what is there: got %v", targets)
			}
		})
	}
}

func TestBuild(t *testing.T) {
	b := testBuilder(t, testClient(t))
	job := jobOf(t, "mpi", "spec: {suspend: false}")
	before := job.DeepCopy()
	built, err := b.Build(context.Background(), job, runtimeOf(t, "{numNodes: 2, mpi: {}}", lostVolume))
	if err != nil {
		t.Fatal(err)
	}
	side, js := built.SideObjects, built.JobSet
	if len(side) != 2 || len(js.OwnerReferences) != 1 || *js.OwnerReferences[0].UID != "uid" || *js.Spec.Suspend {
		t.Errorf(
			"an MPI TrainJob has a Secret, a ConfigMap and a JobSet that it owns: got %d side objects and %+v",
			len(side),
			js,
		)
	}
	if side[0].GetName()+side[1].GetName() != "job-mpi-ssh-authjob-mpi-hostfile" {
		t.Errorf("what was made is named: got %v", side)
	}
	if a, err := json.Marshal(job); err != nil || string(a) != string(must(json.Marshal(before))) {
		t.Error("building changes nothing of the TrainJob")
	}
	spec := runtimeOf(t, "{flux: {numProcPerNode: 1}}", lostVolume)
	if _, err := b.Build(context.Background(), jobOf(t, "flux", "{}"), spec); err != nil {
		t.Errorf("a Flux TrainJob without spec.trainer is built: got %v", err)
	}
	_, err = b.Build(context.Background(), job, &trainerapi.TrainingRuntimeSpec{})
	if err == nil || !strings.Contains(err.Error(), "has no replicatedJobs") {
		t.Errorf("a runtime without ReplicatedJobs is an error: got %v", err)
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func TestBuildInPart(t *testing.T) {
	b := testBuilder(t, newHarness(t).store)
	job := jobOf(t, "torch", "spec: {suspend: false, trainer: {numNodes: 8}, runtimePatches: [{manager: "+
		overrides.Manager+", trainingRuntimeSpec: {template: {spec: {replicatedJobs: [{name: node, template: {metadata: "+
		"{annotations: {signalbox.dev/nodes: '3'}}}}]}}}}]}")
	js, err := builtJobSet(b.Build(t.Context(), job, runtimeOf(t, "{torch: {}}", lostVolume)))
	if err != nil {
		t.Fatal(err)
	}
	for i := range js.Spec.ReplicatedJobs {
		rj := &js.Spec.ReplicatedJobs[i]
		if *rj.Name != "node" {
			continue
		}
		told := ""
		for _, e := range rj.Template.Spec.Template.Spec.Containers[0].Env {
			if *e.Name == "PET_NNODES" {
				told = *e.Value
			}
		}
		if *rj.Template.Spec.Parallelism != 3 || *rj.Template.Spec.Completions != 3 || told != "3" {
			t.Errorf("got %d pods, and PET_NNODES=%s", *rj.Template.Spec.Parallelism, told)
		}
		return
	}
	t.Error("there is no ReplicatedJob node")
}
