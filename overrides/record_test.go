package overrides

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
)

func start() *trainerapi.RuntimePatch {
	own := trainerapi.RuntimePatch{Manager: Manager, Time: &metav1.Time{Time: time.Unix(1_700_000_000, 0).UTC()}}
	own.TrainingRuntimeSpec = forPods([]api.TargetJob{{Name: "dataset-initializer"}, {Name: "node"}},
		&metav1.ObjectMeta{Labels: map[string]string{"kueue.x-k8s.io/podset": "x"}}, nil)
	own.TrainingRuntimeSpec.Template.Spec.ReplicatedJobs[1].Template.Spec.Template.Spec = &trainerapi.PodSpecPatch{
		NodeSelector: map[string]string{"gpu": "a"}, Tolerations: []corev1.Toleration{
			{Key: "gpu", TolerationSeconds: new(int64)}}}
	return &own
}

// TestRecord holds that the integration's elements are found again among the users', and read back as its entry.
func TestRecord(t *testing.T) {
	for _, c := range []struct {
		dialect  *Dialect
		elements int
		users    string
	}{
		{Kubeflow21, 2, `podTemplateOverrides: [{targetJobs: [{name: node}], spec: {serviceAccountName: sa}},
  {targetJobs: [{name: node}], metadata: {labels: {a: b}}}]`},
		{Kubeflow20, 1, `podSpecOverrides: [{targetJobs: [{name: dataset-initializer}], serviceAccountName: sa},
  {targetJobs: [{name: other}], volumes: [{name: v}]}]`},
	} {
		t.Run(c.dialect.Name, func(t *testing.T) {
			job := jobOf(t, c.users)
			if c.dialect.Own(job) != nil {
				t.Fatal("it has none")
			}
			own := start()
			elements, err := c.dialect.List.elements(own)
			if err != nil || len(elements) != c.elements {
				t.Fatalf("%d elements, %v", len(elements), err)
			}
			value, err := (&Record{Field: c.dialect.Field, Time: own.Time, Own: elements}).String()
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
			started.Annotations = map[string]string{RecordAnnotation: value}
			if got := c.dialect.Own(started); got == nil || !got.Time.Equal(own.Time) ||
				len(StepsOf(got)) != c.elements {
				t.Errorf("the entry is read back: %+v", got)
			}
			if n := len(c.dialect.Others(started)); n != 2 {
				t.Errorf("%d others, there are 2", n)
			}
			if n := len(c.dialect.Entries(started)); n != 2+c.elements {
				t.Errorf("%d entries", n)
			}
			if got := Without(spec[c.dialect.Field].([]any), elements); !reflect.DeepEqual(got, users) {
				t.Errorf("the users' are as they were: %v", got)
			}
			if n := len(c.dialect.With(started, *own)); n != 3 {
				t.Errorf("with another of its own there are %d", n)
			}
			cleared := started.DeepCopy()
			if cleared.Annotations[RecordAnnotation],
				err = (&Record{Field: c.dialect.Field, Time: own.Time}).String(); err != nil {
				t.Fatal(err)
			}
			if got := c.dialect.Own(cleared); got == nil || got.TrainingRuntimeSpec != nil {
				t.Errorf("one that has run and is cleared has an entry of nothing: %+v", got)
			}
		})
	}
	broken := &api.TrainJob{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{RecordAnnotation: "{"}}}
	if _, err := RecordOf(broken); err == nil || !strings.Contains(err.Error(),
		"metadata.annotations[signalbox.dev/overrides]") || !strings.Contains(err.Error(), "delete the TrainJob") {
		t.Errorf("what can't be read is refused with the way out: %v", err)
	}
	if Kubeflow21.Own(broken) != nil || len(Kubeflow21.Entries(broken)) != 0 {
		t.Error("what can't be read is nobody's entry")
	}
}

// TestGuide holds the table of the operator guide: what is replaced, and what is merged by name.
func TestGuide(t *testing.T) {
	const runtime = `
template: {spec: {replicatedJobs: [{name: node, replicas: 1, template: {spec: {template: {spec: {
  affinity: {nodeAffinity: {}}, schedulingGates: [{name: r}], imagePullSecrets: [{name: r}], tolerations: [{key: r}],
  volumes: [{name: v, hostPath: {path: /r}}, {name: w, emptyDir: {}}],
  containers: [{name: side, env: [{name: A, value: r}, {name: B, value: r}], volumeMounts: [{name: v, mountPath: /v,
    subPath: r}, {name: w, mountPath: /w}, {name: w, mountPath: /same, readOnly: true}]}]}}}}}]}}
`
	const override = `podTemplateOverrides: [{targetJobs: [{name: node}], spec: {
  affinity: {podAffinity: {}}, schedulingGates: [{name: o}], imagePullSecrets: [{name: o}], tolerations: [{key: o}],
    volumes: [{name: v, emptyDir: {}}],
  containers: [{name: side, env: [{name: A, valueFrom: {fieldRef: {fieldPath: metadata.name}}}],
    volumeMounts: [{name: v, mountPath: /elsewhere}, {name: v, mountPath: /same}]}]}}]`
	rt := must[trainerapi.TrainingRuntimeSpec](t, runtime)
	job := jobOf(t, override)
	e, err := Bundled.Compute(job, &rt, Bundled.Entries(job))
	if err != nil {
		t.Fatal(err)
	}
	pod := e.ReplicatedJobs[0].Template.Spec.Template.Spec
	side := findContainer(pod.Containers, "side")
	if pod.Affinity.NodeAffinity != nil || pod.Affinity.PodAffinity == nil {
		t.Errorf("affinity is replaced: %v", pod.Affinity)
	}
	if fmt.Sprint(pod.SchedulingGates, pod.ImagePullSecrets) != "[{o}] [{o}]" || len(pod.Tolerations) != 1 ||
		pod.Tolerations[0].Key != "o" {
		t.Errorf("gates, secrets and tolerations are replaced: %v %v %v", pod.SchedulingGates, pod.ImagePullSecrets,
			pod.Tolerations)
	}
	if len(pod.Volumes) != 2 || pod.Volumes[0].EmptyDir == nil || pod.Volumes[0].HostPath != nil {
		t.Errorf("a volume of the same name is overridden, in its place: %v", pod.Volumes)
	}
	if len(side.Env) != 2 || side.Env[0].Value != "" || side.Env[0].ValueFrom == nil || side.Env[1].Value != "r" {
		t.Errorf("a variable of the same name is overridden, in its place: %v", side.Env)
	}
	want := []corev1.VolumeMount{{Name: "w", MountPath: "/w"}, {Name: "v", MountPath: "/same"},
		{Name: "v", MountPath: "/elsewhere"}}
	for _, m := range want {
		found := false
		for _, have := range side.VolumeMounts {
			found = found || have == m
		}
		if !found || len(side.VolumeMounts) != len(want) {
			t.Errorf("mounts of the same path, or of the same volume, are replaced: %v lacks %v", side.VolumeMounts, m)
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
