package admission

import "testing"

func BenchmarkDecide(b *testing.B) {
	in := input(b)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Decide(in); err != nil {
			b.Fatal(err)
		}
	}
}
