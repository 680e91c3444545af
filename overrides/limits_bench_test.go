package overrides

import (
	"testing"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// BenchmarkLimits is what each look at a queued TrainJob checks.
func BenchmarkLimits(b *testing.B) {
	limits := Limits{Pods: 5000, SpecBytes: 256 << 10, Elements: 10000, GracePeriodSeconds: 3600}
	job := &api.TrainJob{Spec: must[api.TrainJobSpec](b, `{runtimeRef: {name: torch}, trainer: {numNodes: 5}}`)}
	runtime := must[trainerapi.TrainingRuntimeSpec](b, torchRuntime)
	effective, err := Bundled.Compute(job, &runtime, nil)
	if err != nil {
		b.Fatal(err)
	}
	b.Run("size", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			limits.CheckSize(job, EveryEntry(job))
		}
	})
	b.Run("runtime", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			limits.CheckRuntime(job, &runtime, EveryEntry(job))
		}
	})
	b.Run("built", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			limits.CheckBuilt(job.Namespace, &runtime, EveryEntry(job), effective, false)
		}
	})
}

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
