package overrides

import (
	"fmt"
	"strings"
	"testing"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
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
		"the integration's": {fmt.Sprintf(history, Manager), "", "", "is the integration's", ""},
		"converted before": {"labels: {a: b}\nruntimePatches: [{manager: signalbox.dev/converted}]",
			"signalbox.dev/converted-2 signalbox.dev/converted", "spec.labels and spec.annotations became", "", ""},
		"mounted twice": {"podSpecOverrides: [{targetJobs: [{name: node}], containers: [{name: c, volumeMounts: [{name: " +
			"v, mountPath: /a}, {name: v, mountPath: /b}]}]}]", ConvertedManager, "spec.podSpecOverrides (1) became",
			"mounts volume v at /a and at /b", ""},
		"nothing": {"podTemplateOverrides: [{targetJobs: [{name: node}]}]", "", "", "set no field that may be changed",
			""},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := Convert(Manifests(false), jobOf(t, c.spec))
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
	d := Manifests(false)
	c, err := Convert(d, bad)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Differences(d, bad, c, &rt); err == nil {
		t.Error("a ReplicatedJob that the runtime doesn't have was merged")
	}
	wrong := jobOf(t, "runtimePatches: [{manager: a.com/a, trainingRuntimeSpec: {template: {spec: {replicatedJobs: "+
		"[{name: nobody}]}}}}]")
	if _, err := Differences(d, jobOf(t, "{}"), &Conversion{Patches: wrong.Spec.RuntimePatches}, &rt); err == nil {
		t.Error("an entry for a ReplicatedJob that the runtime doesn't have was merged")
	}
	directive := jobOf(t, `templateOverrides: [{manager: a.com/a, pod: [
  {targetJobs: [{name: node}], spec: {nodeSelector: {a: b}}}, {targetJobs: [{name: node}],
    spec: {nodeSelector: {$patch: other}}}]}]`)
	if _, err := Convert(d, directive); err == nil {
		t.Error("an unknown directive was merged")
	}
	directive = jobOf(t, `podSpecOverrides: [
  {targetJobs: [{name: node}], nodeSelector: {a: b}}, {targetJobs: [{name: node}], nodeSelector: {$patch: other}}]`)
	if _, err := Convert(d, directive); err == nil {
		t.Error("an unknown directive of a list was merged")
	}
}
