package overrides_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"testing"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides"
	"github.com/signalbox-dev/signalbox/overrides/dialect"
	"github.com/signalbox-dev/signalbox/overrides/legacy"
)

// fuzzRuntimes are runtimes of every ML policy.
func fuzzRuntimes(f *testing.F) []trainerapi.TrainingRuntimeSpec {
	f.Helper()
	var all []trainerapi.TrainingRuntimeSpec
	for _, text := range []string{torchRuntime, mpiRuntime} {
		var spec trainerapi.TrainingRuntimeSpec
		if err := yaml.UnmarshalStrict([]byte(text), &spec); err != nil {
			f.Fatal(err)
		}
		all = append(all, spec)
		flux := spec.DeepCopy()
		flux.MLPolicy = &trainerapi.MLPolicy{NumNodes: ptr.To[int32](2), MLPolicySource: trainerapi.MLPolicySource{
			Flux: &trainerapi.FluxMLPolicySource{NumProcPerNode: ptr.To[int32](1)}}}
		plain := spec.DeepCopy()
		plain.MLPolicy = nil
		all = append(all, *flux, *plain)
	}
	return all
}

var fuzzSeeds = []string{
	`{}`,
	"\x03\x00\x01\x01\x01\x03\x00\x01\x01\x00\x02\x01\x02\x01\x01\x00\x02\x02\x01\x02\x01\x02\x01\x01\x02\x01\x01" +
		"\x02\x03\x01\x02\x01\x02\x01\x02\x01\x02\x01\x02\x01\x02\x03\x01\x02\x01\x03\x01\x02\x01\x00\x01\x02\x01\x02" +
		"\x01\x02\x01\x02\x01\x02\x01\x02",
	`{"runtimePatches":[{"manager":"a.com/a"},{"manager":"kueue.x-k8s.io/manager"}]}`,
	`{"trainer":{"numNodes":3,"numProcPerNode":2,"image":"i","command":["c"],"args":["a"],"env":[{"name":"A",` +
		`"value":"b"}],"resourcesPerNode":{"limits":{"nvidia.com/gpu":"8"}}}}`,
	`{"initializer":{"dataset":{"storageUri":"hf://a","env":[{"name":"X"}],"secretRef":{"name":"s"}},` +
		`"model":{"storageUri":"hf://m"}}}`,
	`{"runtimePatches":[{"manager":"a.com/a","trainingRuntimeSpec":{"template":{"metadata":{"labels":{"a":"b"}},` +
		`"spec":{"replicatedJobs":[{"name":"node",` +
		`"template":{"metadata":{"labels":{"trainer.kubeflow.org/trainjob-ancestor-step":"x"}},` +
		`"spec":{"template":{"metadata":{"labels":{"l":"1"},"annotations":{"n":"1"}},"spec":{"nodeSelector":{"gpu":"a"},` +
		`"tolerations":[{"key":"k","operator":"Exists"}],"schedulingGates":[{"name":"g"}],"volumes":[{"name":"v",` +
		`"emptyDir":{}}],"containers":[{"name":"sidecar","env":[{"name":"E","value":""}],"volumeMounts":[{"name":"v",` +
		`"mountPath":"/v","readOnly":false}]}],"affinity":{"nodeAffinity":{}},"serviceAccountName":"sa",` +
		`"imagePullSecrets":[{"name":"p"}],"securityContext":{"runAsUser":0},"terminationGracePeriodSeconds":0}}}}}]}}}},` +
		`{"manager":"b.com/b","trainingRuntimeSpec":{"template":{"spec":{"replicatedJobs":[{"name":"node",` +
		`"template":{"spec":{"template":{"spec":{"nodeSelector":{"gpu":"b","zone":"z"},` +
		`"tolerations":[{"key":"x"}]}}}}}]}}}}]}`,
	`{"runtimePatches":[{"manager":"a.com/a",` +
		`"trainingRuntimeSpec":{"template":{"spec":{"replicatedJobs":[{"name":"launcher"},{"name":"nobody"}]}}}}]}`,
	`{"podTemplateOverrides":[{"targetJobs":[{"name":"node"}],"metadata":{"labels":{"a":"b"}},` +
		`"spec":{"nodeSelector":{"gpu":"a"},"affinity":{"nodeAffinity":{}},"volumes":[{"name":"v","emptyDir":{}}],` +
		`"containers":[{"name":"sidecar","env":[{"name":"E","value":"x"}],"volumeMounts":[{"name":"v","mountPath":"/v"},` +
		`{"name":"v","mountPath":"/w"}]}],"schedulingGates":[{"name":"g"}],"imagePullSecrets":[{"name":"p"}]}},` +
		`{"targetJobs":[{"name":"node"},{"name":"dataset-initializer"}],"spec":{"serviceAccountName":"sa",` +
		`"tolerations":[{"key":"k","operator":"Exists"}]}}]}`,
	`{"templateOverrides":[{"manager":"a.com/a","job":[{"metadata":{"labels":{"l":"1"}}},` +
		`{"time":"2026-01-01T00:00:00Z","targetJobs":[{"name":"node"}],"metadata":{"annotations":{"n":"1"}}}],` +
		`"pod":[{"targetJobs":[{"name":"node"}],"spec":{"nodeSelector":{"gpu":"b"},"securityContext":{"runAsUser":0},` +
		`"terminationGracePeriodSeconds":0}}]}],"runtimePatches":[{"manager":"a.com/a",` +
		`"trainingRuntimeSpec":{"template":{"metadata":{"labels":{"a":"b"}}}}}]}`,
	`{"podTemplateOverrides":[{"targetJobs":[{"name":"launcher"},{"name":"nobody"}]},{}],` +
		`"templateOverrides":[{"manager":"kueue.x-k8s.io/manager"},{"manager":"x","pod":[{}]}]}`,
}

