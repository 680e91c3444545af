package legacy_test

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides"
	"github.com/signalbox-dev/signalbox/overrides/dialect"
	"github.com/signalbox-dev/signalbox/overrides/legacy"
)

// podsOf returns a patch of the pods of a ReplicatedJob.
func podsOf(name string, meta *metav1.ObjectMeta, spec *trainerapi.PodSpecPatch) trainerapi.ReplicatedJobPatch {
	return trainerapi.ReplicatedJobPatch{Name: name, Template: &trainerapi.JobTemplatePatch{
		Spec: &trainerapi.JobSpecPatch{Template: &trainerapi.PodTemplatePatch{Metadata: meta, Spec: spec}}}}
}

// start is the integration's entry of a start.
func start() *trainerapi.RuntimePatch {
	meta := &metav1.ObjectMeta{Labels: map[string]string{"kueue.x-k8s.io/podset": "x"}}
	node := &trainerapi.PodSpecPatch{NodeSelector: map[string]string{"gpu": "a"}, Tolerations: []corev1.Toleration{
		{Key: "gpu", TolerationSeconds: new(int64)}}}
	return &trainerapi.RuntimePatch{
		Manager: overrides.Manager, Time: &metav1.Time{Time: time.Unix(1_700_000_000, 0).UTC()},
		TrainingRuntimeSpec: &trainerapi.TrainingRuntimeSpecPatch{Template: &trainerapi.JobSetTemplatePatch{
			Spec: &trainerapi.JobSetSpecPatch{ReplicatedJobs: []trainerapi.ReplicatedJobPatch{
				podsOf("dataset-initializer", meta, nil), podsOf("node", meta, node)}}}},
	}
}

// TestRecord holds that the integration's elements are found again among the users', and read back as its entry.
func TestRecord(t *testing.T) {
	for _, c := range []struct {
		dialect  *dialect.Dialect
		elements int
		users    string
	}{
		{dialect.Kubeflow21, 2, `podTemplateOverrides: [{targetJobs: [{name: node}], spec: {serviceAccountName: sa}},
  {targetJobs: [{name: node}], metadata: {labels: {a: b}}}]`},
		{dialect.Kubeflow20, 1, `podSpecOverrides: [{targetJobs: [{name: dataset-initializer}], serviceAccountName: sa},
  {targetJobs: [{name: other}], volumes: [{name: v}]}]`},
	} {
		t.Run(c.dialect.Name, func(t *testing.T) {
			job := jobOf(t, c.users)
			if c.dialect.Own(job) != nil {
				t.Fatal("it has none")
			}
			own := start()
			record, err := c.dialect.Record(job, own)
			if err != nil || len(record.Own) != c.elements {
				t.Fatalf("%+v, %v", record, err)
			}
			elements := record.Own
			value, err := record.String()
			if err != nil {
				t.Fatal(err)
			}
			data, err := json.Marshal(job)
			if err != nil {
				t.Fatal(err)
			}
			var object map[string]any
			if err := json.Unmarshal(data, &object); err != nil {
				t.Fatal(err)
			}
			spec := object["spec"].(map[string]any)
			users := spec[c.dialect.Field].([]any)
			spec[c.dialect.Field] = append(append([]any{}, users...), elements...)
			data, err = json.Marshal(object)
			if err != nil {
				t.Fatal(err)
			}
			started := &api.TrainJob{}
			if err := json.Unmarshal(data, started); err != nil {
				t.Fatal(err)
			}
			started.Annotations = map[string]string{legacy.RecordAnnotation: value}
			if got := c.dialect.Own(started); got == nil || !got.Time.Equal(own.Time) ||
				len(overrides.StepsOf(got)) != c.elements {
				t.Errorf("the entry is read back: %+v", got)
			}
			if n := len(c.dialect.Others(started)); n != 2 {
				t.Errorf("%d others, there are 2", n)
			}
			if n := len(c.dialect.Entries(started)); n != 2+c.elements {
				t.Errorf("%d entries", n)
			}
			record.Users = map[string]any{c.dialect.Field: users}
			if got := record.Strip(spec[c.dialect.Field].([]any)); !reflect.DeepEqual(got, users) || record.Rendered(users) ||
				!record.Rendered(spec[c.dialect.Field].([]any)) {
				t.Errorf("the users' are as they were: %v", got)
			}
			if n := len(c.dialect.With(started, *own)); n != 3 {
				t.Errorf("with another of its own there are %d", n)
			}
			cleared := started.DeepCopy()
			if cleared.Annotations[legacy.RecordAnnotation],
				err = (&legacy.Record{Field: c.dialect.Field, Time: own.Time}).String(); err != nil {
				t.Fatal(err)
			}
			if got := c.dialect.Own(cleared); got == nil || got.TrainingRuntimeSpec != nil {
				t.Errorf("one that has run and is cleared has an entry of nothing: %+v", got)
			}
		})
	}
	broken := &api.TrainJob{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{legacy.RecordAnnotation: "{"}}}
	if _, err := legacy.RecordOf(broken); err == nil || !strings.Contains(err.Error(),
		"metadata.annotations[signalbox.dev/overrides]") || !strings.Contains(err.Error(), "delete the TrainJob") {
		t.Errorf("what can't be read is refused with the way out: %v", err)
	}
	if dialect.Kubeflow21.Own(broken) != nil || len(dialect.Kubeflow21.Entries(broken)) != 0 {
		t.Error("what can't be read is nobody's entry")
	}
}

