package overrides

import (
	"encoding/json"
	"fmt"
	"testing"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"sigs.k8s.io/yaml"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides/pipeline"
)

// read reads YAML into a T.
func read[T any](t *testing.T, text string) (v T) {
	t.Helper()
	if err := yaml.UnmarshalStrict([]byte(text), &v); err != nil {
		t.Fatal(err)
	}
	return v
}

// What two TrainJobs have in common is computed once; what has a fault is computed, and refused, for each.
func TestMemoShares(t *testing.T) {
	m := NewMemo(0)
	ask := func(name, spec string) *Effective {
		job := &api.TrainJob{Spec: read[api.TrainJobSpec](t, spec)}
		job.Name = name
		rt := read[trainerapi.TrainingRuntimeSpec](t, "template: {spec: {replicatedJobs: [{name: node, replicas: 1, "+
			"template: {metadata: {labels: {trainer.kubeflow.org/trainjob-ancestor-step: trainer}}, "+
			"spec: {template: {spec: {containers: [{name: node, image: a.com/b}]}}}}}]}}")
		e, err := m.Compute(pipeline.Rules{Amends: true}, job, &rt, nil)
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
	first := ask("first-job", `{}`)
	if ask("first-job", `{}`) == first {
		t.Error("a result that takes more than a quarter of the whole is kept")
	}
	data, err := json.Marshal(first)
	if err != nil {
		t.Fatal(err)
	}
	m = NewMemo(sizeOf(len(data)) * 9 / 2) // four of them, and a bit
	first = ask("first-job", `{}`)
	if ask("other-job", `{}`) != first {
		t.Error("another TrainJob of the same shape was computed again")
	}
	for nodes := range 4 {
		ask("first-job", fmt.Sprintf(`{trainer: {numNodes: %d}}`, nodes+3))
	}
	if m.bytes > m.limit || m.kept.Len() != 4 {
		t.Errorf("%d bytes are kept of %d, in %d results", m.bytes, m.limit, m.kept.Len())
	}
	if ask("first-job", `{}`) == first {
		t.Error("more is kept than there is room for")
	}
	for range 2 {
		if _, err := m.Compute(pipeline.Rules{}, &api.TrainJob{}, &trainerapi.TrainingRuntimeSpec{}, nil); err == nil {
			t.Error("a runtime without ReplicatedJobs was taken")
		}
	}
}

// TestKeys holds that TrainJobs of Trainers with other rules don't share a result.
func TestKeys(t *testing.T) {
	keys := map[key]pipeline.Rules{}
	for _, rules := range []pipeline.Rules{{}, {Amends: true}, {Replaces: true}, {Replaces: true, LauncherAlone: true}} {
		shared, own, err := keysOf(rules, &api.TrainJob{}, &trainerapi.TrainingRuntimeSpec{}, nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, k := range []key{shared, own} {
			if other, found := keys[k]; found && other != rules {
				t.Errorf("%+v shares a key with %+v", rules, other)
			}
			keys[k] = rules
		}
	}
}
