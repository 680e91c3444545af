package trainer

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

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

// entryText is the integration's entry of an admission, as YAML.
const entryText = "spec: {suspend: false, runtimePatches: [{manager: kueue.x-k8s.io/manager, time: " +
	"'2026-11-23T11:59:30Z', trainingRuntimeSpec: {template: {spec: {replicatedJobs: [{name: node, template: {spec: " +
	"{template: {spec: {nodeSelector: {gpu: a100}}}}}}]}}}}]}"

// TestNoPodsWithoutQuota holds that a started TrainJob gets no JobSet while its Workload has lost its quota: that it
// can't be suspended gets it no pods.
func TestNoPodsWithoutQuota(t *testing.T) {
	const admitted = "{type: QuotaReserved, status: 'True'}, {type: Admitted, status: 'True'}"
	for name, c := range map[string]struct {
		wl   string
		made bool
	}{
		"admitted":    {"status: {conditions: [" + admitted + "]}", true},
		"none":        {"", true}, // the integration stops it, or has failed
		"waits":       {"status: {conditions: [{type: QuotaReserved, status: 'False'}]}", false},
		"reserved":    {"status: {conditions: [{type: QuotaReserved, status: 'True'}]}", false},
		"evicted":     {"status: {conditions: [" + admitted + ", {type: Evicted, status: 'True'}]}", false},
		"finished":    {"status: {conditions: [" + admitted + ", {type: Finished, status: 'True'}]}", false},
		"deactivated": {"spec: {active: false}\nstatus: {conditions: [" + admitted + "]}", false},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			job := h.pinned(h.trainJob("torch", entryText))
			h.put(job)
			if c.wl != "" {
				h.put(workloadOf(t, job, c.wl))
			}
			h.reconcile("job")
			if made := h.get(&jobset.JobSet{}, "job"); made != c.made {
				t.Errorf("made %t, want %t: sent %v", made, c.made, h.requests())
			}
		})
	}
}

// TestPodsGoFirst holds that a JobSet is deleted after its Jobs and those after their pods, however it is deleted.
func TestPodsGoFirst(t *testing.T) {
	h := newHarness(t)
	h.put(h.pinned(h.trainJob("torch", started)))
	h.reconcile("job")
	js := &jobset.JobSet{}
	if !h.get(js, "job") || !slices.Equal(js.Finalizers, []string{metav1.FinalizerDeleteDependents}) {
		t.Errorf("got %v", js.Finalizers)
	}
}

// TestUnqueuedLimits holds that what nobody queues is within the limits of the configuration before it is built: its
// runtime may have grown since it was created.
func TestUnqueuedLimits(t *testing.T) {
	h := newHarness(t, func(o *options) { o.limits.SpecBytes = 256 << 10 })
	rt := h.runtime("large", "{torch: {}}")
	rt.Spec.Template.Annotations = map[string]string{"a": strings.Repeat("x", 300<<10)}
	h.put(rt, h.trainJob("large", started))
	if result := h.reconcile("job"); result.RequeueAfter == 0 {
		t.Errorf("it is looked at again: got %v", result)
	}
	h.wantRequests("it isn't pinned, and says why", "patch TrainJob/status job")
	h.wantEvents("its user reads why", "TrainJobResourcesCreationFailed")
}

// TestManyDashes holds that each TrainJob whose Jobs may have the same name is looked up once, and that nothing is
// unfolded for it.
func TestManyDashes(t *testing.T) {
	replicatedJobs := make([]jobset.ReplicatedJob, 18)
	for i := range replicatedJobs {
		replicatedJobs[i].Name = fmt.Sprintf("a-b-%d", i)
	}
	name := strings.TrimSuffix(strings.Repeat("a-", 20), "-")
	all := rivals(name, replicatedJobs)
	if want := 19 + 2*1 + 0; len(all) != want { // dashes of the name; of "a-b-0", two, which are the same for all
		t.Errorf("%d TrainJobs are looked up, want %d", len(all), want)
	}
	n := 0
	for _, theirs := range all {
		n += len(theirs)
	}
	if want := 18 * (19 + 2); n != want {
		t.Errorf("%d ReplicatedJobs are compared, want %d", n, want)
	}
	h := newHarness(t)
	job := jobOf(t, "torch", entryText)
	job.Annotations = map[string]string{"signalbox.dev/runtime": "not a pin"}
	got, err := stepsOf(t.Context(), h.cached(), job)
	if err != nil || len(got) != 1 || got[0] != "node" {
		t.Errorf("its entry says what it runs: got %v, %v", got, err)
	}
	job.Spec.RuntimePatches = []trainerapi.RuntimePatch{{Manager: overrides.Manager}}
	if got, err := stepsOf(t.Context(), h.cached(), job); err != nil || len(got) != 0 {
		t.Errorf("an entry of nothing: got %v, %v", got, err)
	}
}
