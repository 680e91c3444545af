package legacy_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"sigs.k8s.io/yaml"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides"
	"github.com/signalbox-dev/signalbox/overrides/legacy"
)

// TestConvertions holds what is converted, kept apart, and lost.
func TestConversions(t *testing.T) {
	const history = `templateOverrides: [{manager: %s, job: [{time: "2026-01-02T00:00:00Z", metadata: {labels: {a: b}}}],
  pod: [{time: "2026-01-01T00:00:00Z", targetJobs: [{name: node}], spec: {serviceAccountName: sa}}]}]`
	cases := map[string]struct {
		spec                string
		managers            string
		changes, lost, time string
	}{
		"a history": {fmt.Sprintf(history, "a.com/a"), "a.com/a", "spec.templateOverrides[a.com/a] (2) became", "",
			"2026-01-02"},
		"a second": {fmt.Sprintf(history, "a.com/a") + "\nruntimePatches: [{manager: a.com/a}]",
			"a.com/a-template-overrides a.com/a", "became the entry of a.com/a-template-overrides", "", ""},
		"the integration's": {fmt.Sprintf(history, overrides.Manager), "", "", "is the integration's", ""},
		"converted before": {"labels: {a: b}\nruntimePatches: [{manager: signalbox.dev/converted}]",
			"signalbox.dev/converted-2 signalbox.dev/converted", "spec.labels and spec.annotations became", "", ""},
		"mounted twice": {"podSpecOverrides: [{targetJobs: [{name: node}], containers: [{name: c, volumeMounts: [{name: " +
			"v, mountPath: /a}, {name: v, mountPath: /b}]}]}]", legacy.ConvertedManager, "spec.podSpecOverrides (1) became",
			"mounts volume v at /a and at /b", ""},
		"nothing": {"podTemplateOverrides: [{targetJobs: [{name: node}]}]", "", "", "set no field that may be changed",
			""},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := legacy.Convert(legacy.Manifests(false), jobOf(t, c.spec))
			if err != nil {
				t.Fatal(err)
			}
			var managers []string
			for _, p := range got.Patches {
				managers = append(managers, p.Manager)
			}
			if strings.Join(managers, " ") != c.managers {
				t.Errorf("got entries of %v, want %s", managers, c.managers)
			}
			if !strings.Contains(fmt.Sprint(got.Changes), c.changes) || !strings.Contains(fmt.Sprint(got.Lost), c.lost) {
				t.Errorf("got %q and %q, want %q and %q", got.Changes, got.Lost, c.changes, c.lost)
			}
			if c.time != "" && !strings.HasPrefix(got.Patches[0].Time.UTC().String(), c.time) {
				t.Errorf("the entry has the latest time, got %v", got.Patches[0].Time)
			}
		})
	}
}

// TestMergeRefuses holds that every reader of entries returns the error of a merge.
func TestMergeRefuses(t *testing.T) {
	rt := must[trainerapi.TrainingRuntimeSpec](t, torchRuntime)
	bad := jobOf(t, "podSpecOverrides: [{targetJobs: [{name: node}], tolerations: [{key: a}]}]\npodTemplateOverrides: "+
		"[{targetJobs: [{name: nobody}]}]")
	d := legacy.Manifests(false)
	c, err := legacy.Convert(d, bad)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := legacy.Differences(d, bad, c, &rt); err == nil {
		t.Error("a ReplicatedJob that the runtime doesn't have was merged")
	}
	wrong := jobOf(t, "runtimePatches: [{manager: a.com/a, trainingRuntimeSpec: {template: {spec: {replicatedJobs: "+
		"[{name: nobody}]}}}}]")
	c = &legacy.Conversion{Patches: wrong.Spec.RuntimePatches}
	if _, err := legacy.Differences(d, jobOf(t, "{}"), c, &rt); err == nil {
		t.Error("an entry for a ReplicatedJob that the runtime doesn't have was merged")
	}
	directive := jobOf(t, `templateOverrides: [{manager: a.com/a, pod: [
  {targetJobs: [{name: node}], spec: {nodeSelector: {a: b}}}, {targetJobs: [{name: node}],
    spec: {nodeSelector: {$patch: other}}}]}]`)
	if _, err := legacy.Convert(d, directive); err == nil {
		t.Error("an unknown directive was merged")
	}
	directive = jobOf(t, `podSpecOverrides: [
  {targetJobs: [{name: node}], nodeSelector: {a: b}}, {targetJobs: [{name: node}], nodeSelector: {$patch: other}}]`)
	if _, err := legacy.Convert(d, directive); err == nil {
		t.Error("an unknown directive of a list was merged")
	}
}

