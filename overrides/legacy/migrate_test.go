package legacy_test

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides"
	"github.com/signalbox-dev/signalbox/overrides/dialect"
	"github.com/signalbox-dev/signalbox/overrides/legacy"
)

func TestUncarried(t *testing.T) {
	job := jobOf(t, "podSpecOverrides: [{targetJobs: [{name: node}], serviceAccountName: sa}]")
	others, gpu := dialect.Kubeflow20.Others(job), map[string]string{"gpu": "a"}
	for name, c := range map[string]struct {
		reason   string
		dialect  *dialect.Dialect
		job      string
		metadata string
		selector map[string]string
		want     *overrides.Conflict
	}{
		"v2.1": {"its list holds all", dialect.Kubeflow21, "node", "a check", gpu, nil},
		"v2.0, metadata": {"its list has none", dialect.Kubeflow20, "other", "a check", gpu, &overrides.Conflict{
			Path: "spec.podSpecOverrides", Says: "without labels and annotations of pods, in Kubeflow Trainer v2.0",
			Needs: "labels or annotations on the pods of other", Source: "a check",
			WayOut: "upgrade Kubeflow Trainer to v2.1 or later, or queue the TrainJob where they are not needed",
		}},
		"v2.0, a user's element": {"it names a ReplicatedJob once", dialect.Kubeflow20, "node", "", gpu, &overrides.Conflict{
			Path: "spec.podSpecOverrides[0]", Says: "for replicatedJob node",
			Needs: "one element for each replicatedJob, and admission writes it", Source: "Kubeflow Trainer v2.0",
			WayOut: "move its fields to the runtime, or upgrade Kubeflow Trainer to v2.1 or later",
		}},
		"v2.0, nothing needed":    {"the user's element may stay", dialect.Kubeflow20, "node", "", nil, nil},
		"v2.0, another's element": {"it is for another ReplicatedJob", dialect.Kubeflow20, "other", "", gpu, nil},
	} {
		t.Run(name, func(t *testing.T) {
			patch := podsOf(c.job, nil, &trainerapi.PodSpecPatch{NodeSelector: c.selector})
			if got := c.dialect.List.Uncarried(others, patch, c.metadata); !reflect.DeepEqual(got, c.want) {
				t.Errorf("%s: got %+v, want %+v", c.reason, got, c.want)
			}
		})
	}
	if (overrides.Entry{}).Targets("node") {
		t.Error("an entry of nothing is for no ReplicatedJob")
	}
}

// TestOperations holds the JSON patch that each kind writes for a migration.
func TestOperations(t *testing.T) {
	const element = `{"targetJobs":[{"name":"node"}],"spec":{"serviceAccountName":"sa"}}`
	const other = `{"targetJobs":[{"name":"node"}],"spec":{"serviceAccountName":"other"}}`
	const removed = `{"op":"remove","path":"/metadata/annotations/signalbox.dev~1overrides"}`
	const entry = `{"manager":"signalbox.dev/converted","time":"2026-01-01T00:00:00Z","trainingRuntimeSpec":{"template":` +
		`{"spec":{"replicatedJobs":[{"name":"node",` +
		`"template":{"spec":{"template":{"spec":{"serviceAccountName":"sa"}}}}}]}}}}`
	v21 := `{"field":"podTemplateOverrides","users":{"podTemplateOverrides":[` + element + `]}}`
	v20 := `{"field":"podSpecOverrides","users":{"podSpecOverrides":[{"targetJobs":[{"name":"node"}],` +
		`"serviceAccountName":"sa"}]}}`
	empty := `{"field":"podTemplateOverrides"}`
	added := `{"op":"add","path":"/spec/runtimePatches","value":[` + entry + `]}`
	// The annotation's value is encoded twice, its keys sorted.
	sorted := `{\"field\":\"podTemplateOverrides\",\"users\":{\"podTemplateOverrides\":[` +
		`{\"spec\":{\"serviceAccountName\":\"sa\"},\"targetJobs\":[{\"name\":\"node\"}]}]}}`
	cases := map[string]struct {
		dialect            *dialect.Dialect
		spec, record, want string
	}{
		"an entry": {dialect.Kubeflow23, "{}", v21, removed + "," + added},
		"an entry before": {dialect.Kubeflow23, "runtimePatches: [{manager: a.com/a}]", v21, removed +
			`,{"op":"add","path":"/spec/runtimePatches/0","value":` + entry + `}`},
		"converted by a user":  {dialect.Kubeflow23, "runtimePatches: [{manager: signalbox.dev/converted}]", v21, removed},
		"nothing":              {dialect.Kubeflow22, "{}", empty, removed},
		"a CRD without a list": {dialect.Kubeflow23, "podTemplateOverrides: [" + element + "]", v21, removed + "," + added},
		"to an empty list": {dialect.Kubeflow21, "{}", `{"field":"podSpecOverrides"}`,
			recordOperation(`{\"field\":\"podTemplateOverrides\",\"users\":{\"podTemplateOverrides\":null}}`)},
		"the same list": {dialect.Bundled, "podTemplateOverrides: [" + element + "]", v21, removed +
			`,{"op":"remove","path":"/spec/podTemplateOverrides"},` + added},
		"an edited list": {dialect.Bundled, "podTemplateOverrides: [" + other + "]", v21, removed +
			`,{"op":"replace","path":"/spec/podTemplateOverrides","value":[` + other + `]}`},
		"of v2.0": {dialect.Bundled, "{}", v20, removed + "," + added},
		"v2.0 to v2.1": {dialect.Kubeflow21, "{}", v20, `{"op":"add","path":"/spec/podTemplateOverrides","value":[` +
			element + `]},` + recordOperation(sorted)},
		"v2.1 to v2.0, no use": {dialect.Kubeflow20, "{}", empty,
			recordOperation(`{\"field\":\"podSpecOverrides\",\"users\":{\"podSpecOverrides\":null}}`)},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			record := must[legacy.Record](t, c.record)
			job := withRecord(t, c.spec, &record)
			now := metav1.Date(2026, 1, 1, 0, 0, 0, 0, metav1.Now().UTC().Location())
			operations, err := c.dialect.Migrate(job, &record, now)
			if err != nil {
				t.Fatal(err)
			}
			got, err1 := overrides.Generic(operations)
			want, err2 := overrides.Generic(json.RawMessage("[" + c.want + "]"))
			if err1 != nil || err2 != nil || !reflect.DeepEqual(got, want) {
				t.Errorf("got %v, want [%s]: %v, %v", got, c.want, err1, err2)
			}
		})
	}
}

