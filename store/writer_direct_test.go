package store

import (
	"errors"
	"strings"
	"testing"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"gomodules.xyz/jsonpatch/v2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/signalbox-dev/signalbox/admission"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides"
	"github.com/signalbox-dev/signalbox/overrides/dialect"
	"github.com/signalbox-dev/signalbox/overrides/legacy"
)

const guarded = "test /metadata/uid \"uid\"; replace /metadata/resourceVersion \"7\"; "

var errDown = apierrors.NewServiceUnavailable("down")

func startOf(change ...func(*admission.Start)) *admission.Start {
	s := &admission.Start{
		Key:             types.NamespacedName{Namespace: "ns", Name: "job"},
		UID:             "uid",
		ResourceVersion: "7",
		At:              -1,
		Entry:           trainerapi.RuntimePatch{Manager: overrides.Manager},
	}
	for _, c := range change {
		c(s)
	}
	return s
}

func TestWriterStart(t *testing.T) {
	const mine, theirs = "{manager: kueue.x-k8s.io/manager}", "{manager: a.com/a}"
	pinned := func(annotated bool) func(*admission.Start) {
		return func(s *admission.Start) { s.Pin, s.NewPin, s.Annotated = "p", true, annotated }
	}
	cases := map[string]struct {
		reason, job string
		start       *admission.Start
		fail        error
		want        string
		err         func(error) bool
	}{
		"no entries": {"the list comes with it", "spec: {suspend: true}", startOf(), nil,
			guarded + `add /spec/runtimePatches [{"manager":"kueue.x-k8s.io/manager"}]; add /spec/suspend false`, nil},
		"entries of others": {"it is the last", "spec: {suspend: true, runtimePatches: [" + theirs + "]}",
			startOf(func(s *admission.Start) { s.Others = true }), nil,
			guarded + `add /spec/runtimePatches/- {"manager":"kueue.x-k8s.io/manager"}; add /spec/suspend false`, nil},
		"its own": {"it is replaced in its place", "spec: {suspend: true, runtimePatches: [" + theirs + ", " + mine + "]}",
			startOf(func(s *admission.Start) { s.At, s.Others = 1, true }), nil,
			guarded + `replace /spec/runtimePatches/1 {"manager":"kueue.x-k8s.io/manager"}; add /spec/suspend false`, nil},
		"its first": {"the runtime is pinned with it", "spec: {suspend: true}", startOf(pinned(false)), nil,
			guarded + `add /spec/runtimePatches [{"manager":"kueue.x-k8s.io/manager"}]; add /spec/suspend false; add ` +
				`/metadata/annotations {"signalbox.dev/runtime":"p"}`, nil},
		"its first, with annotations": {"the others stay", "metadata: {annotations: {a: b}}\nspec: {suspend: true}",
			startOf(pinned(true)), nil,
			guarded + `add /spec/runtimePatches [{"manager":"kueue.x-k8s.io/manager"}]; add /spec/suspend false; add ` +
				`/metadata/annotations/signalbox.dev~1runtime "p"`, nil},
		"pinned before": {
			"what is pinned stays",
			"spec: {suspend: true}",
			startOf(func(s *admission.Start) { s.Pin = "p" }),
			nil,
			guarded + `add /spec/runtimePatches [{"manager":"kueue.x-k8s.io/manager"}]; add /spec/suspend false`,
			nil,
		},
		"changed since": {"the start is decided anew", "metadata: {resourceVersion: '8'}\nspec: {suspend: true}", startOf(),
			nil,
			guarded + `add /spec/runtimePatches [{"manager":"kueue.x-k8s.io/manager"}]; add /spec/suspend false`,
			apierrors.IsConflict},
		"another TrainJob": {"it is not the one that was decided on", "metadata: {uid: other}\nspec: {suspend: true}",
			startOf(), nil,
			guarded + `add /spec/runtimePatches [{"manager":"kueue.x-k8s.io/manager"}]; add /spec/suspend false`,
			func(err error) bool { return err != nil }},
		"no answer": {"it is passed on", "spec: {suspend: true}", startOf(), errDown,
			guarded + `add /spec/runtimePatches [{"manager":"kueue.x-k8s.io/manager"}]; add /spec/suspend false`,
			apierrors.IsServiceUnavailable},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			job := storedJob(t, c.job)
			s := newStored(t, job)
			s.fail["patch"] = c.fail
			w := s.writer(true)
			err := w.Start(t.Context(), c.start)
			s.wantSent(c.reason, c.want)
			if c.err != nil {
				if !c.err(err) || w.Behind(job) || !*s.now().Spec.Suspend {
					t.Errorf("%s: got %v, behind %t", c.reason, err, w.Behind(job))
				}
				return
			}
			is := s.now()
			if err != nil || *is.Spec.Suspend || overrides.OwnIndex(is) != len(is.Spec.RuntimePatches)-1 {
				t.Errorf("%s: got %v, %+v", c.reason, err, is.Spec)
			}
			if got := is.Annotations[PinAnnotation]; c.start.NewPin != (got == "p") ||
				job.Annotations["a"] != is.Annotations["a"] {
				t.Errorf("%s: annotations %v", c.reason, is.Annotations)
			}
			if !w.Behind(job) || w.Behind(is) {
				t.Error("the version that was decided on is late from now")
			}
		})
	}
}

