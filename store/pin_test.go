package store

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"strings"
	"testing"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// pinnedTo is a TrainJob with a pin.
func pinnedTo(pin string) *api.TrainJob {
	return &api.TrainJob{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{PinAnnotation: pin}}}
}

// packed is text as a pin holds it.
func packed(t testing.TB, text []byte) string {
	t.Helper()
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	if _, err := w.Write(text); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return base64.StdEncoding.EncodeToString(out.Bytes())
}

func TestPin(t *testing.T) {
	spec := &trainerapi.TrainingRuntimeSpec{MLPolicy: &trainerapi.MLPolicy{NumNodes: ptr.To[int32](7)}}
	for range 2 { // the second by a writer that was used before
		pin, err := Pin(spec)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := Pinned(pinnedTo(pin)); err != nil || got == nil || *got.MLPolicy.NumNodes != 7 {
			t.Errorf("a pin is read back: got %+v, %v", got, err)
		}
	}
	if got, err := Pinned(&api.TrainJob{}); got != nil || err != nil {
		t.Errorf("a TrainJob that never started has none: got %+v, %v", got, err)
	}
}

func TestPinnedRejects(t *testing.T) {
	whole := packed(t, []byte("{}"))
	for name, pin := range map[string]string{
		"no base64": "?", "empty": "", "no gzip": base64.StdEncoding.EncodeToString([]byte("text")),
		"cut": whole[:len(whole)-8], "no JSON": packed(t, []byte("{")),
		"too large": packed(t, bytes.Repeat([]byte(" "), maxPin+1)),
		"many elements": packed(t, []byte(`{"template":{"spec":{"replicatedJobs":[`+strings.Repeat("{},", maxPinElements)+
			`{}]}}}`)),
	} {
		_, err := Pinned(pinnedTo(pin))
		if err == nil || !strings.Contains(err.Error(), "metadata.annotations[signalbox.dev/runtime]: ") ||
			!strings.Contains(err.Error(), "it was not written by Signalbox") {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

// FuzzPinned holds that no annotation crashes Pinned, and that one that is read is a runtime.
func FuzzPinned(f *testing.F) {
	f.Add("")
	f.Add("x")
	f.Add(packed(f, []byte("{}")))
	f.Fuzz(func(t *testing.T, pin string) {
		if spec, err := Pinned(pinnedTo(pin)); err == nil && spec == nil {
			t.Fatal("a pin that says nothing is no pin")
		}
	})
}

func BenchmarkPin(b *testing.B) {
	container := corev1.Container{Name: "node", Image: "example.com/train:1"}
	container.Env = []corev1.EnvVar{{Name: "A", Value: "a"}}
	rj := jobset.ReplicatedJob{Name: "node", Replicas: 1}
	rj.Template.Spec.Template.Spec.Containers = []corev1.Container{container}
	runtime := &trainerapi.TrainingRuntimeSpec{}
	runtime.Template.Spec.ReplicatedJobs = []jobset.ReplicatedJob{rj}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Pin(runtime); err != nil {
			b.Fatal(err)
		}
	}
}