// FuzzMerge holds that no TrainJob makes the merge panic, and that the result has lost no entry. For every key of
// labels, annotations, node selector and scheduling gates, the result has the value of the last entry that sets it; its
// tolerations are the last list. The bytes are a TrainJob's spec, or choices from which one is built.
func FuzzMerge(f *testing.F) {
	runtimes := fuzzRuntimes(f)
	for i, seed := range fuzzSeeds {
		f.Add([]byte(seed), uint8(i))
	}
	f.Fuzz(func(t *testing.T, data []byte, which uint8) {
		job := &api.TrainJob{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "job"}}
		if json.Unmarshal(data, &job.Spec) != nil {
			job.Spec = (&draw{data}).spec()
		}
		runtime := &runtimes[int(which)%len(runtimes)]
		before, err := json.Marshal(job)
		if err != nil {
			return // holds what can't be written, a quantity say
		}
		e, err := dialect.Bundled.Compute(job, runtime, dialect.Bundled.Entries(job))
		if after, err := json.Marshal(job); err != nil || string(after) != string(before) {
			t.Fatalf("the TrainJob was changed")
		}
		entries := dialect.Bundled.Entries(job)
		if err != nil || len(overrides.CheckEntries(job, entries))+len(overrides.Check(job, runtime, entries)) > 0 {
			return // refused
		}
		if len(e.ReplicatedJobs) != len(runtime.Template.Spec.ReplicatedJobs) {
			t.Fatalf("%d ReplicatedJobs of %d", len(e.ReplicatedJobs), len(runtime.Template.Spec.ReplicatedJobs))
		}
		for i := range e.ReplicatedJobs {
			name := runtime.Template.Spec.ReplicatedJobs[i].Name
			if e.ReplicatedJobs[i].Name != name {
				t.Fatalf("the order of ReplicatedJobs is the runtime's: %s stands where %s did", e.ReplicatedJobs[i].Name, name)
			}
			if problem := lost(dialect.Bundled.Entries(job), name, &e.ReplicatedJobs[i].Template.Spec.Template); problem != "" {
				t.Fatalf("ReplicatedJob %s: %s", name, problem)
			}
		}
	})
}

// lost names what the entries say of a ReplicatedJob's pods and the pod template doesn't have.
func lost(entries []overrides.Entry, replicatedJob string, pod *corev1.PodTemplateSpec) string {
	want := map[string]map[string]string{"labels": {}, "annotations": {}, "nodeSelector": {}}
	have := map[string]map[string]string{"labels": pod.Labels, "annotations": pod.Annotations,
		"nodeSelector": pod.Spec.NodeSelector}
	var tolerations []corev1.Toleration
	var gates []corev1.PodSchedulingGate
	set := func(field string, values map[string]string) {
		for k, v := range values {
			want[field][k] = v
		}
	}
	for _, entry := range entries {
		meta, spec := overrides.PodPatch(entry.Patch, replicatedJob)
		if meta != nil {
			set("labels", meta.Labels)
			set("annotations", meta.Annotations)
		}
		if spec == nil {
			continue
		}
		if entry.Replaces && len(spec.NodeSelector) > 0 {
			want["nodeSelector"] = map[string]string{}
		}
		set("nodeSelector", spec.NodeSelector)
		if len(spec.Tolerations) > 0 {
			tolerations = spec.Tolerations
		}
		if entry.Replaces && len(spec.SchedulingGates) > 0 {
			gates = nil
		}
		gates = append(gates, spec.SchedulingGates...)
	}
	for _, g := range gates {
		if !slices.Contains(pod.Spec.SchedulingGates, g) {
			return fmt.Sprintf("scheduling gate %q is lost", g.Name)
		}
	}
	for field, values := range want {
		for k, v := range values {
			if got, found := have[field][k]; !found || got != v {
				return fmt.Sprintf("%s[%q] is %q, the last entry that sets it says %q", field, k, got, v)
			}
		}
	}
	if len(tolerations) > 0 && len(pod.Spec.Tolerations) != len(tolerations) {
		return fmt.Sprintf("%d tolerations, the last list has %d", len(pod.Spec.Tolerations), len(tolerations))
	}
	return ""
}

