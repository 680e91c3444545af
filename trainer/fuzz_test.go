package trainer

import (
	"context"
	"encoding/json"
	"testing"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"k8s.io/apimachinery/pkg/api/equality"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides"
	"github.com/signalbox-dev/signalbox/overrides/dialect"
	"github.com/signalbox-dev/signalbox/overrides/legacy"
	"github.com/signalbox-dev/signalbox/overrides/pipeline"
	"github.com/signalbox-dev/signalbox/podsets"
)

// specs are fragments of TrainJob specs.
var specs = []string{
	`{}`, `{"trainer":{"numNodes":3}}`, `{"trainer":{"numNodes":0}}`, `{"trainer":{"numProcPerNode":4}}`, `{"trainer":{"image":"i","command":["a"],"args":["b"],"env":[{"name":"A","value":"b"},{"name":"","value":"c"}]}}`,
	`{"trainer":{"resourcesPerNode":{"requests":{"nvidia.com/gpu":"8","cpu":"100m"},"limits":{"nvidia.com/gpu":"8"}}}}`, `{"trainer":{"resourcesPerNode":{"limits":{"nvidia.com/gpu":"2"}}}}`,
	`{"initializer":{"dataset":{"storageUri":"hf://a","env":[{"name":"X"}],"secretRef":{"name":"s"}}}}`, `{"initializer":{"model":{"storageUri":"hf://m"}}}`,
	`{"runtimePatches":[{"manager":"a.com/a","trainingRuntimeSpec":{"template":{"metadata":{"labels":{"a":"b"}},"spec":{"replicatedJobs":[{"name":"node","template":{"spec":{"template":{"spec":{"nodeSelector":{"gpu":"a"},"tolerations":[{"key":"k","operator":"Exists"}],"schedulingGates":[{"name":"g"}],"volumes":[{"name":"v","emptyDir":{}}],"containers":[{"name":"sidecar","env":[{"name":"E","value":""}],"volumeMounts":[{"name":"v","mountPath":"/v"}]}],"terminationGracePeriodSeconds":0}}}}}]}}}}]}`,
	`{"runtimePatches":[{"manager":"kueue.x-k8s.io/manager","trainingRuntimeSpec":{"template":{"spec":{"replicatedJobs":[{"name":"launcher","template":{"spec":{"template":{"metadata":{"labels":{"x":"y"}},"spec":{"nodeSelector":{"pool":"b"}}}}}}]}}}}]}`,
	`{"podTemplateOverrides":[{"targetJobs":[{"name":"node"}],"metadata":{"labels":{"a":"b"}},"spec":{"nodeSelector":{"gpu":"a"},"serviceAccountName":"sa"}}]}`, `{"activeDeadlineSeconds":5}`,
}

// FuzzBuild checks JobSets of whole TrainJobs and runtimes of every ML policy against the Workload's PodSets: the same
// ReplicatedJobs, numbers of pods and requests. Nothing panics, and the TrainJob isn't changed. The bytes are a
// TrainJob's spec, or select fragments of one.
func FuzzBuild(f *testing.F) {
	for i, spec := range specs {
		f.Add([]byte(spec), uint8(i))
	}
	f.Add([]byte{1, 5, 9, 11}, uint8(1))
	builder := testBuilder(f, testClient(f))
	var runtimes []*trainerapi.TrainingRuntimeSpec
	for _, policy := range []string{"{numNodes: 2, torch: {}}", "{numNodes: 2, mpi: {numProcPerNode: 1, " +
		"runLauncherAsNode: true}}", "{numNodes: 2, mpi: {numProcPerNode: 2}}", "{numNodes: 2, flux: {numProcPerNode: " +
		"1}}", "{numNodes: 2}", "null"} {
		runtimes = append(runtimes, runtimeOf(f, policy, lastingVolume), runtimeOf(f, policy, lostVolume))
	}
	limits := overrides.Limits{Pods: 50, SpecBytes: 1 << 14, Elements: 200, GracePeriodSeconds: 3600}
	f.Fuzz(func(t *testing.T, data []byte, which uint8) {
		job := jobOf(t, "torch", "{}")
		if json.Unmarshal(data, &job.Spec) != nil {
			job.Spec = api.TrainJobSpec{}
			for _, c := range data[:min(len(data), 6)] {
				if err := json.Unmarshal([]byte(specs[int(c)%len(specs)]), &job.Spec); err != nil {
					t.Fatal(err)
				}
			}
		}
		job.Spec.RuntimeRef = jobOf(t, "torch", "{}").Spec.RuntimeRef
		runtime := runtimes[int(which)%len(runtimes)]
		before, err := json.Marshal(job)
		if err != nil {
			return // holds what can't be written, a quantity say
		}
		every, entries := legacy.EveryEntry(job), dialect.Bundled.Entries(job)
		if len(limits.CheckSize(job, every))+len(limits.CheckRuntime(job, runtime, every))+
			len(legacy.CheckHistoryManagers(job))+len(overrides.CheckEntries(job, entries))+
			len(overrides.Check(job, runtime, entries)) > 0 {
			return // refused
		}
		effective, err := dialect.Bundled.Compute(job, runtime, entries)
		if err != nil {
			return // is never queued
		}
		js, err := builtJobSet(builder.Build(context.Background(), job, runtime))
		if after, e := json.Marshal(job); e != nil || string(after) != string(before) {
			t.Fatal("the TrainJob was changed")
		}
		if err != nil {
			return
		}
		built, err := pipeline.SpecOf(js)
		if err != nil {
			t.Fatal(err)
		}
		if len(built.ReplicatedJobs) != len(effective.ReplicatedJobs) || *js.Name != job.Name ||
			len(js.OwnerReferences) != 1 || *js.OwnerReferences[0].UID != job.UID {
			t.Fatalf("JobSet %s with %d ReplicatedJobs, and quota is asked for %d",
				*js.Name, len(built.ReplicatedJobs), len(effective.ReplicatedJobs))
		}
		for i := range built.ReplicatedJobs {
			have := &built.ReplicatedJobs[i]
			want := effective.ReplicatedJob(have.Name)
			if want == nil {
				t.Fatalf("no quota is asked for ReplicatedJob %s", have.Name)
			}
			if have.Replicas != want.Replicas || overrides.PodsPerJob(have) != overrides.PodsPerJob(want) {
				t.Fatalf("%d Jobs of %d pods of %s, and quota is asked for %d of %d",
					have.Replicas, overrides.PodsPerJob(have), have.Name, want.Replicas, overrides.PodsPerJob(want))
			}
			counts := podsets.Counting{}
			a, b := counts.Pod(&have.Template.Spec.Template.Spec), counts.Pod(&want.Template.Spec.Template.Spec)
			if !equality.Semantic.DeepEqual(a, b) {
				t.Fatalf("pods of %s ask for %v, and quota is asked for %v", have.Name, a, b)
			}
		}
	})
}
