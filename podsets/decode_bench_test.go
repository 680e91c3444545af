package podsets

import (
	"bytes"
	"os"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
)

// BenchmarkDecode decodes a Workload that waits, as an API server sends it, in both encodings of custom resources: how
// much of the time in which a manager's caches are filled would CBOR save?
func BenchmarkDecode(b *testing.B) {
	scheme := runtime.NewScheme()
	if err := kueue.AddToScheme(scheme); err != nil {
		b.Fatal(err)
	}
	encodings := map[string]runtime.Serializer{
		"json": json.NewSerializerWithOptions(json.DefaultMetaFactory, scheme, scheme, json.SerializerOptions{}),
		"cbor": cbor.NewSerializer(scheme, scheme),
	}
	sent, err := os.ReadFile("testdata/workload.json")
	if err != nil {
		b.Fatal(err)
	}
	stored := &kueue.Workload{}
	if _, _, err := encodings["json"].Decode(sent, nil, stored); err != nil {
		b.Fatal(err)
	}
	for name, encoding := range encodings {
		b.Run(name, func(b *testing.B) {
			var data bytes.Buffer
			if err := encoding.Encode(stored, &data); err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for b.Loop() {
				if _, _, err := encoding.Decode(data.Bytes(), nil, &kueue.Workload{}); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(data.Len()), "object-bytes")
		})
	}
}

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