// FuzzCheck holds that validation takes any two versions of a TrainJob without a panic, answers the same twice, refuses
// no update that changes nothing, and that what it says of times is about entries that there are.
func FuzzCheck(f *testing.F) {
	runtimes := fuzzRuntimes(f)
	for i, seed := range fuzzSeeds {
		f.Add([]byte(seed), []byte(fuzzSeeds[(i+1)%len(fuzzSeeds)]), uint8(i))
	}
	f.Fuzz(func(t *testing.T, first, second []byte, which uint8) {
		var before, after api.TrainJob
		if json.Unmarshal(first, &before.Spec) != nil {
			before.Spec = (&draw{first}).spec()
		}
		if json.Unmarshal(second, &after.Spec) != nil {
			after.Spec = (&draw{second}).spec()
		}
		runtime := &runtimes[int(which)%len(runtimes)]
		for range 2 {
			legacy.CheckHistoryManagers(&after)
			overrides.CheckEntries(&after, dialect.Bundled.Entries(&after))
			overrides.Warnings(dialect.Bundled.Entries(&after))
		}
		check := func() string { return fmt.Sprint(overrides.Check(&after, runtime, dialect.Bundled.Entries(&after))) }
		if a, b := check(), check(); a != b {
			t.Fatalf("two answers: %s, and %s", a, b)
		}
		changed := func(b, a *api.TrainJob) *field.Path { return cmp.Or(overrides.Changed(b, a), legacy.ChangedForm(b, a)) }
		same := after.DeepCopy()
		if errs := overrides.CheckTransition(changed(&after, same), &after, same, nil); len(errs) > 0 {
			t.Fatalf("an update that changes nothing is refused: %v", errs)
		}
		overrides.CheckTransition(changed(&before, &after), &before, &after, nil)
		legacy.CheckHistories(&before, &after)
		legacy.Deprecations(&after, runtime)
		times := overrides.Times(&before, &after, metav1.Now(), which%2 == 0)
		maps.Copy(times, legacy.HistoryTimes(&before, &after, metav1.Now()))
		stored := stamped(&after, times, t)
		if errs := legacy.CheckHistories(stored, stored.DeepCopy()); len(errs) > 0 && uniqueManagers(&after) {
			t.Fatalf("a history that has not changed is refused: %v", errs)
		}
		times = overrides.Times(&after, after.DeepCopy(), metav1.Now(), false)
		for i, e := range after.Spec.RuntimePatches {
			if _, given := times[fmt.Sprintf("/spec/runtimePatches/%d/time", i)]; given && e.Time != nil &&
				uniqueManagers(&after) {
				t.Fatalf("entry %d has not changed and is given another time", i)
			}
		}
	})
}

// stamped returns the TrainJob with the times that it is given, each of an entry that there is.
func stamped(job *api.TrainJob, times map[string]metav1.Time, t *testing.T) *api.TrainJob {
	t.Helper()
	data, err := json.Marshal(job)
	if err != nil {
		t.Fatal(err)
	}
	for pointer, at := range times {
		operation, err := json.Marshal([]map[string]any{{"op": "add", "path": pointer, "value": at}})
		if err != nil {
			t.Fatal(err)
		}
		patch, err := jsonpatch.DecodePatch(operation)
		if err != nil {
			t.Fatal(err)
		}
		if data, err = patch.Apply(data); err != nil {
			t.Fatalf("a time for what is not there: %v", err)
		}
	}
	stored := &api.TrainJob{}
	if err := json.Unmarshal(data, stored); err != nil {
		t.Fatal(err)
	}
	return stored
}

func uniqueManagers(job *api.TrainJob) bool {
	seen := map[string]bool{}
	for _, e := range job.Spec.RuntimePatches {
		if seen[e.Manager] {
			return false
		}
		seen[e.Manager] = true
	}
	seen = map[string]bool{}
	for _, o := range job.Spec.TemplateOverrides {
		if seen[o.Manager] {
			return false
		}
		seen[o.Manager] = true
	}
	return true
}
