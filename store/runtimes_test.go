package store

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"errors"
	"strings"
	"testing"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides/dialect"
)

// torchOf is ClusterTrainingRuntime torch with a number of nodes.
func torchOf(nodes int32) *api.ClusterTrainingRuntime {
	return &api.ClusterTrainingRuntime{
		ObjectMeta: metav1.ObjectMeta{Name: "torch", Annotations: map[string]string{api.GangModeAnnotation: "off"}},
		Spec:       trainerapi.TrainingRuntimeSpec{MLPolicy: &trainerapi.MLPolicy{NumNodes: &nodes}},
	}
}

// torchSnapshot is Kubeflow Trainer's snapshot of a runtime with a number of nodes.
func torchSnapshot(nodes string) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "job" + SnapshotSuffix,
			OwnerReferences: controlledBy(trainerVersion, "TrainJob", "job", "uid")},
		Data: map[string]string{snapshotKey: "{kind: ClusterTrainingRuntime, metadata: {name: torch}, spec: {mlPolicy: " +
			"{numNodes: " + nodes + "}}}"},
	}
}

const (
	onTorch    = "spec: {runtimeRef: {apiGroup: trainer.kubeflow.org, kind: ClusterTrainingRuntime, name: torch}, "
	queuedJob  = onTorch + "suspend: true}"
	runningJob = onTorch + "suspend: false}"
	counted    = "\nstatus: {jobsStatus: [{name: node, active: 1}]}"
)

// choice is a case of Of and OfKubeflow.
type choice struct {
	reason, job string
	there       []client.Object
	fail        string
	nodes       int32
	pinned      bool
	snapshot    bool
	outdated    bool
	err         string
}

func (c choice) check(t *testing.T, got *Choice, err error) {
	t.Helper()
	if c.err != "" {
		if err == nil || !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: got %v, want %q", c.reason, err, c.err)
		}
		return
	}
	if err != nil {
		t.Fatalf("%s: got %v", c.reason, err)
	}
	if *got.Spec.MLPolicy.NumNodes != c.nodes || got.Pinned != c.pinned || (got.Snapshot != nil) != c.snapshot ||
		got.Outdated != c.outdated {
		t.Errorf("%s: got %d nodes, %+v", c.reason, *got.Spec.MLPolicy.NumNodes, got)
	}
}

func (c choice) stored(t *testing.T) *stored {
	t.Helper()
	s := newStored(t, c.there...)
	if c.fail != "" {
		s.fail["get "+c.fail] = errDown
	}
	return s
}

func TestRuntimesOf(t *testing.T) {
	pin, err := Pin(&trainerapi.TrainingRuntimeSpec{MLPolicy: &trainerapi.MLPolicy{NumNodes: ptr.To[int32](9)}})
	if err != nil {
		t.Fatal(err)
	}
	both := []client.Object{torchOf(2), torchSnapshot("7")}
	cases := map[string]choice{
		"never ran": {reason: "the live runtime", job: queuedJob + counted, there: both, nodes: 2},
		"pinned": {
			reason: "its pin", job: queuedJob + "\nmetadata: {annotations: {signalbox.dev/runtime: " + pin + "}}", there: both,
			nodes: 9, pinned: true,
		},
		"a forged pin": {reason: "it is said", job: "metadata: {annotations: {signalbox.dev/runtime: x}}",
			err: "it was not written by Signalbox"},
		"ran":          {reason: "Trainer's snapshot", job: runningJob + counted, there: both, nodes: 7, snapshot: true},
		"ran unseen":   {reason: "anybody can forge a ConfigMap", job: runningJob, there: both, nodes: 2},
		"ran, no copy": {reason: "the live runtime", job: runningJob + counted, there: both[:1], nodes: 2},
		"snapshot unread": {
			reason: "it is tried again", job: runningJob + counted, there: both, fail: "ConfigMap", err: "down",
		},
		"missing": {
			reason: "it is said", job: queuedJob, err: `there is no ClusterTrainingRuntime "torch"; create it`,
		},
		"unread": {reason: "it is tried again", job: queuedJob, fail: "ClusterTrainingRuntime", err: "down"},
		"another kind": {
			reason: "it is said", job: "spec: {runtimeRef: {kind: Other, name: x}}", err: "only kinds TrainingRuntime",
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			s := c.stored(t)
			got, err := NewRuntimes(s.api(), s.api()).Of(t.Context(), storedJob(t, c.job))
			c.check(t, got, err)
			if invalid := (*RuntimeError)(nil); errors.As(err, &invalid) {
				if invalid.Missing != (name == "missing") || c.fail != "" ||
					errors.Is(err, ErrUnknownKind) != (name == "another kind") {
					t.Errorf("%s: got %+v", c.reason, invalid)
				}
			} else if c.err != "" && c.fail == "" {
				t.Errorf("%s: got %T", c.reason, err)
			}
			if err == nil && !c.pinned && !c.snapshot && got.Settings.Template.Annotations[api.GangModeAnnotation] != "off" {
				t.Errorf("the runtime's gang annotations are settings: got %v", got.Settings.Template.Annotations)
			}
		})
	}
}

