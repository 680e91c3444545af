package overrides_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides"
	"github.com/signalbox-dev/signalbox/overrides/dialect"
)

func jobWith(t *testing.T, list ...string) *api.TrainJob {
	t.Helper()
	return &api.TrainJob{Spec: api.TrainJobSpec{TrainJobSpec: trainerapi.TrainJobSpec{
		RuntimeRef: trainerapi.RuntimeRef{Name: "torch"}, RuntimePatches: entries(t, "["+strings.Join(list, ",")+"]")}}}
}

func TestCheckEntries(t *testing.T) {
	const says = `{metadata: {labels: {a: b}}}`
	many := make([]string, overrides.MaxEntries+1)
	for i := range many {
		many[i] = podEntry(fmt.Sprintf("a.com/m%d", i), says)
	}
	cases := map[string]struct {
		reason  string
		entries []string
		want    string
	}{
		"fine": {"managers are domain-prefixed paths",
			[]string{podEntry("a.com/a", says), podEntry("b.com/b/c", says)}, ""},
		"no domain": {"a bare name says of nobody who it is", []string{podEntry("team", says)},
			`spec.runtimePatches[0].manager: Invalid value: "team": must be a domain-prefixed path that says who writes the ` +
				`entry, such as example.com/team`},
		"twice": {"a manager has one entry", []string{podEntry("a.com/a", says), podEntry("a.com/a", says)},
			`spec.runtimePatches[1].manager: Duplicate value: "a.com/a": a manager has one entry; join the two`},
		"too many": {"the CRD's limit", many, "spec.runtimePatches: Too many: 17: must have at most 16 items"},
		"a directive": {"it would take away what others say",
			[]string{podEntry("a.com/a", `{spec: {nodeSelector: {$patch: replace}}}`)}, "a key may not begin with $"},
		"a job named twice": {"a merge would take one of the two",
			[]string{`{manager: a.com/a, trainingRuntimeSpec: {template: {spec: {replicatedJobs: [{name: node,
  template: {metadata: {labels: {a: b}}}}, {name: node}]}}}}`},
			`spec.runtimePatches[a.com/a].trainingRuntimeSpec.template.spec.replicatedJobs[1].name: Duplicate value: "node"`},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			job := jobWith(t, c.entries...)
			got := overrides.CheckEntries(job, dialect.Bundled.Entries(job))
			if c.want == "" && len(got) > 0 || c.want != "" &&
				(len(got) != 1 || !strings.Contains(got.ToAggregate().Error(), c.want)) {
				t.Errorf("%s: got %v, want %q", c.reason, got, c.want)
			}
		})
	}
}

