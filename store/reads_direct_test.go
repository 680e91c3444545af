package store

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

const (
	trainerVersion = "trainer.kubeflow.org/v1alpha1"
	setVersion     = "jobset.x-k8s.io/v1alpha2"
	batchVersion   = "batch/v1"
)

var jobKey = types.NamespacedName{Namespace: "ns", Name: "job"}

// setOf is JobSet ns/job of a TrainJob by its UID.
func setOf(uid, owner types.UID) *jobset.JobSet {
	return &jobset.JobSet{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "job", UID: uid,
		OwnerReferences: controlledBy(trainerVersion, "TrainJob", "job", owner)}}
}

// An answer to a creation was lost: until the cache has a JobSet of the TrainJob, the API server is asked.
func TestAttempted(t *testing.T) {
	cases := map[string]struct {
		reason       string
		cached, live *jobset.JobSet
		want         types.UID
		later        types.UID // by the cache alone, afterwards
	}{
		"nowhere":               {"it was not created", nil, nil, "", ""},
		"not cached":            {"it is there, whatever the cache says", nil, setOf("a", "uid"), "a", "a"},
		"cached":                {"the cache is no longer late", setOf("a", "uid"), nil, "a", "a"},
		"another's is cached":   {"the cache may be late", setOf("b", "other"), setOf("a", "uid"), "a", "a"},
		"another's, everywhere": {"it is not the TrainJob's", setOf("b", "other"), setOf("b", "other"), "", ""},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			with := func(js *jobset.JobSet) *stored {
				if js == nil {
					return newStored(t)
				}
				return newStored(t, js.DeepCopy())
			}
			cache, live := with(c.cached), with(c.live)
			s := NewJobSets(cache.api(), live.api())
			s.Attempted(jobKey)
			for _, want := range []types.UID{c.want, c.later} {
				js, err := s.Of(t.Context(), storedJob(t, ""))
				if err != nil || (js == nil) != (want == "") || js != nil && js.UID != want {
					t.Errorf("%s: got %+v, %v, want %q", c.reason, js, err, want)
				}
			}
			live.fail["get JobSet"] = errDown
			if _, err := s.Of(t.Context(), storedJob(t, "")); (c.cached == nil ||
				c.cached.OwnerReferences[0].UID != "uid") != (err != nil) {
				t.Errorf("the API server is asked until the cache has it: got %v", err)
			}
			if s.Forget(jobKey); c.cached == nil {
				if _, err := s.Of(t.Context(), storedJob(t, "")); err != nil {
					t.Errorf("a TrainJob that is gone is forgotten: got %v", err)
				}
			}
		})
	}
}

func TestJobSetsThatCantBeRead(t *testing.T) {
	cache, live := newStored(t), newStored(t)
	s := NewJobSets(cache.api(), live.api())
	cache.fail["get JobSet"] = errDown
	if _, err := s.Of(t.Context(), storedJob(t, "")); !errors.Is(err, errDown) || !strings.HasPrefix(err.Error(),
		"reading the JobSet: ") {
		t.Errorf("the cache: got %v", err)
	}
	delete(cache.fail, "get JobSet")
	live.fail["get JobSet"] = errDown
	s.Created(jobKey, "a")
	if _, err := s.Of(t.Context(), storedJob(t, "")); !errors.Is(err, errDown) {
		t.Errorf("the API server, which has what was made: got %v", err)
	}
	if _, err := s.Left(t.Context(), storedJob(t, "")); !errors.Is(err, errDown) {
		t.Errorf("the API server, which has what is left: got %v", err)
	}
}

func TestLeft(t *testing.T) {
	gone := &api.TrainJob{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "job"}}
	change := func(change func(*metav1.OwnerReference)) *jobset.JobSet {
		js := setOf("a", "uid")
		change(&js.OwnerReferences[0])
		return js
	}
	cases := map[string]struct {
		reason string
		there  *jobset.JobSet
		job    *api.TrainJob
		want   bool
	}{
		"none":              {"nothing is left", nil, gone, false},
		"its own":           {"it goes after the TrainJob", setOf("a", "uid"), storedJob(t, ""), true},
		"of an earlier one": {"it is not this TrainJob's", setOf("a", "earlier"), storedJob(t, ""), false},
		"of any":            {"a TrainJob that is gone has no UID", setOf("a", "earlier"), gone, true},
		"of another name": {"it is somebody else's", change(func(r *metav1.OwnerReference) { r.Name = "other" }), gone,
			false},
		"of another kind": {"it is somebody else's", change(func(r *metav1.OwnerReference) { r.Kind = "Other" }), gone,
			false},
		"of another group": {"it is somebody else's", change(func(r *metav1.OwnerReference) { r.APIVersion = "a/v1" }), gone,
			false},
		"of nobody": {"an owner that is not its controller made nothing",
			change(func(r *metav1.OwnerReference) { r.Controller = nil }), gone, false},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			live := newStored(t)
			if c.there != nil {
				live = newStored(t, c.there)
			}
			js, err := NewJobSets(newStored(t).api(), live.api()).Left(t.Context(), c.job)
			if err != nil || (js != nil) != c.want {
				t.Errorf("%s: got %v, %v", c.reason, js, err)
			}
		})
	}
}