// TestListRecord holds the Record that a start writes for Trainers with lists.
func TestListRecord(t *testing.T) {
	own := start()
	for _, c := range []struct {
		dialect  *dialect.Dialect
		elements int
	}{{dialect.Kubeflow21, 2}, {dialect.Kubeflow20, 1}} {
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
		if got := record.Entry(); got == nil || len(overrides.StepsOf(got)) != c.elements {
			t.Errorf("%s: the Record's entry has its elements: %+v", c.dialect.Name, got)
		}
		broken := &api.TrainJob{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{legacy.RecordAnnotation: "{}"}}}
		if _, err := c.dialect.Record(broken, own); err == nil || !strings.Contains(err.Error(), `its field is ""`) {
			t.Errorf("%s: a broken Record is refused: %v", c.dialect.Name, err)
		}
	}
	if !(&legacy.Record{}).Empty() {
		t.Error("a Record of nothing is empty")
	}
}

// withRecord returns a TrainJob with a Record.
func withRecord(t *testing.T, spec string, record *legacy.Record) *api.TrainJob {
	t.Helper()
	value, err := record.String()
	if err != nil {
		t.Fatal(err)
	}
	job := jobOf(t, spec)
	job.Annotations = map[string]string{legacy.RecordAnnotation: value}
	return job
}

// TestRecordRefuses holds that a Record whose elements can't be read is refused, and that nobody's entries are made of
// it.
func TestRecordRefuses(t *testing.T) {
	for _, value := range []string{
		`{"field": "podTemplateOverrides", "own": [3]}`, `{"field": "podSpecOverrides", "users": {"podSpecOverrides": 3}}`,
		`[]`,
	} {
		job := &api.TrainJob{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{legacy.RecordAnnotation: value}}}
		if record, err := legacy.RecordOf(job); err == nil || record != nil {
			t.Errorf("%s was read as %+v", value, record)
		}
	}
	bad := &legacy.Record{
		Field: legacy.PodTemplateOverrides, Own: []any{func() {}}, Users: map[string]any{"labels": func() {}},
	}
	if _, err := bad.String(); err == nil {
		t.Error("what JSON has no form for was encoded")
	}
	bad.Time = &metav1.Time{}
	if bad.Entry().TrainingRuntimeSpec != nil {
		t.Error("what can't be read makes entries")
	}
}

// TestStrip holds that a users' element that equals one of the integration's belongs to the users.
func TestStrip(t *testing.T) {
	a, b := map[string]any{"x": int64(1)}, map[string]any{"x": 2.0}
	record := &legacy.Record{
		Field: legacy.PodTemplateOverrides, Own: []any{a}, Users: map[string]any{legacy.PodTemplateOverrides: []any{a, b}},
	}
	for _, c := range []struct{ list, want []any }{
		{[]any{a, b, a}, []any{a, b}}, {[]any{a, b}, []any{a, b}}, {[]any{b}, []any{b}}, {nil, []any{}},
	} {
		if got := record.Strip(c.list); !reflect.DeepEqual(got, c.want) {
			t.Errorf("of %v: got %v, want %v", c.list, got, c.want)
		}
	}
}

