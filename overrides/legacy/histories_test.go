package legacy_test

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	gomodules "gomodules.xyz/jsonpatch/v2"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides"
	"github.com/signalbox-dev/signalbox/overrides/dialect"
	"github.com/signalbox-dev/signalbox/overrides/legacy"
)

// TestMigrate holds that a TrainJob says to another Trainer what it has said to the one before.
func TestMigrate(t *testing.T) {
	const patches = `[{targetJobs: [{name: node}], metadata: {labels: {a: b}}, spec: {nodeSelector: {x: "1"},
  volumes: [{name: v, emptyDir: {}}]}}, {targetJobs: [{name: node}], spec: {nodeSelector: {x: "2"}}}]`
	const specs = `[{targetJobs: [{name: node}], nodeSelector: {x: "2"}, volumes: [{name: v, emptyDir: {}}]}]`
	now := metav1.Now()
	for name, c := range map[string]struct {
		from, to *dialect.Dialect
		field    string
	}{
		"v2.1 to v2.3":    {dialect.Kubeflow21, dialect.Kubeflow23, patches},
		"v2.1 to bundled": {dialect.Kubeflow21, dialect.Bundled, patches},
		"v2.0 to v2.2":    {dialect.Kubeflow20, dialect.Kubeflow22, specs},
		"v2.0 to v2.1":    {dialect.Kubeflow20, dialect.Kubeflow21, specs},
	} {
		t.Run(name, func(t *testing.T) {
			before := jobOf(t, c.from.Field+": "+c.field+"\nlabels: {of: jobset}")
			var users []any
			if err := yaml.Unmarshal([]byte(c.field), &users); err != nil {
				t.Fatal(err)
			}
			record := &legacy.Record{Field: c.from.Field, Time: &now, Own: []any{map[string]any{"targetJobs": []any{}}},
				Users: map[string]any{c.from.Field: users, "labels": map[string]any{"of": "jobset"}}}
			value, err := record.String()
			if err != nil {
				t.Fatal(err)
			}
			upgraded := jobOf(t, "{}") // the API server has dropped it
			if c.to == dialect.Bundled {
				upgraded = before.DeepCopy() // its CRD has the list
			} else if !c.to.Keyed() {
				upgraded.Spec.Labels = before.Spec.Labels
			}
			upgraded.Annotations = map[string]string{legacy.RecordAnnotation: value}
			if !c.to.Foreign(record) || c.from.Foreign(record) || c.to.Own(upgraded) != nil {
				t.Error("the record is the other Trainer's")
			}
			operations, err := c.to.Migrate(upgraded, record, now)
			if err != nil {
				t.Fatal(err)
			}
			migrated := patched(t, upgraded, operations)
			if c.to.Keyed() {
				migrated.Spec.Labels = nil
			}
			rt := must[trainerapi.TrainingRuntimeSpec](t, torchRuntime)
			texts := map[string]string{}
			for when, of := range map[string]struct {
				d   *dialect.Dialect
				job *api.TrainJob
			}{"before": {c.from, before}, "until it is migrated": {c.to, upgraded}, "after": {c.to, migrated}} {
				with, err := overrides.Merge(&rt, of.d.Entries(of.job))
				if err != nil {
					t.Fatal(err)
				}
				data, err := json.Marshal(with)
				if err != nil {
					t.Fatal(err)
				}
				texts[when] = string(data)
			}
			if texts["before"] != texts["after"] || texts["before"] != texts["until it is migrated"] {
				t.Errorf("it says another thing: %v", texts)
			}
		})
	}
	nothing := &legacy.Record{Field: legacy.PodTemplateOverrides, Time: &now}
	if operations, err := dialect.Kubeflow23.Migrate(jobOf(t, "{}"), nothing, now); err != nil || len(operations) != 1 {
		t.Errorf("who has said nothing says nothing: %v %v", operations, err)
	}
}

// patched returns the TrainJob with the operations of a JSON patch.
func patched(t *testing.T, job *api.TrainJob, operations []gomodules.Operation) *api.TrainJob {
	t.Helper()
	before, err1 := json.Marshal(job)
	text, err2 := json.Marshal(operations)
	patch, err3 := jsonpatch.DecodePatch(text)
	after, err4 := patch.Apply(before)
	result := &api.TrainJob{}
	if err := errors.Join(err1, err2, err3, err4, json.Unmarshal(after, result)); err != nil {
		t.Fatal(err)
	}
	return result
}

