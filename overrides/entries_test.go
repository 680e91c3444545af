package overrides_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides"
	"github.com/signalbox-dev/signalbox/overrides/dialect"
)

func entries(t testing.TB, text string) []trainerapi.RuntimePatch {
	return must[[]trainerapi.RuntimePatch](t, text)
}

func podEntry(manager, pod string) string {
	return fmt.Sprintf(`{manager: %s, trainingRuntimeSpec: {template: {spec: {replicatedJobs: [{name: node,
  template: {spec: {template: %s}}}]}}}}`, manager, pod)
}

func TestComputeMergesEntries(t *testing.T) {
	cases := map[string]struct {
		reason  string
		entries []string
		check   func(corev1.PodTemplateSpec) string
	}{
		"maps": {
			"labels and node selectors are merged by key, the later entry wins",
			[]string{podEntry("a.com/a", `{metadata: {labels: {x: a, z: a}}, spec: {nodeSelector: {gpu: a100}}}`),
				podEntry("b.com/b", `{metadata: {labels: {x: b}}}`)},
			func(p corev1.PodTemplateSpec) string {
				return fmt.Sprintf("%v %v", p.Labels, p.Spec.NodeSelector)
			},
		},
		"tolerations": {
			"tolerations are replaced as a whole: the last list stands",
			[]string{podEntry("a.com/a", `{spec: {tolerations: [{key: a, operator: Exists}]}}`),
				podEntry("b.com/b", `{spec: {tolerations: [{key: b, operator: Exists}]}}`)},
			func(p corev1.PodTemplateSpec) string {
				return fmt.Sprintf("%d %s", len(p.Spec.Tolerations), p.Spec.Tolerations[0].Key)
			},
		},
		"gates": {
			"gates are merged by name",
			[]string{podEntry("a.com/a", `{spec: {schedulingGates: [{name: a}]}}`),
				podEntry("b.com/b", `{spec: {schedulingGates: [{name: b}]}}`)},
			func(p corev1.PodTemplateSpec) string { return fmt.Sprint(len(p.Spec.SchedulingGates)) },
		},
		"containers": {
			"a container's environment is merged by name",
			[]string{podEntry("a.com/a", `{spec: {containers: [{name: sidecar, env: [{name: A, value: a}]}]}}`),
				podEntry("b.com/b", `{spec: {containers: [{name: sidecar, env: [{name: A, value: b}, {name: B, value: b}]}]}}`)},
			func(p corev1.PodTemplateSpec) string {
				env := map[string]string{}
				for _, e := range container(p.Spec.Containers, "sidecar").Env {
					env[e.Name] = e.Value
				}
				return fmt.Sprintf("%v %d", env, len(p.Spec.Containers))
			},
		},
		"an entry of nothing": {
			"an entry without patches changes nothing",
			[]string{`{manager: a.com/a}`},
			func(p corev1.PodTemplateSpec) string { return fmt.Sprint(p.Labels) },
		},
	}
	want := map[string]string{
		"maps": "map[from:runtime x:b z:a] map[gpu:a100 zone:east]", "tolerations": "1 b", "gates": "2",
		"containers": "map[A:b B:b] 2", "an entry of nothing": "map[from:runtime]",
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			rt := must[trainerapi.TrainingRuntimeSpec](t, torchRuntime)
			e, err := dialect.Bundled.Compute(&api.TrainJob{}, &rt, listed(entries(t, "["+strings.Join(c.entries, ",")+"]")))
			if err != nil {
				t.Fatal(err)
			}
			if got := c.check(e.ReplicatedJob("node").Template.Spec.Template); got != want[name] {
				t.Errorf("%s: got %s, want %s", c.reason, got, want[name])
			}
			if e.ReplicatedJobs[0].Name != "dataset-initializer" {
				t.Error("the order of ReplicatedJobs is the runtime's")
			}
		})
	}
}

func TestEntries(t *testing.T) {
	job := &api.TrainJob{Spec: api.TrainJobSpec{TrainJobSpec: trainerapi.TrainJobSpec{
		RuntimePatches: entries(t, `[{manager: a.com/a}, {manager: kueue.x-k8s.io/manager}, {manager: b.com/b}]`)}}}
	managers := func(list []overrides.Entry) string {
		var all []string
		for _, e := range list {
			all = append(all, e.Manager)
		}
		return strings.Join(all, " ")
	}
	before, err := json.Marshal(job)
	if err != nil {
		t.Fatal(err)
	}
	if dialect.Bundled.Own(job) != &job.Spec.RuntimePatches[1] {
		t.Error("Own finds the integration's entry")
	}
	if got := managers(dialect.Bundled.Others(job)); got != "a.com/a b.com/b" {
		t.Errorf("Others keeps the order of the rest: got %s", got)
	}
	if got := managers(dialect.Bundled.With(
		job, trainerapi.RuntimePatch{Manager: overrides.Manager})); got != "a.com/a kueue.x-k8s.io/manager b.com/b" {
		t.Errorf("With writes in place: got %s", got)
	}
	if got, moved := overrides.OwnLast(job.Spec.RuntimePatches); !moved ||
		managers(listed(got)) != "a.com/a b.com/b kueue.x-k8s.io/manager" {
		t.Errorf("OwnLast moves it to the end: got %s", managers(listed(got)))
	}
	fresh := &api.TrainJob{Spec: api.TrainJobSpec{TrainJobSpec: trainerapi.TrainJobSpec{RuntimePatches: slices.DeleteFunc(
		slices.Clone(job.Spec.RuntimePatches), func(p trainerapi.RuntimePatch) bool {
			return p.Manager == overrides.Manager
		})}}}
	if dialect.Bundled.Own(fresh) != nil {
		t.Error("there is no entry of the integration")
	}
	if got := managers(dialect.Bundled.With(
		fresh, trainerapi.RuntimePatch{Manager: overrides.Manager})); got != "a.com/a b.com/b kueue.x-k8s.io/manager" {
		t.Errorf("With appends a first entry: got %s", got)
	}
	if _, moved := overrides.OwnLast(fresh.Spec.RuntimePatches); moved {
		t.Error("nothing is to be moved")
	}
	if after, err := json.Marshal(job); err != nil || string(after) != string(before) {
		t.Error("nothing here changes the TrainJob")
	}
}

