package podsets

import "testing"

func BenchmarkOf(b *testing.B) {
	e := effective(replicatedJob("dataset-initializer"), replicatedJob("node"))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Of(e, Features{TopologyAware: true}); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkEqual(b *testing.B) {
	e := effective(replicatedJob("dataset-initializer"), replicatedJob("node"))
	computed, err := Of(e, Features{})
	if err != nil {
		b.Fatal(err)
	}
	stored, err := Of(e, Features{})
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if !Equal(computed, stored) {
			b.Fatal("they differ")
		}
	}
}
