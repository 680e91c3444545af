package dialect_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides"
	"github.com/signalbox-dev/signalbox/overrides/dialect"
	"github.com/signalbox-dev/signalbox/overrides/legacy"
)

// dialects are all that there are.
func dialects() []*dialect.Dialect {
	return []*dialect.Dialect{dialect.Bundled, dialect.Kubeflow23, dialect.Kubeflow22, dialect.Kubeflow21,
		dialect.Kubeflow20}
}

// TestDialectValues holds what each dialect is asked for.
func TestDialectValues(t *testing.T) {
	want := []string{
		"the bundled Trainer runtimePatches keyed=true counts=true snapshots=false",
		"Kubeflow Trainer v2.3 runtimePatches keyed=true counts=true snapshots=true",
		"Kubeflow Trainer v2.2 runtimePatches keyed=true counts=true snapshots=false",
		"Kubeflow Trainer v2.1 podTemplateOverrides keyed=false counts=true snapshots=false",
		"Kubeflow Trainer v2.0 podSpecOverrides keyed=false counts=false snapshots=false",
	}
	for i, d := range dialects() {
		got := fmt.Sprintf("%s %s keyed=%v counts=%v snapshots=%v", d.Name, d.Field, d.Keyed(), d.CountsJobs,
			d.Snapshots)
		if got != want[i] {
			t.Errorf("got %s, want %s", got, want[i])
		}
		for j, other := range dialects() {
			if (d == other) != (i == j) {
				t.Errorf("%s == %s is %v", d.Name, other.Name, d == other)
			}
		}
	}
}

// TestKeyedOwn holds where the integration's entry is among runtimePatches.
func TestKeyedOwn(t *testing.T) {
	job := jobOf(t, "runtimePatches: [{manager: kueue.x-k8s.io/manager}, {manager: a.com/a}]")
	patch := &trainerapi.TrainingRuntimeSpecPatch{}
	own := &trainerapi.RuntimePatch{Manager: overrides.Manager, TrainingRuntimeSpec: patch}
	for _, d := range []*dialect.Dialect{dialect.Bundled, dialect.Kubeflow23} {
		if with := d.With(job, *own); len(with) != 2 || with[0].Patch != own.TrainingRuntimeSpec ||
			with[1].Manager != "a.com/a" {
			t.Errorf("%s: the entry is written in its place: %v", d.Name, with)
		}
		if with := d.With(&api.TrainJob{}, *own); len(with) != 1 || with[0].Manager != overrides.Manager {
			t.Errorf("%s: the entry is added: %v", d.Name, with)
		}
		if record, err := d.Record(job, own); record != nil || err != nil {
			t.Errorf("%s: a keyed entry needs no Record: %v, %v", d.Name, record, err)
		}
		if d.Own(job) != &job.Spec.RuntimePatches[0] || d.Own(&api.TrainJob{}) != nil {
			t.Errorf("%s: the entry is found by its manager", d.Name)
		}
	}
}

// must reads YAML into a T.
func must[T any](t testing.TB, text string) T {
	t.Helper()
	var v T
	if err := yaml.UnmarshalStrict([]byte(text), &v); err != nil {
		t.Fatal(err)
	}
	return v
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

// TestListOwn holds what a Trainer with a list reads of a TrainJob that it was started with.
func TestListOwn(t *testing.T) {
	d := dialect.Kubeflow21
	own := must[trainerapi.RuntimePatch](t, `{manager: kueue.x-k8s.io/manager, time: "2026-01-01T00:00:00Z",
  trainingRuntimeSpec: {template: {spec: {replicatedJobs: [{name: node, template: {spec: {template: {spec: {
  nodeSelector: {gpu: a}}}}}}]}}}}`)
	record, err := d.Record(&api.TrainJob{}, &own)
	if err != nil || d.Foreign(record) || !dialect.Kubeflow23.Foreign(record) || d.Foreign(nil) {
		t.Fatalf("the Record is this Trainer's: %+v, %v", record, err)
	}
	value, err := record.String()
	if err != nil {
		t.Fatal(err)
	}
	job := jobOf(t, "podTemplateOverrides: [{targetJobs: [{name: node}], spec: {nodeSelector: {gpu: a}}}]")
	job.Annotations = map[string]string{legacy.RecordAnnotation: value}
	if got := d.Own(job); got == nil || len(d.Others(job)) != 0 || len(d.With(job, *got)) != 1 {
		t.Errorf("the element is the integration's: %+v", got)
	}
}

// TestComputed holds that a dialect passes on its rules, and the entries of others than the integration.
func TestComputed(t *testing.T) {
	d, rt := dialect.Bundled, must[trainerapi.TrainingRuntimeSpec](t, torchRuntime)
	job := jobOf(t, "{initializer: {model: {storageUri: hf://m}}, runtimePatches: [{manager: kueue.x-k8s.io/manager}]}")
	if got := d.Unused(job, &rt); len(got) != 1 {
		t.Errorf("the runtime has no step for models: %v", got)
	}
	e, err := d.Compute(job, &rt, d.Entries(job))
	if err != nil || overrides.PodsPerJob(e.ReplicatedJob("node")) != 2 {
		t.Errorf("got %+v, %v", e, err)
	}
	job.Status.Initializers = d.Initializers(job, &rt)
	job.Status.JobsStatus = []trainerapi.JobStatus{{Name: "dataset-initializer", Succeeded: ptr.To[int32](1)}}
	if got := d.Done(job, &rt); *got[0].Succeeded != 1 {
		t.Errorf("nothing has changed: %+v", got)
	}
	job.Status.Initializers["dataset-initializer"] = "other"
	if got := d.Done(job, &rt); *got[0].Succeeded != 0 {
		t.Errorf("another initializer ran: %+v", got)
	}
}

// TestKubeflow holds by which fields of its TrainJobs a Trainer is known.
func TestKubeflow(t *testing.T) {
	const grace = "runtimePatches.trainingRuntimeSpec.template.spec.replicatedJobs.template.spec.template.spec." +
		"terminationGracePeriodSeconds"
	for name, c := range map[string]struct {
		fields  []string
		want    *dialect.Dialect
		bundled bool
	}{
		"v2.3":        {[]string{"runtimePatches", grace}, dialect.Kubeflow23, false},
		"v2.2":        {[]string{"runtimePatches"}, dialect.Kubeflow22, false},
		"v2.1":        {[]string{"podTemplateOverrides", "labels"}, dialect.Kubeflow21, false},
		"v2.0":        {[]string{"podSpecOverrides"}, dialect.Kubeflow20, false},
		"the bundled": {[]string{"runtimePatches", grace, "podTemplateOverrides"}, dialect.Kubeflow23, true},
		"none":        {[]string{"suspend"}, nil, false},
	} {
		has := func(path ...string) bool { return slices.Contains(c.fields, strings.Join(path, ".")) }
		got, err := dialect.Kubeflow(has)
		if got != c.want || (err == nil) != (c.want != nil) || dialect.IsBundled(has) != c.bundled {
			t.Errorf("%s: got %v, %v, bundled: %v", name, got, err, dialect.IsBundled(has))
		}
	}
}
