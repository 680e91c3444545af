package overrides

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// dialects are all that there are.
func dialects() []Dialect {
	return []Dialect{Bundled, Kubeflow23, Kubeflow22, Kubeflow21, Kubeflow20, Manifests(false), Manifests(true)}
}

// TestDialectValues holds what each kind is asked for, and that no two dialects are equal or share a key of a Memo.
func TestDialectValues(t *testing.T) {
	want := []string{
		"the bundled Trainer runtimePatches keyed=true counts=true snapshots=false",
		"Kubeflow Trainer v2.3 runtimePatches keyed=true counts=true snapshots=true",
		"Kubeflow Trainer v2.2 runtimePatches keyed=true counts=true snapshots=false",
		"Kubeflow Trainer v2.1 podTemplateOverrides keyed=false counts=true snapshots=false",
		"Kubeflow Trainer v2.0 podSpecOverrides keyed=false counts=false snapshots=false",
		"a manifest runtimePatches keyed=true counts=false snapshots=false",
		"a manifest of Kubeflow Trainer v2.1 runtimePatches keyed=true counts=false snapshots=false",
	}
	keys := map[key]string{}
	for i, d := range dialects() {
		got := fmt.Sprintf("%s %s keyed=%v counts=%v snapshots=%v", d.Name(), d.Field(), d.Keyed(), d.CountsJobs(),
			d.Snapshots())
		if got != want[i] {
			t.Errorf("got %s, want %s", got, want[i])
		}
		for j, other := range dialects() {
			if (d == other) != (i == j) {
				t.Errorf("%s == %s is %v", d.Name(), other.Name(), d == other)
			}
		}
		shared, own, err := keysOf(d, &api.TrainJob{}, &trainerapi.TrainingRuntimeSpec{}, nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, k := range []key{shared, own} {
			if other, found := keys[k]; found {
				t.Errorf("%s shares a key with %s", d.Name(), other)
			}
			keys[k] = d.Name()
		}
	}
}

// TestKeyedOwn holds where the integration's entry is among runtimePatches.
func TestKeyedOwn(t *testing.T) {
	job := jobOf(t, "runtimePatches: [{manager: kueue.x-k8s.io/manager}, {manager: a.com/a}]")
	own := start()
	for _, d := range []Dialect{Bundled, Kubeflow23, Manifests(false)} {
		if with := d.With(job, *own); len(with) != 2 || with[0].Patch != own.TrainingRuntimeSpec ||
			with[1].Manager != "a.com/a" {
			t.Errorf("%s: the entry is written in its place: %v", d.Name(), with)
		}
		if with := d.With(&api.TrainJob{}, *own); len(with) != 1 || with[0].Manager != Manager {
			t.Errorf("%s: the entry is added: %v", d.Name(), with)
		}
		if record, err := d.Record(job, own); record != nil || err != nil {
			t.Errorf("%s: a keyed entry needs no Record: %v, %v", d.Name(), record, err)
		}
		if d.Own(job) != &job.Spec.RuntimePatches[0] || d.Own(&api.TrainJob{}) != nil {
			t.Errorf("%s: the entry is found by its manager", d.Name())
		}
		needs := Needs{Metadata: "a check", Placement: true}
		if u := d.Uncarried(Bundled.Entries(job), own.TrainingRuntimeSpec.Template.Spec.ReplicatedJobs[0], needs); u != nil {
			t.Errorf("%s: an entry holds everything: %v", d.Name(), u)
		}
	}
}

// TestListRecord holds the Record that a start writes for Trainers with lists.
func TestListRecord(t *testing.T) {
	own := start()
	for _, c := range []struct {
		dialect  Dialect
		elements int
	}{{Kubeflow21, 2}, {Kubeflow20, 1}} {
		record, err := c.dialect.Record(&api.TrainJob{}, own)
		if err != nil || record.Field != c.dialect.Field() || len(record.Own) != c.elements || !record.Time.Equal(own.Time) {
			t.Fatalf("%s: got %+v, %v", c.dialect.Name(), record, err)
		}
		record.Users = map[string]any{c.dialect.Field(): []any{}}
		job := recorded(t, "{}", record)
		again, err := c.dialect.Record(job, &trainerapi.RuntimePatch{})
		if err != nil || again.Users == nil || len(again.Own) != 0 || again.Time != nil || again.Empty() {
			t.Errorf("%s: the users' elements are kept: %+v, %v", c.dialect.Name(), again, err)
		}
		if got := record.Entry(job); got == nil || len(replicatedJobsOf(got)) != c.elements {
			t.Errorf("%s: the Record's entry has its elements: %+v", c.dialect.Name(), got)
		}
		broken := &api.TrainJob{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{RecordAnnotation: "{}"}}}
		if _, err := c.dialect.Record(broken, own); err == nil || !strings.Contains(err.Error(), `its field is ""`) {
			t.Errorf("%s: a broken Record is refused: %v", c.dialect.Name(), err)
		}
	}
	if !(&Record{}).Empty() {
		t.Error("a Record of nothing is empty")
	}
}

