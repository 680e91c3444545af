package overrides

import (
	"testing"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

func BenchmarkCompute(b *testing.B) {
	job := &api.TrainJob{Spec: must[api.TrainJobSpec](b, `{trainer: {numNodes: 5}}`)}
	runtime := must[trainerapi.TrainingRuntimeSpec](b, torchRuntime)
	merged := listed(entries(b, "["+podEntry("a.com/a", `{metadata: {labels: {x: a}}, spec: {nodeSelector: {gpu: a100}}}`)+
		"]"))
	for name, with := range map[string][]Entry{"plain": nil, "merging an entry": merged} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := Bundled.Compute(job, &runtime, with); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