func TestRuntimesOfKubeflow(t *testing.T) {
	both := []client.Object{torchOf(2), torchSnapshot("7")}
	cases := map[string]choice{
		"never ran": {
			reason: "Trainer has yet to follow", job: queuedJob, there: both, nodes: 2, snapshot: true, outdated: true,
		},
		"unchanged": {
			reason: "Trainer has followed", job: queuedJob, there: []client.Object{torchOf(2), torchSnapshot("2")}, nodes: 2,
			snapshot: true,
		},
		"ran":             {reason: "it stays on its runtime", job: runningJob, there: both, nodes: 7, snapshot: true},
		"no snapshot":     {reason: "the live runtime", job: runningJob, there: both[:1], nodes: 2},
		"snapshot unread": {reason: "it is tried again", job: runningJob, there: both, fail: "ConfigMap", err: "down"},
		"missing": {
			reason: "Trainer rejects its start", job: runningJob, there: both[1:], err: "there is no ClusterTrainingRuntime",
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			s := c.stored(t)
			runtimes := New(s.api(), s.api(), s.clock, false).Runtimes
			got, err := runtimes.OfKubeflow(t.Context(), storedJob(t, c.job), dialect.Kubeflow23)
			c.check(t, got, err)
			if name == "missing" {
				return
			}
			earlier, err := runtimes.OfKubeflow(t.Context(), storedJob(t, c.job), dialect.Kubeflow22)
			if err != nil || *earlier.Spec.MLPolicy.NumNodes != 2 || earlier.Snapshot != nil {
				t.Errorf("earlier Trainers have no snapshots: got %+v, %v", earlier, err)
			}
		})
	}
}

func TestJobsOf(t *testing.T) {
	s := newStored(t, jobOfSet("own", "a"), jobOfSet("earlier", "b"),
		jobOfSet("other", "a", func(j *batchv1.Job) { j.Labels = nil }))
	p := NewPods(newStored(t).api(), s.api())
	if jobs, err := p.JobsOf(t.Context(), setOf("a", "uid")); err != nil || len(jobs) != 1 || jobs[0].Name != "own" {
		t.Errorf("by the JobSet's name and UID: got %v, %v", jobs, err)
	}
	s.fail["list Job"] = errDown
	if _, err := p.JobsOf(t.Context(), setOf("a", "uid")); !errors.Is(err, errDown) {
		t.Errorf("the error is passed on: got %v", err)
	}
}

func TestFromSnapshot(t *testing.T) {
	job := &api.TrainJob{ObjectMeta: metav1.ObjectMeta{Name: "job", UID: "uid"}}
	job.Spec.RuntimeRef = trainerapi.RuntimeRef{Kind: ptr.To("TrainingRuntime"), Name: "torch"}
	object := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{OwnerReferences: []metav1.OwnerReference{{UID: "uid", Controller: ptr.To(true)}}},
		Data: map[string]string{"runtime": "kind: TrainingRuntime\nmetadata: {name: torch}\n" +
			"spec: {template: {spec: {replicatedJobs: [{name: node}]}}}"},
	}
	if spec, err := fromSnapshot(job, object); err != nil || spec.Template.Spec.ReplicatedJobs[0].Name != "node" {
		t.Errorf("the runtime is read: got %v, %v", spec, err)
	}
	job.Spec.RuntimeRef.Name = "other"
	if spec, err := fromSnapshot(job, object); err != nil || spec != nil {
		t.Errorf("another runtime's is none: got %v, %v", spec, err)
	}
	job.Spec.RuntimeRef.Name = "torch"
	object.OwnerReferences[0].UID = "other"
	if spec, err := fromSnapshot(job, object); err != nil || spec != nil {
		t.Errorf("an earlier TrainJob's is none: got %v, %v", spec, err)
	}
	object.OwnerReferences[0].UID, object.Data["runtime"] = "uid", "{"
	if _, err := fromSnapshot(job, object); err == nil || !strings.Contains(err.Error(), `key "runtime"`) {
		t.Errorf("what can't be read is named: got %v", err)
	}
}