func TestCheck(t *testing.T) {
	dataset := &trainerapi.Initializer{Dataset: &trainerapi.DatasetInitializer{}}
	cases := map[string]struct {
		reason  string
		entries []string
		init    *trainerapi.Initializer
		change  func(*jobset.ReplicatedJob)
		want    string
	}{
		"fine": {"names that the runtime has",
			[]string{podEntry("a.com/a", `{spec: {containers: [{name: sidecar, env: [{name: A}]}, {name: node,
  volumeMounts: [{name: v, mountPath: /v}]}]}}`)}, nil, nil, ""},
		"a manager alone": {"Trainer takes it, and so a warning is enough", []string{"{manager: a.com/a}"}, nil, nil, ""},
		"nothing": {"nothing must stay distinguishable from something unknown",
			[]string{"{manager: a.com/a, trainingRuntimeSpec: {}}"}, nil, nil,
			`spec.runtimePatches[a.com/a].trainingRuntimeSpec: Required value: the entry sets no field that may be changed`},
		"only a name": {"a name changes nothing",
			[]string{`{manager: a.com/a, trainingRuntimeSpec: {template: {spec: {replicatedJobs: [{name: node}]}}}}`}, nil, nil,
			`the entry sets no field that may be changed`},
		"an unknown job": {"path, value and what there is",
			[]string{`{manager: a.com/a, trainingRuntimeSpec: {template: {spec: {replicatedJobs: [{name: nodes}]}}}}`}, nil, nil,
			`replicatedJobs[nodes]: Unsupported value: "nodes": runtime "torch" has no such replicatedJob; supported ` +
				`values: "dataset-initializer", "node"`},
		"an unknown container": {"path, value and what there is",
			[]string{podEntry("a.com/a", `{spec: {containers: [{name: other}]}}`)}, nil, nil,
			`spec.containers[other]: Unsupported value: "other": replicatedJob "node" of runtime "torch" has no such ` +
				`container; supported values: "node", "sidecar"`},
		"no initContainer": {"a merge would make one without an image", []string{podEntry("a.com/a",
			`{spec: {initContainers: [{name: node}]}}`)}, nil, nil, `spec.initContainers[node]: Unsupported value: "node"`},
		"the trainer's environment": {"it has an API of its own",
			[]string{podEntry("a.com/a", `{spec: {containers: [{name: node, env: [{name: A}]}]}}`)}, nil, nil,
			`spec.containers[node].env: Forbidden: the environment of container "node" (here "A") is not for an entry; set ` +
				`it by spec.trainer.env`},
		"an initializer": {"the runtime has what it is for", nil, dataset, func(rj *jobset.ReplicatedJob) {
			rj.Template.Spec.Template.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "initializer"}}
		}, ""},
		"no mount": {"the work would go nowhere", nil, dataset, func(rj *jobset.ReplicatedJob) {
			rj.Template.Spec.Template.Spec.Containers[0].VolumeMounts = nil
		},
			`spec.initializer.dataset: Invalid value: "torch": the runtime has no mount of a volume "initializer" in ` +
				`container "dataset-initializer"`},
		"no container": {"nobody would do the work", nil, dataset, func(rj *jobset.ReplicatedJob) {
			rj.Template.Spec.Template.Spec.Containers[0].Name = "other"
		}, `the runtime has no container "dataset-initializer" in its replicatedJob "dataset-initializer"`},
		"no step of it": {"nobody would do the work", nil, &trainerapi.Initializer{Model: &trainerapi.ModelInitializer{}},
			nil, `spec.initializer.model: Invalid value: "torch": the runtime has no replicatedJob "model-initializer"`},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			rt := must[trainerapi.TrainingRuntimeSpec](t, torchRuntime)
			if c.change != nil {
				c.change(replicatedJob(rt.Template.Spec.ReplicatedJobs, "dataset-initializer"))
			}
			job := jobWith(t, c.entries...)
			job.Spec.Initializer = c.init
			got := overrides.Check(job, &rt, dialect.Bundled.Entries(job))
			if c.want == "" && len(got) > 0 || c.want != "" &&
				(len(got) != 1 || !strings.Contains(got.ToAggregate().Error(), c.want)) {
				t.Errorf("%s: got %v, want %q", c.reason, got, c.want)
			}
		})
	}
}