// recorded returns a TrainJob with a Record.
func recorded(t *testing.T, spec string, record *Record) *api.TrainJob {
	t.Helper()
	value, err := record.String()
	if err != nil {
		t.Fatal(err)
	}
	job := jobOf(t, spec)
	job.Annotations = map[string]string{RecordAnnotation: value}
	return job
}

// TestRecordRefuses holds that a Record whose elements can't be read is refused, and that nobody's entries are made of
// it.
func TestRecordRefuses(t *testing.T) {
	for _, value := range []string{
		`{"field": "podTemplateOverrides", "own": [3]}`, `{"field": "podSpecOverrides", "users": {"podSpecOverrides": 3}}`,
		`[]`,
	} {
		job := &api.TrainJob{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{RecordAnnotation: value}}}
		if record, err := RecordOf(job); err == nil || record != nil {
			t.Errorf("%s was read as %+v", value, record)
		}
	}
	bad := &Record{Field: PodTemplateOverrides, Own: []any{func() {}}, Users: map[string]any{"labels": func() {}}}
	if _, err := bad.String(); err == nil || bad.check() == nil {
		t.Error("what JSON has no form for was encoded")
	}
	if bad.entries(bad.Users) != nil || Kubeflow21.(*unkeyed).read(&api.TrainJob{}, bad.Own) != nil {
		t.Error("what can't be read makes entries")
	}
}

// TestStrip holds that an element of the users' that equals one of the integration's is theirs.
func TestStrip(t *testing.T) {
	a, b := map[string]any{"x": int64(1)}, map[string]any{"x": 2.0}
	record := &Record{Field: PodTemplateOverrides, Own: []any{a}, Users: map[string]any{PodTemplateOverrides: []any{a, b}}}
	for _, c := range []struct{ list, want []any }{
		{[]any{a, b, a}, []any{a, b}}, {[]any{a, b}, []any{a, b}}, {[]any{b}, []any{b}}, {nil, []any{}},
	} {
		if got := record.Strip(c.list); !reflect.DeepEqual(got, c.want) {
			t.Errorf("of %v: got %v, want %v", c.list, got, c.want)
		}
	}
}

func TestUncarried(t *testing.T) {
	job := jobOf(t, "podSpecOverrides: [{targetJobs: [{name: node}], serviceAccountName: sa}]")
	others := Kubeflow20.Others(job)
	patch := func(name string) trainerapi.ReplicatedJobPatch { return trainerapi.ReplicatedJobPatch{Name: name} }
	for name, c := range map[string]struct {
		reason  string
		dialect Dialect
		job     string
		needs   Needs
		want    *Uncarried
	}{
		"v2.1": {"its list holds all", Kubeflow21, "node", Needs{"a check", true}, nil},
		"v2.0, metadata": {"its list has none", Kubeflow20, "other", Needs{"a check", true}, &Uncarried{
			Path: "spec.podSpecOverrides", Says: "without labels and annotations of pods, in Kubeflow Trainer v2.0",
			Needs: "labels or annotations on the pods of other", Source: "a check",
			WayOut: "upgrade Kubeflow Trainer to v2.1 or later, or queue the TrainJob where they are not needed",
		}},
		"v2.0, a user's element": {"it names a ReplicatedJob once", Kubeflow20, "node", Needs{"", true}, &Uncarried{
			Path: "spec.podSpecOverrides[0]", Says: "for replicatedJob node",
			Needs: "one element for each replicatedJob, and admission writes it", Source: "Kubeflow Trainer v2.0",
			WayOut: "move what it says to the runtime, or upgrade Kubeflow Trainer to v2.1 or later",
		}},
		"v2.0, nothing needed":    {"the user's element may stay", Kubeflow20, "node", Needs{}, nil},
		"v2.0, another's element": {"it is for another ReplicatedJob", Kubeflow20, "other", Needs{"", true}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			if got := c.dialect.Uncarried(others, patch(c.job), c.needs); !reflect.DeepEqual(got, c.want) {
				t.Errorf("%s: got %+v, want %+v", c.reason, got, c.want)
			}
		})
	}
	if (Entry{}).Targets("node") {
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
		dialect            Dialect
		spec, record, want string
	}{
		"an entry": {Kubeflow23, "{}", v21, removed + "," + added},
		"an entry before": {Kubeflow23, "runtimePatches: [{manager: a.com/a}]", v21, removed +
			`,{"op":"add","path":"/spec/runtimePatches/0","value":` + entry + `}`},
		"converted by a user": {Kubeflow23, "runtimePatches: [{manager: signalbox.dev/converted}]", v21, removed},
		"nothing":             {Kubeflow22, "{}", empty, removed},
		"the same list": {Bundled, "podTemplateOverrides: [" + element + "]", v21, removed +
			`,{"op":"remove","path":"/spec/podTemplateOverrides"},` + added},
		"an edited list": {Bundled, "podTemplateOverrides: [" + other + "]", v21, removed +
			`,{"op":"replace","path":"/spec/podTemplateOverrides","value":[` + other + `]}`},
		"of v2.0": {Bundled, "{}", v20, removed + "," + added},
		"v2.0 to v2.1": {Kubeflow21, "{}", v20, `{"op":"add","path":"/spec/podTemplateOverrides","value":[` +
			element + `]},` + recordOperation(sorted)},
		"v2.1 to v2.0, no use": {Kubeflow20, "{}", empty,
			recordOperation(`{\"field\":\"podSpecOverrides\",\"users\":{\"podSpecOverrides\":null}}`)},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			record := must[Record](t, c.record)
			job := recorded(t, c.spec, &record)
			m, err := c.dialect.Migrate(job, &record, metav1.Date(2026, 1, 1, 0, 0, 0, 0, metav1.Now().UTC().Location()))
			if err != nil {
				t.Fatal(err)
			}
			operations, err := m.Operations(job)
			if err != nil {
				t.Fatal(err)
			}
			got, err := json.Marshal(operations)
			if err != nil {
				t.Fatal(err)
			}
			if !sameJSON(json.RawMessage(got), json.RawMessage("["+c.want+"]")) {
				t.Errorf("got %s, want [%s]", got, c.want)
			}
		})
	}
}