func TestJobsEnded(t *testing.T) {
	with := func(kind batchv1.JobConditionType, status corev1.ConditionStatus) func(*batchv1.Job) {
		return func(j *batchv1.Job) { j.Status.Conditions = []batchv1.JobCondition{{Type: kind, Status: status}} }
	}
	deleted := func(j *batchv1.Job) {
		j.DeletionTimestamp, j.Finalizers = &metav1.Time{Time: someTime}, []string{"a/b"}
	}
	cases := map[string]struct {
		reason string
		there  []client.Object
		js     *jobset.JobSet
		want   bool
	}{
		"none": {"none makes pods", nil, nil, true},
		"runs": {"it may make another pod", []client.Object{jobOfSet("j", "a")}, setOf("a", "uid"), false},
		"complete": {"it makes no more", []client.Object{jobOfSet("j", "a", with(batchv1.JobComplete,
			corev1.ConditionTrue))}, setOf("a", "uid"), true},
		"failed": {"it makes no more", []client.Object{jobOfSet("j", "a", with(batchv1.JobFailed,
			corev1.ConditionTrue))}, nil, true},
		"not failed": {"the condition says no", []client.Object{jobOfSet("j", "a", with(batchv1.JobFailed,
			corev1.ConditionFalse))}, nil, false},
		"suspended": {"it may be resumed", []client.Object{jobOfSet("j", "a", with(batchv1.JobSuspended,
			corev1.ConditionTrue))}, nil, false},
		"deleted":    {"it makes no more", []client.Object{jobOfSet("j", "a", deleted)}, nil, true},
		"of another": {"it is of another JobSet of the name", []client.Object{jobOfSet("j", "b")}, setOf("a", "uid"), true},
		"of any":     {"the JobSet is gone", []client.Object{jobOfSet("j", "b")}, nil, false},
		"of nobody": {"labels are anybody's", []client.Object{jobOfSet("j", "a",
			func(j *batchv1.Job) { j.OwnerReferences = nil })}, nil, true},
		"one of two": {"all have to end", []client.Object{jobOfSet("i", "a", deleted), jobOfSet("j", "a")}, nil, false},
		"of a like it": {"its owner has another name", []client.Object{jobOfSet("j", "a",
			func(j *batchv1.Job) { j.OwnerReferences[0].Name = "x" })}, nil, true},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			live := newStored(t, c.there...)
			p := NewPods(newStored(t).api(), live.api())
			if got, err := p.JobsEnded(t.Context(), jobKey, OfJobSet(c.js)); err != nil || got != c.want {
				t.Errorf("%s: got %t, %v", c.reason, got, err)
			}
			live.fail["list Job"] = errDown
			if _, err := p.JobsEnded(t.Context(), jobKey, OfJobSet(c.js)); !errors.Is(err, errDown) ||
				!strings.Contains(err.Error(), "listing the Jobs of JobSet job") {
				t.Errorf("the error is passed on: got %v", err)
			}
		})
	}
}

func TestEndedCleanly(t *testing.T) {
	for reason, c := range map[string]struct {
		spec, status []int32 // replicas, and how many have succeeded
		want         bool
	}{
		"all have succeeded":          {[]int32{1, 2}, []int32{1, 2}, true},
		"one has not":                 {[]int32{1, 2}, []int32{1, 1}, false},
		"one isn't counted":           {[]int32{1, 2}, []int32{1}, false},
		"nothing was to be done":      {nil, nil, true},
		"nothing was counted of some": {[]int32{1}, nil, false},
	} {
		js := &jobset.JobSet{}
		for i, n := range c.spec {
			js.Spec.ReplicatedJobs = append(js.Spec.ReplicatedJobs, jobset.ReplicatedJob{Name: fmt.Sprint(i), Replicas: n})
		}
		for i, n := range c.status {
			js.Status.ReplicatedJobsStatus = append(js.Status.ReplicatedJobsStatus,
				jobset.ReplicatedJobStatus{Name: fmt.Sprint(i), Succeeded: n})
		}
		if got := EndedCleanly(js); got != c.want {
			t.Errorf("%s: got %t", reason, got)
		}
	}
}

