package overrides

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides/pipeline"
)

// dialects are all that there are.
func dialects() []*Dialect {
	return []*Dialect{Bundled, Kubeflow23, Kubeflow22, Kubeflow21, Kubeflow20}
}

// reading returns a dialect that reads earlier forms by a reader.
func reading(reader Reader) *Dialect {
	return &Dialect{Traits: Traits{Name: "a manifest", Field: RuntimePatches}, Reader: reader}
}

// TestDialectValues holds what each dialect is asked for, and that those with other rules don't share a key of a Memo.
func TestDialectValues(t *testing.T) {
	want := []string{
		"the bundled Trainer runtimePatches keyed=true counts=true snapshots=false",
		"Kubeflow Trainer v2.3 runtimePatches keyed=true counts=true snapshots=true",
		"Kubeflow Trainer v2.2 runtimePatches keyed=true counts=true snapshots=false",
		"Kubeflow Trainer v2.1 podTemplateOverrides keyed=false counts=true snapshots=false",
		"Kubeflow Trainer v2.0 podSpecOverrides keyed=false counts=false snapshots=false",
	}
	keys := map[key]pipeline.Rules{}
	for i, d := range dialects() {
		got := fmt.Sprintf("%s %s keyed=%v counts=%v snapshots=%v", d.Name, d.Field, d.Keyed(), d.CountsJobs,
			d.Snapshots)
		if got != want[i] {
			t.Errorf("got %s, want %s", got, want[i])
		}
		for j, other := range dialects() {
			if (d == other) != (i == j) {
				t.Errorf("%s == %s is %v", d.Name, other.Name, d == other)
			}
		}
		shared, own, err := keysOf(d.Rules, &api.TrainJob{}, &trainerapi.TrainingRuntimeSpec{}, nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, k := range []key{shared, own} {
			if other, found := keys[k]; found && other != d.Rules {
				t.Errorf("%s shares a key with %+v", d.Name, other)
			}
			keys[k] = d.Rules
		}
	}
}

// TestKeyedOwn holds where the integration's entry is among runtimePatches.
func TestKeyedOwn(t *testing.T) {
	job := jobOf(t, "runtimePatches: [{manager: kueue.x-k8s.io/manager}, {manager: a.com/a}]")
	own := start()
	for _, d := range []*Dialect{Bundled, Kubeflow23, reading(Manifests(false))} {
		if with := d.With(job, *own); len(with) != 2 || with[0].Patch != own.TrainingRuntimeSpec ||
			with[1].Manager != "a.com/a" {
			t.Errorf("%s: the entry is written in its place: %v", d.Name, with)
		}
		if with := d.With(&api.TrainJob{}, *own); len(with) != 1 || with[0].Manager != Manager {
			t.Errorf("%s: the entry is added: %v", d.Name, with)
		}
		if record, err := d.Record(job, own); record != nil || err != nil {
			t.Errorf("%s: a keyed entry needs no Record: %v, %v", d.Name, record, err)
		}
		if d.Own(job) != &job.Spec.RuntimePatches[0] || d.Own(&api.TrainJob{}) != nil {
			t.Errorf("%s: the entry is found by its manager", d.Name)
		}
	}
}

// TestListRecord holds the Record that a start writes for Trainers with lists.
func TestListRecord(t *testing.T) {
	own := start()
	for _, c := range []struct {
		dialect  *Dialect
		elements int
	}{{Kubeflow21, 2}, {Kubeflow20, 1}} {
		record, err := c.dialect.Record(&api.TrainJob{}, own)
		if err != nil || record.Field != c.dialect.Field || len(record.Own) != c.elements || !record.Time.Equal(own.Time) {
			t.Fatalf("%s: got %+v, %v", c.dialect.Name, record, err)
		}
		record.Users = map[string]any{c.dialect.Field: []any{}}
		job := withRecord(t, "{}", record)
		again, err := c.dialect.Record(job, &trainerapi.RuntimePatch{})
		if err != nil || again.Users == nil || len(again.Own) != 0 || again.Time != nil || again.Empty() {
			t.Errorf("%s: the users' elements are kept: %+v, %v", c.dialect.Name, again, err)
		}
		if got := record.Entry(); got == nil || len(StepsOf(got)) != c.elements {
			t.Errorf("%s: the Record's entry has its elements: %+v", c.dialect.Name, got)
		}
		broken := &api.TrainJob{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{RecordAnnotation: "{}"}}}
		if _, err := c.dialect.Record(broken, own); err == nil || !strings.Contains(err.Error(), `its field is ""`) {
			t.Errorf("%s: a broken Record is refused: %v", c.dialect.Name, err)
		}
	}
	if !(&Record{}).Empty() {
		t.Error("a Record of nothing is empty")
	}
}

// withRecord returns a TrainJob with a Record.
func withRecord(t *testing.T, spec string, record *Record) *api.TrainJob {
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
	if bad.entries(bad.Users) != nil || bad.Time == nil && bad.Entry() != nil {
		t.Error("what can't be read makes entries")
	}
}

// TestStrip holds that a users' element that equals one of the integration's belongs to the users.
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
		c, err := Convert(Guide, lists)
		if err != nil {
			t.Fatal(err)
		}
		got := fmt.Sprint(CheckTransition(Changed(before, after), before, after, nil).ToAggregate(), c.Depends)
		if i == 0 {
			first = got
		}
		if got != first || !strings.Contains(got, "the entry of a.com/a, b.com/b, c.com/c, d.com/d, e.com/e, f.com/f") {
			t.Fatalf("got %s, and before %s", got, first)
		}
	}
	if c, err := Convert(Guide, lists); err != nil || len(c.Depends) != 7 {
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
			path := cmp.Or(Changed(before, after), ChangedForm(before, after))
			errs := CheckTransition(path, before, after, nil)
			if (path != nil) != (c.want != "") || !strings.Contains(fmt.Sprint(errs.ToAggregate()), c.want) {
				t.Errorf("got %v, want %q", errs, c.want)
			}
		})
	}
}

func TestNodeGroup(t *testing.T) {
	cases := map[string]struct {
		reason, runtime string
		want            []string
	}{
		"launcher as a node": {"both are nodes", mpiRuntime, []string{"launcher", "node"}},
		"launcher apart": {"it is no node",
			strings.Replace(mpiRuntime, "runLauncherAsNode: true", "runLauncherAsNode: false", 1), nil},
		"no workers": {"there is one ReplicatedJob",
			strings.Replace(mpiRuntime, "name: node\n      replicas", "name: w\n      replicas", 1), nil},
		"torch":     {"one ReplicatedJob has all nodes", torchRuntime, nil},
		"no policy": {"there are no nodes", plainRuntime(""), nil},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			rt := must[trainerapi.TrainingRuntimeSpec](t, c.runtime)
			e, err := Bundled.Compute(jobOf(t, "{}"), &rt, nil)
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(e.NodeGroup, c.want) {
				t.Errorf("%s: got %v", c.reason, e.NodeGroup)
			}
		})
	}
}