func TestJobSets(t *testing.T) {
	job := &api.TrainJob{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "job", UID: "job"}}
	key := client.ObjectKeyFromObject(job)
	holding := func(uid, owner types.UID) client.Reader {
		if uid == "" {
			return newStored(t).api()
		}
		return newStored(t, setOf(uid, owner)).api()
	}
	cases := map[string]struct {
		reason                               string
		cached, live, owner, made, rem, want types.UID
	}{
		"nothing made":              {"the cache is believed", "a", "", "job", "", "", "a"},
		"none":                      {"there is none", "", "b", "job", "", "", ""},
		"another's":                 {"a JobSet of the same name is not the TrainJob's", "a", "a", "other", "", "", ""},
		"made, shown":               {"the cache is no longer late", "a", "a", "job", "a", "", "a"},
		"made, not shown":           {"it is there, whatever the cache says", "", "a", "job", "a", "a", "a"},
		"made, the last one shown":  {"the cache still shows the one before", "old", "a", "job", "a", "a", "a"},
		"made, and deleted already": {"it is gone", "", "", "job", "a", "", ""},
		"made, and replaced":        {"what is there counts", "", "b", "job", "a", "", "b"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			s := NewJobSets(holding(c.cached, c.owner), holding(c.live, c.owner))
			if c.made != "" {
				s.Created(key, c.made)
			}
			js, err := s.Of(context.Background(), job)
			got := types.UID("")
			if js != nil {
				got = js.UID
			}
			if err != nil || got != c.want || s.expected(key) != c.rem {
				t.Errorf("%s: got %q, %v, still expects %q", c.reason, got, err, s.expected(key))
			}
			if s.Forget(key); s.expected(key) != "" {
				t.Error("a TrainJob that is gone is forgotten")
			}
		})
	}
}

// pinnedTo is a TrainJob with a pin.
func pinnedTo(pin string) *api.TrainJob {
	return &api.TrainJob{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{PinAnnotation: pin}}}
}

// packed is text as a pin holds it.
func packed(t testing.TB, text []byte) string {
	t.Helper()
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	if _, err := w.Write(text); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return base64.StdEncoding.EncodeToString(out.Bytes())
}

func TestPin(t *testing.T) {
	spec := &trainerapi.TrainingRuntimeSpec{MLPolicy: &trainerapi.MLPolicy{NumNodes: ptr.To[int32](7)}}
	for range 2 { // the second by a writer that was used before
		pin, err := Pin(spec)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := Pinned(pinnedTo(pin)); err != nil || got == nil || *got.MLPolicy.NumNodes != 7 {
			t.Errorf("a pin is read back: got %+v, %v", got, err)
		}
	}
	if got, err := Pinned(&api.TrainJob{}); got != nil || err != nil {
		t.Errorf("a TrainJob that never started has none: got %+v, %v", got, err)
	}
}

func TestPinnedRejects(t *testing.T) {
	whole := packed(t, []byte("{}"))
	for name, pin := range map[string]string{
		"no base64": "?", "empty": "", "no gzip": base64.StdEncoding.EncodeToString([]byte("text")),
		"cut": whole[:len(whole)-8], "no JSON": packed(t, []byte("{")),
		"too large": packed(t, bytes.Repeat([]byte(" "), maxPin+1)),
		"many elements": packed(t, []byte(`{"template":{"spec":{"replicatedJobs":[`+strings.Repeat("{},", maxPinElements)+
			`{}]}}}`)),
	} {
		_, err := Pinned(pinnedTo(pin))
		if err == nil || !strings.Contains(err.Error(), "metadata.annotations[signalbox.dev/runtime]: ") ||
			!strings.Contains(err.Error(), "it was not written by Signalbox") {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

// FuzzPinned holds that no annotation crashes Pinned, and that one that is read is a runtime.
func FuzzPinned(f *testing.F) {
	f.Add("")
	f.Add("x")
	f.Add(packed(f, []byte("{}")))
	f.Fuzz(func(t *testing.T, pin string) {
		if spec, err := Pinned(pinnedTo(pin)); err == nil && spec == nil {
			t.Fatal("a pin that says nothing is no pin")
		}
	})
}

func BenchmarkPin(b *testing.B) {
	container := corev1.Container{Name: "node", Image: "example.com/train:1"}
	container.Env = []corev1.EnvVar{{Name: "A", Value: "a"}}
	rj := jobset.ReplicatedJob{Name: "node", Replicas: 1}
	rj.Template.Spec.Template.Spec.Containers = []corev1.Container{container}
	runtime := &trainerapi.TrainingRuntimeSpec{}
	runtime.Template.Spec.ReplicatedJobs = []jobset.ReplicatedJob{rj}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Pin(runtime); err != nil {
			b.Fatal(err)
		}
	}
}