func TestLiveRuntime(t *testing.T) {
	meta := func(namespace string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: namespace, Name: "torch", Labels: map[string]string{"of": namespace},
			Annotations: map[string]string{api.GangModeAnnotation: "required", api.GangPolicyAnnotation: "basic", "a": "b"}}
	}
	there := []client.Object{&api.TrainingRuntime{ObjectMeta: meta("ns")},
		&api.ClusterTrainingRuntime{ObjectMeta: meta("")}}
	const group = "apiGroup: trainer.kubeflow.org, "
	cases := map[string]struct{ reason, ref, of, describe string }{
		"in the namespace": {"the TrainJob's", group + "kind: TrainingRuntime, name: torch", "ns",
			`TrainingRuntime "torch" in namespace "ns"`},
		"of the cluster": {"for all", group + "kind: ClusterTrainingRuntime, name: torch", "-",
			`ClusterTrainingRuntime "torch"`},
		"missing": {"there is none", group + "kind: TrainingRuntime, name: x", "",
			`TrainingRuntime "x" in namespace "ns"`},
		"missing in the cluster": {"there is none", group + "kind: ClusterTrainingRuntime, name: x", "",
			`ClusterTrainingRuntime "x"`},
		"of a kind that nobody serves": {"it is said", group + "kind: Other, name: torch", "error",
			`ClusterTrainingRuntime "torch"`},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			job := storedJob(t, "spec: {runtimeRef: {"+c.ref+"}}")
			if got := Describe(job); got != c.describe {
				t.Errorf("described as %q", got)
			}
			s := newStored(t, there...)
			rt, err := LiveRuntime(t.Context(), s.api(), job)
			switch {
			case c.of == "error":
				if !errors.Is(err, ErrUnknownKind) {
					t.Errorf("%s: got %v", c.reason, err)
				}
				return
			case err != nil || (rt == nil) != (c.of == ""):
				t.Fatalf("%s: got %v, %v", c.reason, rt, err)
			case rt != nil && (rt.Labels["of"] != strings.Trim(c.of, "-") || rt.Annotations["a"] != "b"):
				t.Errorf("%s: got %+v", c.reason, rt)
			}
			s.fail["get TrainingRuntime"], s.fail["get ClusterTrainingRuntime"] = errDown, errDown
			if _, err := LiveRuntime(t.Context(), s.api(), job); !errors.Is(err, errDown) {
				t.Errorf("the error is passed on: got %v", err)
			}
			if rt == nil {
				return
			}
			pinnable := rt.Pinnable()
			if len(pinnable.Template.Annotations) != 2 || pinnable.Template.Annotations[api.GangPolicyAnnotation] != "basic" ||
				len(rt.Spec.Template.Annotations) != 0 {
				t.Errorf("what it says of a start is pinned, and the runtime stays: got %v", pinnable.Template.Annotations)
			}
		})
	}
}

func TestSnapshotOf(t *testing.T) {
	const content = "{kind: ClusterTrainingRuntime, metadata: {name: torch}, spec: {mlPolicy: {numNodes: 7}}}"
	snapshot := func(owner types.UID, text string) *corev1.ConfigMap {
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "job-runtime-snapshot",
			OwnerReferences: controlledBy(trainerVersion, "TrainJob", "job", owner)}, Data: map[string]string{"runtime": text}}
	}
	cases := map[string]struct {
		reason string
		there  *corev1.ConfigMap
		nodes  int32
		fails  bool
	}{
		"none":              {"Trainer has pinned nothing", nil, 0, false},
		"its own":           {"it is what it runs on", snapshot("uid", content), 7, false},
		"of an earlier one": {"the garbage collector is about to take it", snapshot("other", content), 0, false},
		"unreadable":        {"it is said where", snapshot("uid", "["), 0, true},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			s := newStored(t)
			if c.there != nil {
				s = newStored(t, c.there)
			}
			got, err := snapshotOf(t.Context(), s.api(), storedJob(t, ""))
			if (err != nil) != c.fails || (got != nil) != (c.nodes > 0) || got != nil &&
				(*got.Spec.MLPolicy.NumNodes != c.nodes || got.Object == nil) {
				t.Errorf("%s: got %+v, %v", c.reason, got, err)
			}
			s.fail["get ConfigMap"] = errDown
			if _, err := snapshotOf(t.Context(), s.api(), storedJob(t, "")); !errors.Is(err, errDown) {
				t.Errorf("the error is passed on: got %v", err)
			}
		})
	}
}