func TestHistories(t *testing.T) {
	const a, b = `{targetJobs: [{name: node}], spec: {nodeSelector: {x: a}}}`,
		`{targetJobs: [{name: node}], spec: {nodeSelector: {x: b}}}`
	timed := func(entry string) string { return strings.Replace(entry, "{", `{time: "2026-01-01T00:00:00Z", `, 1) }
	history := func(manager string, entries ...string) string {
		return "templateOverrides: [{manager: " + manager + ", pod: [" + strings.Join(entries, ", ") + "]}]"
	}
	cases := map[string]struct{ reason, before, after, want string }{
		"the same": {"nothing has changed", history("a.com/a", timed(a)), history("a.com/a", timed(a)), ""},
		"added": {"entries may be added, wherever", history("a.com/a", timed(a)),
			history("a.com/a", timed(b), timed(a)), ""},
		"changed": {"not changed", history("a.com/a", timed(a)), history("a.com/a", timed(b)),
			"spec.templateOverrides[a.com/a].pod[0]: Forbidden: entry 0, of 2026-01-01T00:00:00Z, is history"},
		"another time": {"nor its time", history("a.com/a", timed(a)),
			history("a.com/a", strings.Replace(timed(a), "01-01", "02-01", 1)), "is history"},
		"removed": {"nor removed", history("a.com/a", timed(a), timed(b)), history("a.com/a", timed(a)),
			"pod[1]: Forbidden"},
		"one of two": {"nor one of two alike", history("a.com/a", timed(a), timed(a)), history("a.com/a", timed(a)),
			"pod[1]: Forbidden"},
		"all of it": {"nor all of it", history("a.com/a", timed(a)), "{}", "pod[0]: Forbidden"},
		"another manager": {"nor given to another", history("a.com/a", timed(a)), history("b.com/b", timed(a)),
			"spec.templateOverrides[a.com/a].pod[0]: Forbidden"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			errs := legacy.CheckHistories(jobOf(t, c.before), jobOf(t, c.after))
			if c.want == "" && len(errs) > 0 || c.want != "" &&
				(len(errs) != 1 || !strings.Contains(errs.ToAggregate().Error(), c.want)) {
				t.Errorf("%s: got %v, want %q", c.reason, errs, c.want)
			}
		})
	}
	now := metav1.NewTime(time.Date(2026, 11, 21, 0, 0, 0, 0, time.UTC))
	times := map[string]struct {
		reason, before, after string
		want                  string
	}{
		"created":            {"the server's", "{}", history("a.com/a", a), "0:2026-11-21"},
		"created with one":   {"its own", "{}", history("a.com/a", timed(a)), ""},
		"sent again without": {"it keeps its own", history("a.com/a", timed(a)), history("a.com/a", a), "0:2026-01-01"},
		"one is added": {"the server's", history("a.com/a", timed(a)), history("a.com/a", timed(a), b),
			"1:2026-11-21"},
		"the same is added": {"what is sent with its time is not the new one's", history("a.com/a", timed(a)),
			history("a.com/a", a, timed(a)), "0:2026-11-21"},
		"two alike, sent without": {"each keeps its own", history("a.com/a", timed(a), timed(a)), history("a.com/a", a, a),
			"0:2026-01-01 1:2026-01-01"},
	}
	for name, c := range times {
		t.Run(name, func(t *testing.T) {
			after := jobOf(t, c.after)
			given := legacy.HistoryTimes(jobOf(t, c.before), after, now)
			var got []string
			for i := range after.Spec.TemplateOverrides[0].Pod {
				if at, found := given[fmt.Sprintf("/spec/templateOverrides/0/pod/%d/time", i)]; found {
					got = append(got, fmt.Sprintf("%d:%s", i, at.UTC().Format(time.DateOnly)))
				}
			}
			if strings.Join(got, " ") != c.want {
				t.Errorf("%s: got %v, want %s", c.reason, got, c.want)
			}
		})
	}
}

// TestOrderOfManagers holds that of two managers the last of the list takes precedence, whatever the times, as the
// documentation says: templateOverrides are converted to one entry of runtimePatches for each manager.
func TestOrderOfManagers(t *testing.T) {
	entry := func(day int, value string) string {
		return fmt.Sprintf(`{time: "2026-01-%02dT00:00:00Z", targetJobs: [{name: node}], spec: {nodeSelector: {x: %s}}}`,
			day, value)
	}
	job := jobOf(t, "templateOverrides: [{manager: a.com/a, pod: ["+entry(3, "latest")+", "+entry(1, "first")+
		"]}, {manager: b.com/b, pod: ["+entry(2, "behind")+"]}]")
	rt := must[trainerapi.TrainingRuntimeSpec](t, torchRuntime)
	selected := func(job *api.TrainJob) string {
		with, err := overrides.Merge(&rt, dialect.Bundled.Entries(job))
		if err != nil {
			t.Fatal(err)
		}
		for _, rj := range with.Template.Spec.ReplicatedJobs {
			if rj.Name == "node" {
				return rj.Template.Spec.Template.Spec.NodeSelector["x"]
			}
		}
		return ""
	}
	converted, err := legacy.Convert(legacy.Guide, job)
	if err != nil {
		t.Fatal(err)
	}
	patched := jobOf(t, "{}")
	patched.Spec.RuntimePatches = converted.Patches
	alone := job.DeepCopy()
	alone.Spec.TemplateOverrides = alone.Spec.TemplateOverrides[:1]
	if got := []string{selected(job), selected(patched), selected(alone)}; got[0] != "behind" || got[1] != "behind" ||
		got[2] != "latest" {
		t.Errorf("got %v", got)
	}
}

