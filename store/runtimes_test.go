package store

import (
	"errors"
	"strings"
	"testing"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

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
