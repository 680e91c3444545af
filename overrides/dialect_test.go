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
	"sigs.k8s.io/yaml"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

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
		dialect *Dialect
		entries int
		want    string // the node selector
	}{
		"bundled": {"every shape of the contract, the guide's replaced, the rest merged", Bundled, 2 + 5 + 2,
			"map[c:early k:timeless x:patch]"},
		"v2.3": {"patches alone, on the runtime's", Kubeflow23, 2, "map[x:patch zone:east]"},
		"v2.1": {"what its CRD has, merged strategically", Kubeflow21, 1 + 2 + 2,
			"map[b:pod x:patch zone:east]"},
		"v2.0": {"what its CRD has", Kubeflow20, 1 + 1 + 2, "map[a:spec x:patch zone:east]"},
		"a manifest": {"all there is", reading(Manifests(false)), 1 + 2 + 1 + 5 + 2,
			"map[a:spec c:early k:timeless x:patch]"},
		"a v2.1's manifest": {"all there is, merged strategically", reading(Manifests(true)), 1 + 2 + 1 + 5 + 2,
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
