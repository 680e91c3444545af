package overrides

import (
	"fmt"
	"strings"
	"testing"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

var limits = Limits{Pods: 100, SpecBytes: 4096, Elements: 100, GracePeriodSeconds: 600}

func TestCheckSize(t *testing.T) {
	cases := map[string]struct{ reason, spec, want string }{
		"small":       {"nothing is out of bounds", `{trainer: {numNodes: 100}}`, ""},
		"nodes":       {"each is a pod", `{trainer: {numNodes: 101}}`, "spec.trainer.numNodes: Invalid value: 101"},
		"no nodes":    {"it would never run", `{trainer: {numNodes: 0}}`, "spec.trainer.numNodes: Invalid value: 0: must be 1"},
		"fewer nodes": {"it would never run", `{trainer: {numNodes: -1}}`, "must be 1 or more"},
		"bytes": {"every decision costs as much as there is to read", `{trainer: {command: [` +
			strings.Repeat("abcdefgh, ", 600) + `]}}`, "limits."},
		"elements": {"lists are merged in the square of their length", `{trainer: {command: [` +
			strings.Repeat("a, ", 101) + `]}}`, "limits.elements"},
		"a long goodbye": {"a preemption would take as long",
			`{runtimePatches: [{manager: a.com/a, trainingRuntimeSpec: {template: {spec: {replicatedJobs: [{name: node,
  template: {spec: {template: {spec: {terminationGracePeriodSeconds: 601}}}}}]}}}}]}`,
			"terminationGracePeriodSeconds: Invalid value: 601"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			job := &api.TrainJob{Spec: must[api.TrainJobSpec](t, c.spec)}
			errs := limits.CheckSize(job, EveryEntry(job))
			if (c.want == "") != (len(errs) == 0) || !strings.Contains(fmt.Sprint(errs.ToAggregate()), c.want) && c.want != "" {
				t.Errorf("%s: got %v, want %q", c.reason, errs, c.want)
			}
		})
	}
}

func TestCheckRuntime(t *testing.T) {
	runtime := func(nodes, replicas int) string {
		return fmt.Sprintf(`{mlPolicy: {numNodes: %d, torch: {}}, template: {spec: {replicatedJobs: [
			{name: init, replicas: 1, template: {spec: {template: {spec: {containers: []}}}}},
			{name: node, replicas: %d, template: {metadata: {labels: {trainer.kubeflow.org/trainjob-ancestor-step: trainer}},
  spec: {template: {spec: {containers: []}}}}}]}}}`, nodes, replicas)
	}
	cases := map[string]struct {
		reason, job, runtime string
		ok                   bool
	}{
		"as many as may be": {"nodes and initializer", `{}`, runtime(99, 1), true},
		"one too many":      {"the initializer is a pod too", `{}`, runtime(100, 1), false},
		"the TrainJob's": {"its nodes take the place of the runtime's", `{trainer: {numNodes: 100}}`, runtime(1, 1),
			false},
		"no nodes":                      {"Trainer runs one", `{}`, runtime(0, 1), true},
		"as many, of a runtime without": {"Trainer runs them", `{trainer: {numNodes: 99}}`, runtime(-1, 1), true},
		"replicas":                      {"each Job has as many", `{}`, runtime(50, 2), false},
		"beyond 32 bits":                {"the product is counted in full", `{}`, runtime(2147483647, 2147483647), false},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			rt := must[trainerapi.TrainingRuntimeSpec](t, c.runtime)
			job := &api.TrainJob{Spec: must[api.TrainJobSpec](t, c.job)}
			if errs := limits.CheckRuntime(job, &rt, EveryEntry(job)); c.ok != (len(errs) == 0) {
				t.Errorf("%s: got %v", c.reason, errs)
			}
		})
	}
}