func TestCheckTransition(t *testing.T) {
	a, b := podEntry("a.com/a", `{spec: {nodeSelector: {x: a}}}`), podEntry("b.com/b", `{spec: {nodeSelector: {x: b}}}`)
	active := &jobset.JobSet{Status: jobset.JobSetStatus{ReplicatedJobsStatus: []jobset.ReplicatedJobStatus{
		{Name: "node", Active: 1}, {Name: "done"}}}}
	cases := map[string]struct {
		reason        string
		before, after bool
		old, now      []string
		js            *jobset.JobSet
		want          string
	}{
		"runs on": {"not while it runs", false, false, []string{a}, []string{a, b}, nil,
			"the entry of b.com/b can't change while the TrainJob runs"},
		"stays suspended": {"yes", true, true, []string{a}, []string{b}, nil, ""},
		"starts":          {"yes, the atomic start", true, false, nil, []string{a}, nil, ""},
		"stops":           {"yes", false, true, []string{a}, nil, nil, ""},
		"still active": {"not while a ReplicatedJob is active", true, true, []string{a}, []string{b}, active,
			`the entry of a.com/a, b.com/b can't change while replicatedJob "node" of the last run is still active (1)`},
		"nothing changed": {"nothing is to be refused", false, false, []string{a, b}, []string{a, b}, active, ""},
		"another order": {"the later entry wins, so the order is content", false, false, []string{a, b}, []string{b, a},
			nil, "the order of the entries can't change"},
		"only its time": {"time is the webhook's", false, false, []string{"{manager: a.com/a, time: '2026-01-01T00:00:00Z'}"},
			[]string{"{manager: a.com/a}"}, nil, ""},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			before, after := jobWith(t, c.old...), jobWith(t, c.now...)
			before.Spec.Suspend, after.Spec.Suspend = &c.before, &c.after
			got := overrides.CheckTransition(overrides.Changed(before, after), before, after, c.js)
			if c.want == "" && len(got) > 0 || c.want != "" &&
				(len(got) != 1 || !strings.Contains(got.ToAggregate().Error(), c.want)) {
				t.Errorf("%s: got %v, want %q", c.reason, got, c.want)
			}
		})
	}
}

func TestTimes(t *testing.T) {
	now := metav1.NewTime(time.Date(2026, 11, 20, 0, 0, 0, 0, time.UTC))
	const old = ", time: '2020-01-01T00:00:00Z'}"
	own := "{manager: " + overrides.Manager
	cases := map[string]struct {
		reason      string
		before, now []string // nil before is a creation
		trusted     bool
		want        string
	}{
		"created":             {"it is given a time", nil, []string{"{manager: a.com/a}"}, false, "0:2026"},
		"created with a time": {"which it keeps", nil, []string{"{manager: a.com/a" + old}, false, ""},
		"added": {"only the new one", []string{"{manager: a.com/a" + old},
			[]string{"{manager: a.com/a" + old, "{manager: b.com/b}"}, false, "1:2026"},
		"sent without": {"its own comes back", []string{"{manager: a.com/a" + old}, []string{"{manager: a.com/a}"},
			false, "0:2020"},
		"sent with another": {"its own comes back", []string{"{manager: a.com/a" + old},
			[]string{"{manager: a.com/a, time: '2021-01-01T00:00:00Z'}"}, false, "0:2020"},
		"changed": {"it is given a time, whatever it brings", []string{"{manager: a.com/a" + old},
			[]string{"{manager: a.com/a, trainingRuntimeSpec: {}" + old}, false, "0:2026"},
		"never had one": {"it is given one", []string{"{manager: a.com/a}"}, []string{"{manager: a.com/a}"}, false,
			"0:2026"},
		"by the integration": {"its entry's time is that of the start", []string{own + old},
			[]string{own + ", trainingRuntimeSpec: {}, time: '2025-01-01T00:00:00Z'}"}, true, ""},
		"the same by a stranger": {"it is given a time", []string{own + old},
			[]string{own + ", trainingRuntimeSpec: {}, time: '2025-01-01T00:00:00Z'}"}, false, "0:2026"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			var before *api.TrainJob
			if c.before != nil {
				before = jobWith(t, c.before...)
			}
			var got []string
			times := overrides.Times(before, jobWith(t, c.now...), now, c.trusted)
			for i := range c.now {
				if at, found := times[fmt.Sprintf("/spec/runtimePatches/%d/time", i)]; found {
					got = append(got, fmt.Sprintf("%d:%d", i, at.UTC().Year()))
				}
			}
			if strings.Join(got, " ") != c.want {
				t.Errorf("%s: got %v, want %q", c.reason, got, c.want)
			}
		})
	}
}

