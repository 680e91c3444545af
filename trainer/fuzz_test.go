package trainer

import (
	"context"
	"encoding/json"
	"testing"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	admissionv1 "k8s.io/api/admission/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime"
	webhookadmission "sigs.k8s.io/controller-runtime/pkg/webhook/admission"
	kjson "sigs.k8s.io/json"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides"
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
		every, entries := overrides.EveryEntry(job), overrides.Bundled.Entries(job)
		if len(limits.CheckSize(job, every))+len(limits.CheckRuntime(job, runtime, every))+
			len(overrides.CheckHistoryManagers(job))+len(overrides.CheckEntries(job, entries))+
			len(overrides.Check(job, runtime, entries)) > 0 {
			return // refused
		}
		effective, err := overrides.Bundled.Compute(job, runtime, entries)
		if err != nil {
			return // is never queued
		}
		_, js, err := builder.Build(context.Background(), job, runtime)
		if after, e := json.Marshal(job); e != nil || string(after) != string(before) {
			t.Fatal("the TrainJob was changed")
		}
		if err != nil {
			return
		}
		built, err := specOf(js)
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

// FuzzWebhook holds that no create or update makes the webhooks panic or fail. They change only the times of entries,
// and every rejection says what it concerns.
func FuzzWebhook(f *testing.F) {
	const head = `{"apiVersion":"trainer.kubeflow.org/v1alpha1","kind":"TrainJob","metadata":{"namespace":"ns","name":"job"},"spec":`
	const ref = `"runtimeRef":{"apiGroup":"trainer.kubeflow.org","kind":"TrainingRuntime","name":"`
	seeds := []string{
		head + `{` + ref + `torch"},"suspend":true}}`,
		head + `{` + ref + `mpi"},"suspend":false,"runtimePatches":[{"manager":"a.com/a","trainingRuntimeSpec":{"template":{"spec":{"replicatedJobs":[{"name":"node","template":{"spec":{"template":{"spec":{"nodeSelector":{"a":"b"}}}}}}]}}}}]}}`,
		head + `{` + ref + `torch"},"runtimePatches":[{"manager":"a.com/a","time":"2026-01-01T00:00:00Z"},{"manager":"kueue.x-k8s.io/manager"},{"manager":"x"}]}}`,
		head + `{` + ref + `flux"},"trainer":{"numNodes":2,"command":["a"]},"initializer":{"dataset":{},"model":{}}}}`,
		head + `{` + ref + `nothing"}}}`, head + `{"runtimeRef":{"kind":"Other","name":"x"}}}`, head + `{}}`,
	}
	for i, seed := range seeds {
		f.Add([]byte(seed), []byte(seeds[(i+1)%len(seeds)]), uint8(i))
	}
	w := testWebhook(f)
	f.Fuzz(func(t *testing.T, before, after []byte, kind uint8) {
		request := webhookadmission.Request{AdmissionRequest: admissionv1.AdmissionRequest{
			Operation: admissionv1.Create, Namespace: "ns", Name: "job", Object: runtime.RawExtension{Raw: after},
			UserInfo: authenticationv1.UserInfo{Username: []string{"user", "signalbox"}[kind%2]},
		}}
		if kind%3 > 0 {
			request.Operation, request.OldObject = admissionv1.Update, runtime.RawExtension{Raw: before}
		}
		rq, err := w.Reader.Read(request)
		if err != nil {
			return
		}
		ctx := context.Background()
		answer := w.mutate(ctx, request)
		if answer.Allowed && len(answer.Patches) > 0 {
			data, err := json.Marshal(answer.Patches)
			if err != nil {
				t.Fatal(err)
			}
			patch, err := jsonpatch.DecodePatch(data)
			if err != nil {
				t.Fatal(err)
			}
			changed, err := patch.Apply(after)
			if err != nil {
				t.Fatalf("the patch %s can't be applied to %s: %v", data, after, err)
			}
			var result api.TrainJob
			if err := kjson.UnmarshalCaseSensitivePreserveInts(changed, &result); err != nil {
				t.Fatal(err)
			}
			if overrides.Changed(rq.New, &result) != nil || overrides.ChangedForm(rq.New, &result) != nil ||
				len(rq.New.Spec.RuntimePatches) != len(result.Spec.RuntimePatches) {
				t.Fatalf("%s became %s", after, changed)
			}
		}
		if answer.Allowed {
			answer = w.validate(ctx, request)
		}
		if !answer.Allowed && (answer.Result == nil || answer.Result.Message == "" || answer.Result.Code >= 500) {
			t.Fatalf("refused with %+v", answer.Result)
		}
	})
}