// reading returns a dialect that reads earlier forms by a reader.
func reading(reader legacy.Reader) *dialect.Dialect {
	return &dialect.Dialect{Traits: dialect.Traits{Name: "a manifest", Field: overrides.RuntimePatches}, Reader: reader}
}

const shapes = `
labels: {of: jobset}
podSpecOverrides: [{targetJobs: [{name: node}], nodeSelector: {x: spec, a: spec}}]
podTemplateOverrides:
- {targetJobs: [{name: node}], metadata: {labels: {l: pod}}, spec: {nodeSelector: {x: pod, b: pod}}}
- {targetJobs: [{name: node}, {name: dataset-initializer}, {name: node}], spec: {nodeSelector: {x: later}}}
templateOverrides:
- manager: a.com/a
  pod:
  - {time: "2026-02-02T00:00:00Z", targetJobs: [{name: node}], spec: {nodeSelector: {x: late},
    terminationGracePeriodSeconds: 3}}
  - {targetJobs: [{name: node}], spec: {nodeSelector: {k: timeless}}}
  - {time: "2026-01-01T00:00:00Z", targetJobs: [{name: node}], spec: {nodeSelector: {x: early, c: early},
    securityContext: {runAsUser: 1}}}
  job: [{time: "2026-01-01T00:00:00Z", targetJobs: [{name: node}], metadata: {labels: {j: job}}},
    {time: "2026-01-02T00:00:00Z", metadata: {annotations: {s: set}}}]
runtimePatches:
- {manager: a.com/a, trainingRuntimeSpec: {template: {spec: {replicatedJobs: [{name: node,
  template: {spec: {template: {spec: {nodeSelector: {x: patch}}}}}}]}}}}
- {manager: kueue.x-k8s.io/manager}
`

func TestDialects(t *testing.T) {
	cases := map[string]struct {
		reason  string
		dialect *dialect.Dialect
		entries int
		want    string // the node selector
	}{
		"bundled": {"every shape of the contract, the guide's replaced, the rest merged", dialect.Bundled, 2 + 5 + 2,
			"map[c:early k:timeless x:patch]"},
		"v2.3": {"patches alone, on the runtime's", dialect.Kubeflow23, 2, "map[x:patch zone:east]"},
		"v2.1": {"what its CRD has, merged strategically", dialect.Kubeflow21, 1 + 2 + 2,
			"map[b:pod x:patch zone:east]"},
		"v2.0": {"what its CRD has", dialect.Kubeflow20, 1 + 1 + 2, "map[a:spec x:patch zone:east]"},
		"a manifest": {"all there is", reading(legacy.Manifests(false)), 1 + 2 + 1 + 5 + 2,
			"map[a:spec c:early k:timeless x:patch]"},
		"a v2.1's manifest": {"all there is, merged strategically", reading(legacy.Manifests(true)), 1 + 2 + 1 + 5 + 2,
			"map[a:spec b:pod c:early k:timeless x:patch zone:east]"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			job := jobOf(t, shapes)
			entries := c.dialect.Entries(job)
			if len(entries) != c.entries {
				t.Errorf("%s: %d entries", c.reason, len(entries))
			}
			if n := len(c.dialect.Others(job)); n != c.entries-1 {
				t.Errorf("the integration's is not another's: %d", n)
			}
			rt := must[trainerapi.TrainingRuntimeSpec](t, torchRuntime)
			e, err := c.dialect.Compute(job, &rt, entries)
			if err != nil {
				t.Fatal(err)
			}
			if got := fmt.Sprint(e.ReplicatedJob("node").Template.Spec.Template.Spec.NodeSelector); got != c.want {
				t.Errorf("%s: got %s, want %s", c.reason, got, c.want)
			}
		})
	}
}
