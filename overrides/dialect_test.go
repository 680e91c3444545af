package overrides

import (
	"fmt"
	"testing"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides/pipeline"
)

// dialects are all that there are.
func dialects() []*Dialect {
	return []*Dialect{Bundled, Kubeflow23, Kubeflow22, Kubeflow21, Kubeflow20}
}

// reading returns a dialect that reads earlier forms by a reader.
func reading(reader Reader) *Dialect {
	return &Dialect{Traits: Traits{Name: "a manifest", Field: RuntimePatches}, Reader: reader}
}

// TestDialectValues holds what each dialect is asked for, and that those with other rules don't share a key of a Memo.
func TestDialectValues(t *testing.T) {
	want := []string{
		"the bundled Trainer runtimePatches keyed=true counts=true snapshots=false",
		"Kubeflow Trainer v2.3 runtimePatches keyed=true counts=true snapshots=true",
		"Kubeflow Trainer v2.2 runtimePatches keyed=true counts=true snapshots=false",
		"Kubeflow Trainer v2.1 podTemplateOverrides keyed=false counts=true snapshots=false",
		"Kubeflow Trainer v2.0 podSpecOverrides keyed=false counts=false snapshots=false",
	}
	keys := map[key]pipeline.Rules{}
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
		shared, own, err := keysOf(d.Rules, &api.TrainJob{}, &trainerapi.TrainingRuntimeSpec{}, nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, k := range []key{shared, own} {
			if other, found := keys[k]; found && other != d.Rules {
				t.Errorf("%s shares a key with %+v", d.Name, other)
			}
			keys[k] = d.Rules
		}
	}
}

// TestKeyedOwn holds where the integration's entry is among runtimePatches.
func TestKeyedOwn(t *testing.T) {
	job := jobOf(t, "runtimePatches: [{manager: kueue.x-k8s.io/manager}, {manager: a.com/a}]")
	own := start()
	for _, d := range []*Dialect{Bundled, Kubeflow23, reading(Manifests(false))} {
		if with := d.With(job, *own); len(with) != 2 || with[0].Patch != own.TrainingRuntimeSpec ||
			with[1].Manager != "a.com/a" {
			t.Errorf("%s: the entry is written in its place: %v", d.Name, with)
		}
		if with := d.With(&api.TrainJob{}, *own); len(with) != 1 || with[0].Manager != Manager {
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

const shapes = `
labels: {of: jobset}
podSpecOverrides: [{targetJobs: [{name: node}], nodeSelector: {x: spec, a: spec}}]
podTemplateOverrides:
- {targetJobs: [{name: node}], metadata: {labels: {l: pod}}, spec: {nodeSelector: {x: pod, b: pod}}}
- {targetJobs: [{name: node}, {name: dataset-initializer}, {name: node}], spec: {nodeSelector: {x: later}}}
templateOverrides:
- manager: a.com/a
  pod:
  - {time: "2026-02-02T00:00:00Z", targetJobs: [{name: node}], spec: {nodeSelector: {x: late},
    terminationGracePeriodSeconds: 3}}
  - {targetJobs: [{name: node}], spec: {nodeSelector: {k: timeless}}}
  - {time: "2026-01-01T00:00:00Z", targetJobs: [{name: node}], spec: {nodeSelector: {x: early, c: early},
    securityContext: {runAsUser: 1}}}
  job: [{time: "2026-01-01T00:00:00Z", targetJobs: [{name: node}], metadata: {labels: {j: job}}},
    {time: "2026-01-02T00:00:00Z", metadata: {annotations: {s: set}}}]
runtimePatches:
- {manager: a.com/a, trainingRuntimeSpec: {template: {spec: {replicatedJobs: [{name: node,
  template: {spec: {template: {spec: {nodeSelector: {x: patch}}}}}}]}}}}
- {manager: kueue.x-k8s.io/manager}
`

func TestDialects(t *testing.T) {
	cases := map[string]struct {
		reason  string
		dialect *Dialect
		entries int
		want    string // the node selector
	}{
		"bundled": {"every shape of the contract, the guide's replaced, the rest merged", Bundled, 2 + 5 + 2,
			"map[c:early k:timeless x:patch]"},
		"v2.3": {"patches alone, on the runtime's", Kubeflow23, 2, "map[x:patch zone:east]"},
		"v2.1": {"what its CRD has, merged strategically", Kubeflow21, 1 + 2 + 2,
			"map[b:pod x:patch zone:east]"},
		"v2.0": {"what its CRD has", Kubeflow20, 1 + 1 + 2, "map[a:spec x:patch zone:east]"},
		"a manifest": {"all there is", reading(Manifests(false)), 1 + 2 + 1 + 5 + 2,
			"map[a:spec c:early k:timeless x:patch]"},
		"a v2.1's manifest": {"all there is, merged strategically", reading(Manifests(true)), 1 + 2 + 1 + 5 + 2,
			"map[a:spec b:pod c:early k:timeless x:patch zone:east]"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			job := jobOf(t, shapes)
			entries := c.dialect.Entries(job)
			if len(entries) != c.entries {
				t.Errorf("%s: %d entries", c.reason, len(entries))
			}
			if n := len(c.dialect.Others(job)); n != c.entries-1 {
				t.Errorf("the integration's is not another's: %d", n)
			}
			rt := must[trainerapi.TrainingRuntimeSpec](t, torchRuntime)
			e, err := c.dialect.Compute(job, &rt, entries)
			if err != nil {
				t.Fatal(err)
			}
			if got := fmt.Sprint(e.ReplicatedJob("node").Template.Spec.Template.Spec.NodeSelector); got != c.want {
				t.Errorf("%s: got %s, want %s", c.reason, got, c.want)
			}
		})
	}
}