// must reads YAML into a T.
func must[T any](t testing.TB, text string) T {
	t.Helper()
	var v T
	if err := yaml.UnmarshalStrict([]byte(text), &v); err != nil {
		t.Fatal(err)
	}
	return v
}

// jobOf reads a TrainJob's spec.
func jobOf(t *testing.T, spec string) *api.TrainJob {
	t.Helper()
	job := &api.TrainJob{}
	if err := yaml.UnmarshalStrict([]byte(spec), &job.Spec); err != nil {
		t.Fatal(err)
	}
	job.Spec.RuntimeRef.Name = "torch"
	return job
}

const torchRuntime = `
mlPolicy: {numNodes: 2, torch: {}}
template:
  spec:
    replicatedJobs:
    - name: dataset-initializer
      replicas: 1
      template:
        metadata: {labels: {trainer.kubeflow.org/trainjob-ancestor-step: dataset-initializer}}
        spec:
          template:
            spec:
              containers:
              - {name: dataset-initializer, image: example.com/init:1}
    - name: node
      replicas: 1
      dependsOn: [{name: dataset-initializer, status: Complete}]
      template:
        metadata: {labels: {trainer.kubeflow.org/trainjob-ancestor-step: trainer}}
        spec:
          template:
            metadata: {labels: {from: runtime}}
            spec:
              nodeSelector: {zone: east}
              tolerations: [{key: spot, operator: Exists}]
              containers:
              - {name: node, image: example.com/train:1, resources: {requests: {cpu: 1, memory: 1Gi}}}
              - {name: sidecar, image: example.com/sidecar:1}
`

// TestDepends holds that each field is named that was replaced and is merged now, always in the same order.
func TestDepends(t *testing.T) {
	lists := jobOf(t, `podTemplateOverrides: [{targetJobs: [{name: node}], spec: {nodeSelector: {a: b}, affinity: {},
  schedulingGates: [{name: g}],
  imagePullSecrets: [{name: s}], volumes: [{name: v}], containers: [{name: c, env: [{name: A}],
    volumeMounts: [{name: v, mountPath: /v}]}]}}]`)
	var first string
	for i := range 100 {
		c, err := legacy.Convert(legacy.Guide, lists)
		if err != nil || len(c.Depends) != 7 {
			t.Fatalf("got %v, %v", c, err)
		}
		got := fmt.Sprint(c.Depends)
		if i == 0 {
			first = got
		}
		if got != first {
			t.Fatalf("got %s, and before %s", got, first)
		}
	}
}

// TestMany holds that a conversion to more entries than a TrainJob may have says so.
func TestMany(t *testing.T) {
	var patches []string
	for i := range overrides.MaxEntries {
		patches = append(patches, fmt.Sprintf("{manager: a.com/m%d}", i))
	}
	c, err := legacy.Convert(legacy.Guide, jobOf(t, "podTemplateOverrides: [{targetJobs: [{name: node}], spec: "+
		"{serviceAccountName: sa}}]\nruntimePatches: ["+strings.Join(patches, ", ")+"]"))
	if err != nil || !slices.Contains(c.Lost, "spec.runtimePatches would have 17 entries, and may have 16") {
		t.Errorf("got %+v, %v", c, err)
	}
}

// TestEveryEntry holds that entries of every form are counted, whichever a Trainer reads.
func TestEveryEntry(t *testing.T) {
	if n := len(legacy.EveryEntry(jobOf(t, shapes))); n != 1+2+5+2 {
		t.Errorf("got %d entries", n)
	}
}