func TestWarnings(t *testing.T) {
	got := overrides.Warnings(dialect.Bundled.Entries(jobWith(t,
		podEntry("a.com/a", `{metadata: {labels: {l: x}}, spec: {nodeSelector: {zone: east, disk: ssd},
  tolerations: [{key: a}], containers: [{name: sidecar, env: [{name: A, value: x}], volumeMounts: [{name: v,
    mountPath: /v}]}]}}`),
		podEntry(overrides.Manager, `{spec: {nodeSelector: {zone: own}}}`),
		podEntry("b.com/b", `{spec: {nodeSelector: {zone: west, disk: ssd}, tolerations: [{key: b}],
  containers: [{name: sidecar, env: [{name: A, value: y}, {name: B}], volumeMounts: [{name: w, mountPath: /v}]}]}}`),
	)))
	for i, want := range []string{`containers[sidecar].env[A].value to "x"`,
		`containers[sidecar].volumeMounts[/v].name to "v"`,
		`nodeSelector.zone to "east" and b.com/b to "west"; the later entry, of b.com/b, takes precedence`,
		`tolerations to [{"key":"a"}]`} {
		if len(got) != 4 || !strings.Contains(got[i], want) {
			t.Errorf("two managers that set the same to different values are named, once a field: got %q, want %q", got, want)
		}
	}
	if got := overrides.Warnings(dialect.Bundled.Entries(jobWith(t, "{manager: a.com/a}"))); len(got) != 1 ||
		!strings.HasPrefix(got[0], "spec.runtimePatches[a.com/a] has nothing but its manager") {
		t.Errorf("an entry of a manager alone: got %q", got)
	}
	var long []string
	for i := range 12 {
		long = append(long, podEntry(fmt.Sprintf("a.com/m%d", i), fmt.Sprintf("{spec: {nodeSelector: {zone: z%d}}}", i)))
	}
	if got := overrides.Warnings(dialect.Bundled.Entries(jobWith(t, long...))); len(got) != 8 {
		t.Errorf("the list is bounded: got %d", len(got))
	}
}

func TestOutlived(t *testing.T) {
	rjs := func(volume corev1.VolumeSource, mount corev1.VolumeMount,
		status jobset.DependsOnStatus) []jobset.ReplicatedJob {
		init, node := jobset.ReplicatedJob{Name: "init", Replicas: 1},
			jobset.ReplicatedJob{Name: "node", DependsOn: []jobset.DependsOn{{Name: "init", Status: status}}}
		pod := &init.Template.Spec.Template.Spec
		pod.Volumes = []corev1.Volume{{Name: "v", VolumeSource: volume}}
		pod.Containers = []corev1.Container{{Name: "c", VolumeMounts: []corev1.VolumeMount{mount}}}
		node.Template.Spec.Template.Spec.Containers = []corev1.Container{
			{Name: "c", VolumeMounts: []corev1.VolumeMount{mount}}}
		return []jobset.ReplicatedJob{init, node}
	}
	claim := []jobset.VolumeClaimPolicy{{Templates: []corev1.PersistentVolumeClaim{
		{ObjectMeta: metav1.ObjectMeta{Name: "shared"}}}}}
	nfs := corev1.VolumeSource{NFS: &corev1.NFSVolumeSource{}}
	v, shared := corev1.VolumeMount{Name: "v"}, corev1.VolumeMount{Name: "shared"}
	cases := map[string]struct {
		reason    string
		rjs       []jobset.ReplicatedJob
		claims    []jobset.VolumeClaimPolicy
		succeeded int32
		want      bool
		success   *jobset.SuccessPolicy
	}{
		"network volume": {"it is still there", rjs(nfs, v, jobset.DependencyComplete), nil, 1, true, nil},
		"not done":       {"it has to be run", rjs(nfs, v, jobset.DependencyComplete), nil, 0, false, nil},
		"awaited to be ready": {"what others need running is no initializer", rjs(nfs, v, jobset.DependencyReady),
			nil, 1, false, nil},
		"read only": {"what writes nowhere has left nothing",
			rjs(nfs, corev1.VolumeMount{Name: "v", ReadOnly: true}, jobset.DependencyComplete), nil, 1, false, nil},
		"a configuration": {"nobody writes to it", rjs(
			corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{}}, v, jobset.DependencyComplete), nil, 1, false, nil},
		"unknown volume": {"it can't be judged",
			rjs(nfs, corev1.VolumeMount{Name: "x"}, jobset.DependencyComplete), nil, 1, false, nil},
		"a claim": {"it is the TrainJob's, and outlives the JobSet", rjs(nfs, shared, jobset.DependencyComplete), claim, 1,
			true, nil},
		"alone in the success policy": {"the policy would then be for all", rjs(nfs, v, jobset.DependencyComplete), nil, 1,
			false, &jobset.SuccessPolicy{TargetReplicatedJobs: []string{"init"}}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			spec := &jobset.JobSetSpec{ReplicatedJobs: c.rjs, VolumeClaimPolicies: c.claims, SuccessPolicy: c.success}
			got := overrides.Outlived(spec,
				[]trainerapi.JobStatus{{Name: "init", Succeeded: &c.succeeded}, {Name: "node", Succeeded: ptr.To[int32](1)}})
			if got["init"] != c.want || got["node"] {
				t.Errorf("%s: got %v", c.reason, got)
			}
		})
	}
}

