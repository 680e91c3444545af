package overrides_test

import (
	"fmt"
	"strings"
	"testing"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides"
	"github.com/signalbox-dev/signalbox/overrides/dialect"
	"github.com/signalbox-dev/signalbox/overrides/legacy"
)

var limits = overrides.Limits{Pods: 100, SpecBytes: 4096, Elements: 100, GracePeriodSeconds: 600}

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
			errs := limits.CheckSize(job, legacy.EveryEntry(job))
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
			if errs := limits.CheckRuntime(job, &rt, legacy.EveryEntry(job)); c.ok != (len(errs) == 0) {
				t.Errorf("%s: got %v", c.reason, errs)
			}
		})
	}
}

// BenchmarkLimits is what each look at a queued TrainJob checks.
func BenchmarkLimits(b *testing.B) {
	limits := overrides.Limits{Pods: 5000, SpecBytes: 256 << 10, Elements: 10000, GracePeriodSeconds: 3600}
	job := &api.TrainJob{Spec: must[api.TrainJobSpec](b, `{runtimeRef: {name: torch}, trainer: {numNodes: 5}}`)}
	runtime := must[trainerapi.TrainingRuntimeSpec](b, torchRuntime)
	effective, err := dialect.Bundled.Compute(job, &runtime, nil)
	if err != nil {
		b.Fatal(err)
	}
	b.Run("size", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			limits.CheckSize(job, legacy.EveryEntry(job))
		}
	})
	b.Run("runtime", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			limits.CheckRuntime(job, &runtime, legacy.EveryEntry(job))
		}
	})
	b.Run("built", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			limits.CheckBuilt(job.Namespace, &runtime, legacy.EveryEntry(job), effective, false)
		}
	})
}

func BenchmarkCompute(b *testing.B) {
	job := &api.TrainJob{Spec: must[api.TrainJobSpec](b, `{trainer: {numNodes: 5}}`)}
	runtime := must[trainerapi.TrainingRuntimeSpec](b, torchRuntime)
	merged := listed(entries(b, "["+podEntry("a.com/a", `{metadata: {labels: {x: a}}, spec: {nodeSelector: {gpu: a100}}}`)+
		"]"))
	for name, with := range map[string][]overrides.Entry{"plain": nil, "merging an entry": merged} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := dialect.Bundled.Compute(job, &runtime, with); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func TestCheckQuantities(t *testing.T) {
	const of = "replicatedJobs[node].template.spec.template.spec."
	container := func(resources string) string { return `{containers: [{name: node, resources: ` + resources + `}]}` }
	cases := map[string]struct{ reason, pod, want string }{
		"plain": {"", container(`{requests: {cpu: 100m, memory: 1Gi}, limits: {cpu: "1", nvidia.com/gpu: 8}}`), ""},
		"negative": {"Kueue would count less than nothing", container(`{requests: {cpu: -1}}`),
			of + `containers[node].resources.requests[cpu]: Invalid value: "-1"`},
		"a negative limit": {"it is a request too", container(`{limits: {nvidia.com/gpu: -8}}`),
			of + `containers[node].resources.limits[nvidia.com/gpu]: Invalid value: "-8"`},
		"of an initContainer": {"the same", `{initContainers: [{name: init, resources: {limits: {memory: -1}}}], containers: []}`,
			"initContainers[init].resources.limits[memory]"},
		"half a device": {"the API server would reject the pod", container(`{limits: {nvidia.com/gpu: 500m}}`),
			"must be a whole number"},
		"more than the limit": {"the same", container(`{requests: {cpu: 2}, limits: {cpu: 1}}`), "must be at most the limit of 1"},
		"fewer devices than the limit": {"the same", container(`{requests: {nvidia.com/gpu: 1}, limits: {nvidia.com/gpu: 2}}`),
			"must be equal to the limit of 2"},
		"devices without a limit": {"the same", container(`{requests: {nvidia.com/gpu: 1}}`),
			"resources.limits[nvidia.com/gpu]: Required value"},
		"no resource": {"the same", container(`{requests: {gpu: 1}}`), "is no resource of a container"},
		"half a page": {"the same", container(`{limits: {hugepages-2Mi: 1Mi, cpu: 1}}`), "multiple of the size of a page"},
		"pages":       {"", container(`{limits: {hugepages-2Mi: 4Mi, cpu: 1}}`), ""},
		"overhead": {"it would take requests away", `{overhead: {nvidia.com/gpu: -7}, containers: []}`,
			of + `overhead[nvidia.com/gpu]: Invalid value: "-7"`},
		"a volume": {"", `{volumes: [{name: a, emptyDir: {sizeLimit: 1Gi}}, {name: b}], containers: []}`, ""},
		"a negative volume": {"the API server would reject the pod",
			`{volumes: [{name: a, emptyDir: {sizeLimit: -1}}], containers: []}`, of + "volumes[a].emptyDir.sizeLimit"},
		"a volume of nothing": {"the same", `{volumes: [{name: a, ephemeral: {volumeClaimTemplate: {spec: {}}}}], containers: []}`,
			of + "volumes[a].ephemeral.volumeClaimTemplate.spec.resources.requests[storage]"},
		"a claim without a template": {"the dry run rejects it", `{volumes: [{name: a, ephemeral: {}}], containers: []}`, ""},
		"more than is counted": {"the sum would be negative, or 0",
			container(`{requests: {memory: "9223372036854775807"}}`), ""},
		"more than is counted, of two": {"the sum would be negative, or 0",
			`{containers: [{name: a, resources: {limits: {memory: 8Ei}}}, {name: b, resources: {limits: {memory: "1"}}}]}`,
			"requests more memory than can be counted"},
		"thousandths": {"Kueue counts thousandths of CPUs", container(`{limits: {cpu: 10P}}`),
			"requests more cpu than can be counted, which is 9223372036854775807m"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			errorsAre(t, c.reason, checkBuilt(t, limits, `{}`, `{}`, ofPod(c.pod)), c.want)
		})
	}
	errorsAre(t, "each pod counts", checkBuilt(t, limits, `{}`, `{}`, `{name: node, replicas: 2, template: {spec: {template:
  {spec: `+container(`{requests: {memory: 4Ei}}`)+`}}}}`), "requests more memory than can be counted")
}

