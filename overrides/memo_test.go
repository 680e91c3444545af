package overrides

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"k8s.io/apimachinery/pkg/api/equality"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// A Memo gives what Compute gives, whatever it was asked for before: of two TrainJobs with other names the same, of one
// that says something else what that is.
func TestMemo(t *testing.T) {
	entry := listed(entries(t, "["+podEntry("a.com/a", `{spec: {nodeSelector: {gpu: a100}}}`)+"]"))
	runtimes := map[string]string{"torch": torchRuntime, "mpi": mpiRuntime,
		"plain": plainRuntime("mlPolicy: {numNodes: 2}"), "jax": strings.Replace(torchRuntime, "torch: {}", "jax: {}", 1)}
	const tune = `{trainer: {numNodes: 2, command: [tune, run]}, runtimeRef: {name: torchtune-llama3_2_1b}}`
	for _, d := range []*Dialect{Bundled, Kubeflow23, Kubeflow20} {
		m := NewMemo(64 << 20)
		for name, text := range runtimes {
			rt := must[trainerapi.TrainingRuntimeSpec](t, text)
			for _, of := range []struct {
				job, spec string
				entries   []Entry
			}{
				{"first-job", `{}`, nil}, {"other-job", `{}`, nil}, {"first-job", `{}`, nil},
				{"first-job", `{trainer: {numNodes: 3}}`, nil},
				{"other-job", `{}`, entry}, {"first-job", `{}`, entry},
				// The same patch is the number of admitted nodes in the integration's entry alone.
				{"first-job", `{}`, admittedWith(t, "a.com/a", "5")}, {"first-job", `{}`, admittedWith(t, Manager, "5")},
				{"first-job", `{initializer: {dataset: {storageUri: "hf://a/b"}}}`, nil},
				// torchtune's command holds the address of the first pod, and a configuration named by the runtime.
				{"first-job", tune, nil}, {"other-job", tune, nil},
				{"other-job", strings.Replace(tune, "llama3_2_1b", "qwen2_5_1.5b", 1), nil},
			} {
				job := &api.TrainJob{Spec: must[api.TrainJobSpec](t, of.spec)}
				job.Namespace, job.Name = "ns", of.job
				want, err := d.Compute(job, &rt, of.entries)
				if err != nil {
					t.Fatal(err)
				}
				got, err := m.Compute(d.Rules, job, &rt, of.entries)
				if err != nil {
					t.Fatal(err)
				}
				if !equality.Semantic.DeepEqual(got.ReplicatedJobs, want.ReplicatedJobs) ||
					!equality.Semantic.DeepEqual(got.Annotations, want.Annotations) {
					t.Errorf("%s, %s, TrainJob %s %s: got %v, want %v", d.Name, name, of.job, of.spec, got.ReplicatedJobs,
						want.ReplicatedJobs)
				}
				if (d == Bundled) != (got.Built == nil) || d != Bundled && len(got.Built) != len(want.Built) {
					t.Errorf("%s, %s: got %d ReplicatedJobs built, want %d for Kubeflow Trainer and none for ours", d.Name, name,
						len(got.Built), len(want.Built))
				}
			}
		}
	}
}

// What two TrainJobs have in common is computed once; what has a fault is computed, and refused, for each.
func TestMemoShares(t *testing.T) {
	m := NewMemo(0)
	ask := func(name, spec string) *Effective {
		job := &api.TrainJob{Spec: must[api.TrainJobSpec](t, spec)}
		job.Name = name
		rt := must[trainerapi.TrainingRuntimeSpec](t, torchRuntime)
		e, err := m.Compute(Bundled.Rules, job, &rt, nil)
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
	first := ask("first-job", `{}`)
	if ask("first-job", `{}`) == first {
		t.Error("a result that takes more than a quarter of the whole is kept")
	}
	data, err := json.Marshal(first)
	if err != nil {
		t.Fatal(err)
	}
	m = NewMemo(sizeOf(len(data)) * 9 / 2) // four of them, and a bit
	first = ask("first-job", `{}`)
	if ask("other-job", `{}`) != first {
		t.Error("another TrainJob of the same shape was computed again")
	}
	for nodes := range 4 {
		ask("first-job", fmt.Sprintf(`{trainer: {numNodes: %d}}`, nodes+3))
	}
	if m.bytes > m.limit || m.kept.Len() != 4 {
		t.Errorf("%d bytes are kept of %d, in %d results", m.bytes, m.limit, m.kept.Len())
	}
	if ask("first-job", `{}`) == first {
		t.Error("more is kept than there is room for")
	}
	for range 2 {
		if _, err := m.Compute(Bundled.Rules, &api.TrainJob{}, &trainerapi.TrainingRuntimeSpec{}, nil); err == nil {
			t.Error("a runtime without ReplicatedJobs was taken")
		}
	}
}

func BenchmarkMemo(b *testing.B) {
	job := &api.TrainJob{Spec: must[api.TrainJobSpec](b, `{trainer: {numNodes: 5}}`)}
	runtime := must[trainerapi.TrainingRuntimeSpec](b, torchRuntime)
	m := NewMemo(64 << 20)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := m.Compute(Bundled.Rules, job, &runtime, nil); err != nil {
			b.Fatal(err)
		}
	}
}
