package trainer

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
)

// BenchmarkBuild is the JobSet of a TrainJob that is started.
func BenchmarkBuild(b *testing.B) {
	builder := testBuilder(b, testClient(b))
	job := jobOf(b, "torch", "spec: {suspend: false, trainer: {numNodes: 2}}")
	spec := runtimeOf(b, "{numNodes: 2, torch: {}}", lostVolume)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := builder.Build(context.Background(), job, spec); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkBuildLarge is the same for as many nodes as limits.pods allows. It reports the size of the largest object.
// The API server takes 1.5 MB, and 1 MiB of data in a ConfigMap, which is where MPI's hosts are.
func BenchmarkBuildLarge(b *testing.B) {
	const limit = 1 << 20
	for name, policy := range map[string]string{"torch": "{numNodes: 2, torch: {}}", "mpi": "{numNodes: 2, mpi: {}}"} {
		b.Run(name, func(b *testing.B) {
			builder := testBuilder(b, testClient(b))
			job := jobOf(b, name, "spec: {suspend: false, trainer: {numNodes: 5000}}")
			job.Name = strings.Repeat("n", 40) // as long as the names of its pods allow
			spec := runtimeOf(b, policy, lostVolume)
			largest := 0
			b.ReportAllocs()
			for b.Loop() {
				built, err := builder.Build(context.Background(), job, spec)
				if err != nil {
					b.Fatal(err)
				}
				made, err := objectOf(built.JobSet)
				if err != nil {
					b.Fatal(err)
				}
				for _, o := range append(built.SideObjects, made) {
					data, err := json.Marshal(o)
					if err != nil {
						b.Fatal(err)
					}
					largest = max(largest, len(data))
				}
			}
			b.ReportMetric(float64(largest), "object-bytes")
			if largest > limit {
				b.Errorf("an object has %d bytes", largest)
			}
		})
	}
}
