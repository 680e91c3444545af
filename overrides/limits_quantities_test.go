package overrides

import (
	"testing"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

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