// A keyed list is written first, too, for Trainers that refuse both in one request.
func TestWriterStartInTwoByEntry(t *testing.T) {
	s := newStored(t, storedJob(t, "spec: {suspend: true}"))
	if err := s.writer(false).StartInTwo(t.Context(), startOf()); err != nil {
		t.Fatal(err)
	}
	s.wantSent("the second is guarded by the version of the first", guarded+`add /spec/runtimePatches `+
		`[{"manager":"kueue.x-k8s.io/manager"}]`,
		strings.ReplaceAll(guarded, "\"7\"", "\"8\"")+"add /spec/suspend false")
	s = newStored(t, storedJob(t, "spec: {suspend: true}"))
	s.fail["patch"] = errDown
	if err := s.writer(false).StartInTwo(t.Context(), startOf()); !errors.Is(err, errDown) || len(s.sent) != 1 {
		t.Errorf("nothing follows a write that fails: got %v after %d", err, len(s.sent))
	}
}

func TestWriterRefused(t *testing.T) {
	const words = "admission webhook denied: RuntimePatches can only be modified when the TrainJob is suspended"
	for reason, c := range map[string]struct {
		err  error
		want bool
	}{
		"it has started":                    {nil, false},
		"something else":                    {errDown, false},
		"v2.2.0 takes them in two requests": {errors.New(words), true},
		"v2.2.1 has looked at both":         {errors.New(words + " before or after the update"), false},
	} {
		if got := Refused(c.err); got != c.want {
			t.Errorf("%s: got %t", reason, got)
		}
	}
}

func TestWriterSuspend(t *testing.T) {
	job := storedJob(t, "spec: {suspend: false, runtimePatches: [{manager: a.com/a}]}")
	s := newStored(t, job)
	w := s.writer(true)
	if err := w.Suspend(t.Context(), job.DeepCopy()); err != nil {
		t.Fatal(err)
	}
	s.wantSent("whatever else has changed", `{"metadata":{"uid":"uid"},"spec":{"suspend":true}}`)
	if is := s.now(); !*is.Spec.Suspend || len(is.Spec.RuntimePatches) != 1 || !w.Behind(job) {
		t.Errorf("its entries stay while pods run with them: got %+v", is.Spec)
	}
	s.fail["patch"] = errDown
	if err := w.Suspend(t.Context(), job.DeepCopy()); !errors.Is(err, errDown) {
		t.Errorf("the error is passed on: got %v", err)
	}
}