func TestDeprecations(t *testing.T) {
	rt := must[trainerapi.TrainingRuntimeSpec](t, torchRuntime)
	if got := legacy.Deprecations(jobOf(t, "runtimePatches: [{manager: a.com/a}]"), &rt); got != nil {
		t.Errorf("there is nothing to say: %v", got)
	}
	const account = "podTemplateOverrides: [{targetJobs: [{name: node}], spec: {serviceAccountName: sa}}]"
	got := legacy.Deprecations(jobOf(t, account), &rt)
	if len(got) != 1 || !strings.HasPrefix(
		got[0],
		`spec.podTemplateOverrides is deprecated; the equivalent in spec is `+
			`{"runtimePatches":[{"manager":"signalbox.dev/converted"`) {
		t.Errorf("the equivalent is shown: %q", got)
	}
	got = legacy.Deprecations(jobOf(t, "podTemplateOverrides: [{targetJobs: [{name: node}], spec: {nodeSelector: {gpu: "+
		"a}}}]\ntemplateOverrides: [{manager: a.com/a, job: [{metadata: {labels: {a: b}}}]}]"), &rt)
	if len(got) != 2 || !strings.HasPrefix(
		got[0], "spec.podTemplateOverrides and spec.templateOverrides are deprecated") ||
		!strings.Contains(got[1], `nodeSelector.zone is "east" and was not there`) {
		t.Errorf("what would come out otherwise is said: %q", got)
	}
	long := legacy.Deprecations(jobOf(t, strings.Replace(account, "sa}", strings.Repeat("x", 4000)+"}", 1)), &rt)
	if len(long) != 1 || len(long[0]) > 200 || !strings.Contains(long[0], "kubectl signalbox convert") {
		t.Errorf("what would be cut off is said shorter: %q", long)
	}
}

func TestChanged(t *testing.T) {
	lists := "podTemplateOverrides: [{targetJobs: [{name: node}]}]"
	histories := "templateOverrides: [{manager: a.com/a, job: [{metadata: {labels: {a: b}}}]}]"
	for name, c := range map[string]struct {
		before, after string
		want          string
	}{
		"nothing":   {lists, lists, ""},
		"patches":   {"{}", "runtimePatches: [{manager: a.com/a}]", "spec.runtimePatches: Forbidden: the entry of a.com/a"},
		"histories": {"{}", histories, "spec.templateOverrides: Forbidden: its entries"},
		"lists":     {"{}", lists, "spec.podTemplateOverrides: Forbidden: its entries"},
		"the order": {"runtimePatches: [{manager: a.com/a}, {manager: b.com/b}]",
			"runtimePatches: [{manager: b.com/b}, {manager: a.com/a}]", "the order of the entries"},
	} {
		t.Run(name, func(t *testing.T) {
			before, after := jobOf(t, c.before), jobOf(t, c.after)
			path := cmp.Or(overrides.Changed(before, after), legacy.ChangedForm(before, after))
			errs := overrides.CheckTransition(path, before, after, nil)
			if (path != nil) != (c.want != "") || !strings.Contains(fmt.Sprint(errs.ToAggregate()), c.want) {
				t.Errorf("got %v, want %q", errs, c.want)
			}
		})
	}
}

func TestCheckHistoryManagers(t *testing.T) {
	for list, want := range map[string]string{
		"[{manager: a.com/a}, {manager: b.com/b}]": "",
		"[{manager: a.com/a}, {manager: a.com/a}]": "spec.templateOverrides[1].manager: Duplicate value",
		"[{manager: " + overrides.Manager + "}]": `spec.templateOverrides[0].manager: Forbidden: manager ` +
			`"kueue.x-k8s.io/manager" is the integration's`,
	} {
		errs := legacy.CheckHistoryManagers(jobOf(t, "templateOverrides: "+list))
		if got := fmt.Sprint(errs.ToAggregate()); (want == "") != (len(errs) == 0) || !strings.Contains(got, want) {
			t.Errorf("%s: got %s, want %q", list, got, want)
		}
	}
}