func recordOperation(value string) string {
	return `{"op":"replace","path":"/metadata/annotations/signalbox.dev~1overrides","value":"` + value + `"}`
}

// TestMigrateRefuses holds the texts of migrations that can't be done.
func TestMigrateRefuses(t *testing.T) {
	users := must[Record](t, `{field: podTemplateOverrides, users: {podTemplateOverrides: [{targetJobs: [{name: node}],
  spec: {serviceAccountName: sa}}]}}`)
	var patches []string
	for i := range MaxEntries {
		patches = append(patches, fmt.Sprintf("{manager: a.com/m%d}", i))
	}
	full := jobOf(t, "runtimePatches: ["+strings.Join(patches, ", ")+"]")
	bad := &Record{Field: PodSpecOverrides, Users: map[string]any{"labels": func() {}}}
	for name, c := range map[string]struct {
		dialect Dialect
		job     *api.TrainJob
		record  *Record
		want    string
	}{
		"to v2.0": {Kubeflow20, &api.TrainJob{}, &users,
			"what was said in spec.podTemplateOverrides can't be said to Kubeflow Trainer v2.0; " +
				"upgrade Kubeflow Trainer, or delete the TrainJob and create it anew"},
		"full": {Kubeflow23, full, &users, "what was said in spec.podTemplateOverrides needs an entry of " +
			"spec.runtimePatches, which has 16 already; take one out"},
		"unreadable": {Kubeflow21, &api.TrainJob{}, bad, "reading annotation signalbox.dev/overrides: "},
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
	record := must[Record](t, `{field: podTemplateOverrides, own: [{targetJobs: [{name: node}],
  spec: {nodeSelector: {gpu: a}}}], users: {podTemplateOverrides: []}}`)
	job := recorded(t, `podTemplateOverrides: [{targetJobs: [{name: node}], spec: {serviceAccountName: sa}},
  {targetJobs: [{name: node}], spec: {nodeSelector: {gpu: a}}}]`, &record)
	for _, d := range []Dialect{Bundled, Manifests(false), Manifests(true)} {
		entries := d.Entries(job)
		if len(entries) != 1 ||
			entries[0].Patch.Template.Spec.ReplicatedJobs[0].Template.Spec.Template.Spec.ServiceAccountName == nil {
			t.Errorf("%s: got %+v, want the user's element alone", d.Name(), entries)
		}
	}
}

// TestFrozen holds that errors have the order of the fields, whatever the order of a map.
func TestFrozen(t *testing.T) {
	before := jobOf(t, "{}")
	after := jobOf(t, "{initializer: {}, trainer: {numNodes: 2}, activeDeadlineSeconds: 3, managedBy: a.com/b}")
	after.Spec.RuntimeRef.Name = "other"
	for range 100 {
		errs, changed := CheckFrozen(before, after)
		var fields []string
		for _, e := range errs {
			fields = append(fields, e.Field)
		}
		got := strings.Join(fields, " ")
		if want := "spec.runtimeRef spec.initializer spec.trainer spec.activeDeadlineSeconds spec.managedBy"; got != want ||
			!changed {
			t.Fatalf("got %s, want %s", got, want)
		}
	}
	before.Spec.Suspend, after.Spec.Suspend = ptr.To(true), ptr.To(true)
	if errs, changed := CheckFrozen(before, after); len(errs) > 0 || !changed {
		t.Errorf("a suspended TrainJob may change: %v", errs)
	}
}

// TestOrder holds that texts of several parts are the same however often they are made.
func TestOrder(t *testing.T) {
	before := jobOf(t, "runtimePatches: [{manager: a.com/a}, {manager: b.com/b}, {manager: c.com/c}]")
	after := jobOf(t, "runtimePatches: [{manager: d.com/d}, {manager: e.com/e}, {manager: f.com/f}]")
	lists := jobOf(t, `podTemplateOverrides: [{targetJobs: [{name: node}], spec: {nodeSelector: {a: b}, affinity: {},
  schedulingGates: [{name: g}],
  imagePullSecrets: [{name: s}], volumes: [{name: v}], containers: [{name: c, env: [{name: A}],
    volumeMounts: [{name: v, mountPath: /v}]}]}}]`)
	var first string
	for i := range 100 {
		c, err := Convert(Bundled, lists)
		if err != nil {
			t.Fatal(err)
		}
		got := fmt.Sprint(CheckTransition(before, after, nil).ToAggregate(), c.Depends)
		if i == 0 {
			first = got
		}
		if got != first || !strings.Contains(got, "the entry of a.com/a, b.com/b, c.com/c, d.com/d, e.com/e, f.com/f") {
			t.Fatalf("got %s, and before %s", got, first)
		}
	}
	if c, err := Convert(Bundled, lists); err != nil || len(c.Depends) != 7 {
		t.Errorf("each field that is replaced is named: %v, %v", c, err)
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
			errs := CheckTransition(before, after, nil)
			if Changed(before, after) != (c.want != "") || !strings.Contains(fmt.Sprint(errs.ToAggregate()), c.want) {
				t.Errorf("got %v, want %q", errs, c.want)
			}
		})
	}
}

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
		"nothing": {"podTemplateOverrides: [{targetJobs: [{name: node}]}]", "", "", "says nothing of what may be changed",
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

// TestDefaults holds the defaults that the runtimes' CRD sets and Trainer's plugins need.
func TestDefaults(t *testing.T) {
	rt := must[trainerapi.TrainingRuntimeSpec](t, torchRuntime)
	for _, policy := range []string{"{coscheduling: {}}", "{volcano: {networkTopology: {}}}"} {
		rt.PodGroupPolicy = ptr.To(must[trainerapi.PodGroupPolicy](t, policy))
		info, err := Bundled.Prepare((&api.TrainJob{}).Upstream(), &rt, nil)
		if err != nil {
			t.Fatal(err)
		}
		p := info.RuntimePolicy.PodGroupPolicy
		if p.Coscheduling != nil && ptr.Deref(p.Coscheduling.ScheduleTimeoutSeconds, 0) != 60 ||
			p.Volcano != nil && ptr.Deref(p.Volcano.NetworkTopology.HighestTierAllowed, 0) != 1 {
			t.Errorf("got %+v without the defaults", p)
		}
	}
}

// TestResourcesRefused holds that resources that can't be merged are refused.
func TestResourcesRefused(t *testing.T) {
	policy := &trainerapi.MLPolicy{}
	job := &trainerapi.TrainJob{}
	job.Spec.Trainer = &trainerapi.Trainer{ResourcesPerNode: &corev1.ResourceRequirements{}}
	jobs := must[[]jobset.ReplicatedJob](
		t, `[{name: node, template: {metadata: {labels: {trainer.kubeflow.org/trainjob-ancestor-step: trainer}},
  spec: {template: {spec: {containers: [{name: node}]}}}}}]`)
	failing := &assembly{isNode: isNode, resources: func(have, _ corev1.ResourceRequirements) (corev1.ResourceRequirements,
		error) {
		return have, fmt.Errorf("no")
	}}
	if err := failing.setResourcesPerNode(job, policy, jobs); err == nil ||
		!strings.Contains(err.Error(), "spec.trainer.resourcesPerNode") {
		t.Errorf("got %v, want the field", err)
	}
}

// TestNilMemo holds that a nil Memo computes each time, and that a runtime that can't be computed is refused by any.
func TestNilMemo(t *testing.T) {
	rt := must[trainerapi.TrainingRuntimeSpec](t, torchRuntime)
	e, err := (*Memo)(nil).Compute(Bundled, &api.TrainJob{}, &rt, nil)
	if err != nil || len(e.ReplicatedJobs) == 0 {
		t.Errorf("got %v, %v", e, err)
	}
}