func TestWriterClear(t *testing.T) {
	const own = "{manager: kueue.x-k8s.io/manager, time: '2026-11-23T10:00:00Z', trainingRuntimeSpec: {template: {spec: " +
		"{replicatedJobs: " +
		"[{name: node, template: {spec: {template: {spec: {nodeSelector: {a: b}}}}}}]}}}}"
	job := storedJob(t, "spec: {suspend: true, runtimePatches: [{manager: a.com/a}, "+own+"]}")
	s := newStored(t, job)
	before := job.DeepCopy()
	if err := s.writer(true).Clear(t.Context(), dialect.Bundled, job); err != nil {
		t.Fatal(err)
	}
	s.wantSent("in its place, where it is still ours", guarded+`test /spec/runtimePatches/1/manager `+
		`"kueue.x-k8s.io/manager"; replace /spec/runtimePatches/1`)
	is := s.now()
	if e := is.Spec.RuntimePatches[1]; !admission.IsNeutral(&e) || !e.Time.Time.Equal(someTime) ||
		len(is.Spec.RuntimePatches) != 2 {
		t.Errorf("nothing of an admission is left: got %+v", is.Spec.RuntimePatches)
	}
	if job.ResourceVersion != before.ResourceVersion || len(job.Spec.RuntimePatches) != 2 {
		t.Error("what was given is not changed")
	}
	if err := s.writer(true).Clear(t.Context(), dialect.Bundled, job); !apierrors.IsConflict(err) {
		t.Errorf("it has changed since: got %v", err)
	}
	s.sent = nil
	if err := s.writer(true).Clear(t.Context(), dialect.Bundled, storedJob(t, "{}")); err != nil {
		t.Errorf("there is nothing to clear: got %v", err)
	}
	s.wantSent("there is nothing to clear")
}

func TestWriterClearByRecord(t *testing.T) {
	const record = `metadata: {annotations: {signalbox.dev/overrides: ` +
		`'{"field":"podTemplateOverrides","time":"2026-11-23T10:00:00Z",` +
		`"own":[{"targetJobs":[{"name":"node"}],"spec":{"nodeSelector":{"a":"b"}}}],"users":{"podTemplateOverrides":[]}}'}}`
	job := storedJob(t, record+"\nspec: {suspend: true}")
	entry := admission.Neutral(dialect.Kubeflow21.Own(job))
	written, err := dialect.Kubeflow21.Record(job, &entry)
	if err != nil {
		t.Fatal(err)
	}
	neutral := written.Own
	cases := map[string]struct {
		reason   string
		job      *api.TrainJob
		rendered []any
		fail     error
		want     string // of the error
	}{
		"fine":         {"our webhook puts it into the list", job, neutral, nil, ""},
		"not rendered": {"our webhook isn't there", job, []any{}, nil, ErrNotRendered.Error()},
		"no answer":    {"it is passed on", job, neutral, errDown, "down"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			s := newStored(t, c.job)
			s.rendered, s.fail["patch"] = c.rendered, c.fail
			err := s.writer(false).Clear(t.Context(), dialect.Kubeflow21, c.job.DeepCopy())
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("%s: got %v, want %q", c.reason, err, c.want)
			}
			if len(s.sent) != 1 || !strings.Contains(s.sent[0], `"resourceVersion":"7","uid":"uid"`) {
				t.Errorf("guarded by UID and version: got %q", s.sent)
			}
			if is, err := legacy.RecordOf(s.now()); c.want == "" && (err != nil || is.Time == nil ||
				!is.Time.Time.Equal(someTime) || is.Users == nil) {
				t.Errorf("the record has its time, and keeps the users' elements: got %+v, %v", is, err)
			}
		})
	}
}

// The operations are those of package overrides, whose tests say what they are.
func TestWriterMigrate(t *testing.T) {
	job := storedJob(t, "metadata: {annotations: {signalbox.dev/overrides: '{\"field\":\"podSpecOverrides\"}'}}")
	operations := []jsonpatch.Operation{{Operation: "remove", Path: "/metadata/annotations/signalbox.dev~1overrides"}}
	s := newStored(t, job)
	w := s.writer(true)
	if err := w.Migrate(t.Context(), job.DeepCopy(), operations); err != nil {
		t.Fatal(err)
	}
	s.wantSent("an API server that serves the previous CRD rejects it", "Strict "+guarded+
		"remove /metadata/annotations/signalbox.dev~1overrides")
	if is, err := legacy.RecordOf(s.now()); err != nil || is != nil {
		t.Errorf("the Record goes: got %+v, %v", is, err)
	}
	if !w.Behind(job) {
		t.Error("the version before is late from now")
	}
	if err := w.Migrate(t.Context(), job.DeepCopy(), operations); err == nil {
		t.Errorf("it has changed since: got %v", err)
	}
}