func TestSetter(t *testing.T) {
	list := listed(entries(t, "["+strings.Join([]string{
		podEntry("a.com/a", `{metadata: {labels: {k: a}, annotations: {k: a}}, spec: {nodeSelector: {k: a},
  tolerations: [{key: a, operator: Exists}], schedulingGates: [{name: k}]}}`),
		podEntry("b.com/b", `{metadata: {labels: {k: b}}}`),
		podEntry(overrides.Manager, `{metadata: {labels: {k: own}}, spec: {nodeSelector: {k: own}}}`),
	}, ",")+"]"))
	cases := map[string]struct {
		reason string
		job    string
		field  overrides.Field
		key    string
		want   string
	}{
		"the last one":     {"the later entry wins, but for the integration's own", "node", overrides.Labels, "k", "b.com/b"},
		"annotation":       {"only one sets it", "node", overrides.Annotations, "k", "a.com/a"},
		"node selector":    {"only one sets it beside the integration", "node", overrides.NodeSelector, "k", "a.com/a"},
		"any toleration":   {"a list is set as a whole", "node", overrides.Tolerations, "", "a.com/a"},
		"a gate":           {"by its name", "node", overrides.SchedulingGates, "k", "a.com/a"},
		"another gate":     {"nobody sets it", "node", overrides.SchedulingGates, "other", ""},
		"another key":      {"nobody sets it, so it is the runtime's", "node", overrides.Labels, "other", ""},
		"another job":      {"entries are by ReplicatedJob", "launcher", overrides.Labels, "k", ""},
		"an unknown field": {"nobody sets what doesn't exist", "node", overrides.Field("spec.other"), "k", ""},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			got := ""
			if entry := overrides.Setter(list, c.job, c.field, c.key); entry != nil {
				got = entry.Manager
			}
			if got != c.want {
				t.Errorf("%s: got %q, want %q", c.reason, got, c.want)
			}
		})
	}
	const bare = `[{manager: a.com/a, trainingRuntimeSpec: {template: {spec: {replicatedJobs: [{name: node}]}}}}]`
	if meta, spec := overrides.PodPatch(entries(t, bare)[0].TrainingRuntimeSpec, "node"); meta != nil || spec != nil {
		t.Error("an entry may name a ReplicatedJob and say nothing of its pods")
	}
}

// TestFrozen holds that errors have the order of the fields, whatever the order of a map.
func TestFrozen(t *testing.T) {
	before := jobOf(t, "{}")
	after := jobOf(t, "{initializer: {}, trainer: {numNodes: 2}, activeDeadlineSeconds: 3, managedBy: a.com/b}")
	after.Spec.RuntimeRef.Name = "other"
	for range 100 {
		errs, changed := overrides.CheckFrozen(before, after)
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
	if errs, changed := overrides.CheckFrozen(before, after); len(errs) > 0 || !changed {
		t.Errorf("a suspended TrainJob may change: %v", errs)
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
	e, err := dialect.Bundled.Compute(job, &rt, dialect.Bundled.Entries(job))
	if err != nil {
		t.Fatal(err)
	}
	pod := e.ReplicatedJobs[0].Template.Spec.Template.Spec
	side := &pod.Containers[0]
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

// TestOrder holds that texts of several parts are the same however often they are made.
func TestOrder(t *testing.T) {
	before := jobOf(t, "runtimePatches: [{manager: a.com/a}, {manager: b.com/b}, {manager: c.com/c}]")
	after := jobOf(t, "runtimePatches: [{manager: d.com/d}, {manager: e.com/e}, {manager: f.com/f}]")
	for range 100 {
		got := fmt.Sprint(overrides.CheckTransition(overrides.Changed(before, after), before, after, nil).ToAggregate())
		if !strings.Contains(got, "the entry of a.com/a, b.com/b, c.com/c, d.com/d, e.com/e, f.com/f") {
			t.Fatalf("got %s", got)
		}
	}
}