func TestCheckFrozen(t *testing.T) {
	cases := map[string]struct {
		reason        string
		before, after bool
		change        func(*api.TrainJobSpec)
		refused       string
		changed       bool
	}{
		"nothing": {"there is nothing to refuse", false, false, func(*api.TrainJobSpec) {}, "", false},
		"taken away": {"the CRD doesn't see it", false, false, func(s *api.TrainJobSpec) { s.Trainer = nil },
			"spec.trainer: Forbidden", true},
		"with the start": {"quota was given for what it was", true, false,
			func(s *api.TrainJobSpec) { s.ActiveDeadlineSeconds = 1 }, "spec.activeDeadlineSeconds: Forbidden", true},
		"while it waits": {"its Workload follows", true, true, func(s *api.TrainJobSpec) { s.Trainer = nil }, "", true},
		"entries": {"they have rules of their own", false, false,
			func(s *api.TrainJobSpec) { s.RuntimePatches = []trainerapi.RuntimePatch{{Manager: "a.com/a"}} }, "", false},
		"the same, otherwise": {"empty is nothing", false, false, func(s *api.TrainJobSpec) { s.Trainer.Args = []string{} },
			"", false},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			before := &api.TrainJob{Spec: api.TrainJobSpec{TrainJobSpec: trainerapi.TrainJobSpec{
				Trainer: &trainerapi.Trainer{NumNodes: ptr.To[int32](2)}, Suspend: &c.before}}}
			after := before.DeepCopy()
			after.Spec.Suspend = &c.after
			c.change(&after.Spec)
			errs, changed := overrides.CheckFrozen(before, after)
			if changed != c.changed || c.refused == "" && len(errs) > 0 || c.refused != "" &&
				(len(errs) != 1 || !strings.Contains(errs.ToAggregate().Error(), c.refused)) {
				t.Errorf("%s: got %v, changed %t", c.reason, errs, changed)
			}
		})
	}
}

// TestCheckRoom holds that a queued TrainJob has room for the integration's entry.
func TestCheckRoom(t *testing.T) {
	full := make([]string, overrides.MaxEntries)
	for i := range full {
		full[i] = fmt.Sprintf("{manager: a.com/m%d}", i)
	}
	if errs := overrides.CheckRoom(jobWith(t, full...)); len(errs) != 1 {
		t.Errorf("a start would be refused, got %v", errs)
	}
	full[3] = "{manager: " + overrides.Manager + "}"
	if errs := overrides.CheckRoom(jobWith(t, full...)); len(errs) != 0 {
		t.Errorf("its entry is there, got %v", errs)
	}
}