func TestCheckMagnitudes(t *testing.T) {
	of := func(cpu string) string { return `{trainer: {resourcesPerNode: {limits: {cpu: "` + cpu + `"}}}}` }
	cases := map[string]struct{ reason, spec, want string }{
		"plain":   {"", of("1e3"), ""},
		"64 bits": {"the most that is counted", of("9223372036854775807"), ""},
		"a billion digits": {"computing with it takes hours",
			of("1e1000000002"), `spec.trainer.resourcesPerNode.limits[cpu]: Invalid value: "1e1000000002"`},
		"negative":          {"the same", of("-1e1000000002"), "limits[cpu]"},
		"zero of a billion": {"the same", of("0e1000000002"), "limits[cpu]"},
		"twenty digits":     {"more than 64 bits", of("1e19"), "at most 19 digits"},
		"of a volume": {"any quantity", `{podTemplateOverrides: [{spec: {volumes: [{name: a, emptyDir: {sizeLimit: 1e300000}}]}}]}`,
			"spec.podTemplateOverrides[0].spec.volumes[0].emptyDir.sizeLimit"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			spec := must[api.TrainJobSpec](t, c.spec)
			errorsAre(t, c.reason, text{limits.CheckSize(&api.TrainJob{Spec: spec}, nil).ToAggregate()}, c.want)
		})
	}
	runtime := must[trainerapi.TrainingRuntimeSpec](t, `{template: {spec: {replicatedJobs: [`+
		ofPod(`{containers: [{name: node, resources: {requests: {cpu: 1e1000000002}}}]}`)+`]}}}`)
	errorsAre(t, "a runtime's too", text{limits.CheckRuntime(&api.TrainJob{}, &runtime, nil).ToAggregate()},
		"template.spec.replicatedJobs[0].template.spec.template.spec.containers[0].resources.requests[cpu]")
}

func BenchmarkMemo(b *testing.B) {
	job := &api.TrainJob{Spec: must[api.TrainJobSpec](b, `{trainer: {numNodes: 5}}`)}
	runtime := must[trainerapi.TrainingRuntimeSpec](b, torchRuntime)
	m := overrides.NewMemo(64 << 20)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := m.Compute(dialect.Bundled.Rules, job, &runtime, nil); err != nil {
			b.Fatal(err)
		}
	}
}