func TestWriterPin(t *testing.T) {
	job := storedJob(t, "metadata: {annotations: {a: b}}")
	s := newStored(t, job)
	w := s.writer(true)
	if err := w.Pin(t.Context(), job, "p"); err != nil {
		t.Fatal(err)
	}
	s.wantSent("guarded by UID and "+
		"version", `{"metadata":{"annotations":{"signalbox.dev/runtime":"p"},"resourceVersion":"7","uid":"uid"}}`)
	if is := s.now(); is.Annotations[PinAnnotation] != "p" || is.Annotations["a"] != "b" || !w.Behind(job) {
		t.Errorf("got %v", is.Annotations)
	}
	if err := w.Pin(t.Context(), job, "p"); !apierrors.IsConflict(err) {
		t.Errorf("it has changed since: got %v", err)
	}
}

func TestWriterStatus(t *testing.T) {
	suspended := func(status *api.TrainJobStatus) {
		status.Flavor = "a"
		status.Conditions = []metav1.Condition{{Type: trainerapi.TrainJobSuspended, Status: metav1.ConditionTrue, Reason: "R",
			LastTransitionTime: metav1.NewTime(someTime)}}
	}
	const conditions = `"conditions":[{"lastTransitionTime":"2026-11-23T12:00:00Z","message":"",` +
		`"reason":"R","status":"True","type":"Suspended"}]`
	cases := map[string]struct {
		reason   string
		extended bool
		change   func(*api.TrainJobStatus)
		want     string
		state    api.TrainJobState
		flavor   string
	}{
		"ours": {"with the state; a training process may write its own part", true, suspended,
			`status {"metadata":{"uid":"uid"},"status":{` + conditions + `,"flavor":"a","state":"Suspended"}}`,
			api.StateSuspended, "a"},
		"ours, the same": {"the state may be missing", true, func(*api.TrainJobStatus) {},
			`status {"metadata":{"uid":"uid"},"status":{"state":"Starting"}}`, api.StateStarting, ""},
		"Kubeflow Trainer's": {"it writes the same list, and its CRD has no state", false, suspended,
			`status {"metadata":{"resourceVersion":"7","uid":"uid"},"status":{` + conditions + `}}`, "", ""},
		"Kubeflow Trainer's, the same": {"there is nothing to say", false, func(*api.TrainJobStatus) {},
			`status {"metadata":{"resourceVersion":"7","uid":"uid"}}`, "", ""},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			job := storedJob(t, "{}")
			s := newStored(t, job)
			w, status := s.writer(c.extended), job.Status.DeepCopy()
			c.change(status)
			if err := w.Status(t.Context(), job, status); err != nil {
				t.Fatal(err)
			}
			s.wantSent(c.reason, c.want)
			if is := s.now(); is.Status.State != c.state || is.Status.Flavor != c.flavor ||
				len(is.Status.Conditions) != len(status.Conditions) {
				t.Errorf("%s: got %+v", c.reason, is.Status)
			}
			if len(job.Status.Conditions) != 0 {
				t.Error("what was given is not changed")
			}
			s.fail["patch status"] = errDown
			if err := w.Status(t.Context(), job, status); !errors.Is(err, errDown) {
				t.Errorf("the error is passed on: got %v", err)
			}
		})
	}
}

// What is older than the last write is late, of whatever kind that was.
func TestWriterForgets(t *testing.T) {
	job := storedJob(t, "{}")
	s := newStored(t, job)
	w := s.writer(true)
	if err := w.Suspend(t.Context(), job.DeepCopy()); err != nil || !w.Behind(job) {
		t.Fatalf("got %v, behind %t", err, w.Behind(job))
	}
	if w.Forget(types.NamespacedName{Namespace: "ns", Name: "job"}); w.Behind(job) {
		t.Error("a TrainJob that is gone is forgotten")
	}
}