func recordOperation(value string) string {
	return `{"op":"replace","path":"/metadata/annotations/signalbox.dev~1overrides","value":"` + value + `"}`
}

// TestMigrateRefuses holds the texts of migrations that can't be done.
func TestMigrateRefuses(t *testing.T) {
	users := must[legacy.Record](t, `{field: podTemplateOverrides, users: {podTemplateOverrides: [{targetJobs: [{name: node}],
  spec: {serviceAccountName: sa}}]}}`)
	var patches []string
	for i := range overrides.MaxEntries {
		patches = append(patches, fmt.Sprintf("{manager: a.com/m%d}", i))
	}
	full := jobOf(t, "runtimePatches: ["+strings.Join(patches, ", ")+"]")
	bad := &legacy.Record{Field: legacy.PodSpecOverrides, Users: map[string]any{"labels": func() {}}}
	for name, c := range map[string]struct {
		dialect *dialect.Dialect
		job     *api.TrainJob
		record  *legacy.Record
		want    string
	}{
		"to v2.0": {dialect.Kubeflow20, &api.TrainJob{}, &users,
			"spec.podTemplateOverrides can't be migrated to Kubeflow Trainer v2.0; " +
				"upgrade Kubeflow Trainer, or delete the TrainJob and create it again"},
		"full": {dialect.Kubeflow23, full, &users, "spec.podTemplateOverrides needs an entry of " +
			"spec.runtimePatches, which has 16 already; take one out"},
		"unreadable": {dialect.Kubeflow21, &api.TrainJob{}, bad, "reading annotation signalbox.dev/overrides: "},
	} {
		t.Run(name, func(t *testing.T) {
			if m, err := c.dialect.Migrate(c.job, c.record, metav1.Now()); err == nil || m != nil ||
				!strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, %v, want %q", m, err, c.want)
			}
		})
	}
}

// TestEdited holds that a list that users have changed on the bundled Trainer's CRD takes precedence over a foreign
// Record.
func TestEdited(t *testing.T) {
	record := must[legacy.Record](t, `{field: podTemplateOverrides, own: [{targetJobs: [{name: node}],
  spec: {nodeSelector: {gpu: a}}}], users: {podTemplateOverrides: []}}`)
	job := withRecord(t, `podTemplateOverrides: [{targetJobs: [{name: node}], spec: {serviceAccountName: sa}},
  {targetJobs: [{name: node}], spec: {nodeSelector: {gpu: a}}}]`, &record)
	for _, d := range []legacy.Reader{legacy.Guide, legacy.Manifests(false), legacy.Manifests(true)} {
		entries := d.Entries(job)
		if len(entries) != 1 ||
			entries[0].Patch.Template.Spec.ReplicatedJobs[0].Template.Spec.Template.Spec.ServiceAccountName == nil {
			t.Errorf("got %+v, want the user's element alone", entries)
		}
	}
}
