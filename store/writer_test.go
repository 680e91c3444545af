package store

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/signalbox-dev/signalbox/admission"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides/legacy"
)

func TestBehind(t *testing.T) {
	at := func(uid, version string) *api.TrainJob {
		return &api.TrainJob{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "job", UID: types.UID(uid), ResourceVersion: version},
		}
	}
	clk := clocktesting.NewFakeClock(time.Date(2026, 11, 20, 0, 0, 0, 0, time.UTC))
	w := NewWriter(nil, clk, true)
	if w.Behind(at("uid", "1")) {
		t.Error("nothing was written, so nothing is late")
	}
	w.wrote(at("uid", "100"))
	if !w.Behind(at("uid", "99")) || w.Behind(at("uid", "100")) || w.Behind(at("uid", "101")) {
		t.Error("what is older than our last write is late, and nothing else")
	}
	other := at("other", "1")
	if w.Behind(other) {
		t.Error("another TrainJob of that name has versions of its own")
	}
	clk.Step(maxCacheDelay + time.Second)
	if w.Behind(at("uid", "99")) {
		t.Error("an API server that was set back is believed after a while")
	}
	w.wrote(at("uid", "200"))
	w.Forget(client.ObjectKeyFromObject(other))
	if w.Behind(at("uid", "1")) {
		t.Error("a TrainJob that is gone is forgotten")
	}
}

// TestStartInTwo holds that the entry is written first and suspend cleared after it, each guarded by the version that
// was looked at, and that nothing is started whose entry did not come to stand.
func TestStartInTwo(t *testing.T) {
	conflict := apierrors.NewConflict(schema.GroupResource{Resource: "trainjobs"}, "job", errors.New("changed"))
	element := map[string]any{"targetJobs": []any{map[string]any{"name": "node"}}}
	const both = `{"metadata":{"annotations":{"signalbox.dev/overrides":` +
		`"{\"field\":\"podTemplateOverrides\",\"own\":[{\"targetJobs\":[{\"name\":\"node\"}]}]}"},` +
		`"resourceVersion":"7","uid":"uid"}}`
	resumed := func(list string) string {
		return strings.ReplaceAll(guarded, "7", "8") + "test /spec/podTemplateOverrides " + list + "; add /spec/suspend false"
	}
	cases := map[string]struct {
		reason   string
		rendered []any // the list after the first write
		fail     int   // the write that fails
		want     []string
		err      error
	}{
		"both": {
			"the second is guarded by the version of the first", []any{"users'", element}, 0,
			[]string{both, resumed(`["users'",{"targetJobs":[{"name":"node"}]}]`)}, nil,
		},
		"the first fails": {"nothing follows", []any{element}, 1, []string{both}, conflict},
		"not rendered":    {"it must not run without its entry", []any{"users'"}, 0, []string{both}, ErrNotRendered},
		"the second fails": {
			"what has changed in between is to be looked at", []any{element}, 2,
			[]string{both, resumed(`[{"targetJobs":[{"name":"node"}]}]`)}, conflict,
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			s := newStored(t)
			writes := interceptor.Funcs{
				Patch: func(_ context.Context, _ client.WithWatch, o client.Object, patch client.Patch,
					options ...client.PatchOption) error {
					if err := s.record("", o, patch, (&client.PatchOptions{}).ApplyOptions(options)); err != nil {
						return err
					}
					if len(s.sent) == c.fail {
						return conflict
					}
					o.SetResourceVersion(fmt.Sprint(7 + len(s.sent)))
					if u, ok := o.(*unstructured.Unstructured); ok {
						return unstructured.SetNestedSlice(u.Object, c.rendered, "spec", "podTemplateOverrides")
					}
					return nil
				},
			}
			w := NewWriter(interceptor.NewClient(s.store, writes), s.clock, false)
			err := w.StartInTwo(t.Context(), &admission.Start{
				Key: types.NamespacedName{Namespace: "ns", Name: "job"}, UID: "uid", ResourceVersion: "7",
				Record: &legacy.Record{Field: legacy.PodTemplateOverrides, Own: []any{element}},
			})
			if !errors.Is(err, c.err) || (err == nil) != (c.err == nil) {
				t.Errorf("%s: got %v", c.reason, err)
			}
			s.wantSent(c.reason, c.want...)
		})
	}
}

func TestRejected(t *testing.T) {
	resource := schema.GroupResource{Resource: "trainjobs"}
	for name, c := range map[string]struct {
		err  error
		want bool
	}{
		"nothing":       {nil, false},
		"no answer":     {errDown, false},
		"conflict":      {apierrors.NewConflict(resource, "job", errDown), false},
		"gone":          {apierrors.NewNotFound(resource, "job"), false},
		"too many":      {apierrors.NewTooManyRequests("later", 1), false},
		"unavailable":   {apierrors.NewServiceUnavailable("down"), false},
		"internal":      {apierrors.NewInternalError(errDown), false},
		"forbidden":     {apierrors.NewForbidden(resource, "job", errDown), true},
		"invalid":       {apierrors.NewInvalid(schema.GroupKind{Kind: "TrainJob"}, "job", nil), true},
		"bad request":   {apierrors.NewBadRequest("no"), true},
		"large request": {apierrors.NewRequestEntityTooLargeError("limit is 3145728"), true},
		"large for etcd": {fmt.Errorf("suspending: %w",
			apierrors.NewInternalError(errors.New("etcdserver: request is too large"))), true},
	} {
		if got := Rejected(c.err); got != c.want {
			t.Errorf("%s: got %t, want %t", name, got, c.want)
		}
	}
}

const refusal = "admission webhook denied the request: spec.runtimePatches: Forbidden: RuntimePatches can only be " +
	"modified when the TrainJob is suspended"

func TestRefused(t *testing.T) {
	for message, want := range map[string]bool{
		refusal:                                 true,
		refusal + " before or after the update": false,
		"the object has been modified":          false,
	} {
		if got := Refused(errors.New(message)); got != want {
			t.Errorf("%q: got %t, want %t", message, got, want)
		}
	}
	if Refused(nil) {
		t.Error("no error is no refusal")
	}
}

// TestStartAtomically holds that a Trainer that refuses to start in one write is not asked to for a while, and is then
// asked again: it may be another, with the same CRD.
func TestStartAtomically(t *testing.T) {
	refuses, requests := true, 0
	writes := interceptor.Funcs{
		Patch: func(
			_ context.Context, _ client.WithWatch, o client.Object, patch client.Patch, _ ...client.PatchOption,
		) error {
			requests++
			data, err := patch.Data(o)
			sent := string(data)
			if refuses && strings.Contains(sent, "/spec/suspend") && strings.Contains(sent, "/spec/runtimePatches") {
				return errors.New(refusal)
			}
			return err
		},
	}
	clk := clocktesting.NewFakeClock(time.Date(2026, 11, 20, 0, 0, 0, 0, time.UTC))
	w := NewWriter(interceptor.NewClient(nil, writes), clk, false)
	for _, step := range []struct {
		reason   string
		after    time.Duration
		refuses  bool
		atomic   bool
		requests int
	}{
		{"a Trainer that takes it in one", 0, false, true, 1},
		{"one that refuses gets it in two", 0, true, false, 3},
		{"and isn't tried for a while", refusalHolds - time.Second, true, false, 2},
		{"then it is tried again", time.Second, false, true, 1},
	} {
		clk.Step(step.after)
		refuses, requests = step.refuses, 0
		atomic, err := w.StartAtomically(t.Context(), &admission.Start{At: -1})
		if err != nil || atomic != step.atomic || requests != step.requests {
			t.Errorf("%s: got atomic %t, %d requests, %v; want %t, %d", step.reason, atomic, requests, err, step.atomic,
				step.requests)
		}
	}
}

// TestWriterAsRead holds that a TrainJob is stopped or restarted for a stall only in the version that was judged, and
// that what it has used is added to the version that was read.
func TestWriterAsRead(t *testing.T) {
	for name, c := range map[string]struct {
		write func(*testing.T, *Writer, *api.TrainJob) error
		want  string
	}{
		"a stop": {func(t *testing.T, w *Writer, job *api.TrainJob) error { return w.Stop(t.Context(), job, "stalled") },
			`{"metadata":{"annotations":{"signalbox.dev/stop":"stalled"},"resourceVersion":"7","uid":"uid"}}`},
		"a stop without a queue": {func(t *testing.T, w *Writer, job *api.TrainJob) error {
			return w.SuspendAsRead(t.Context(), job)
		}, `{"metadata":{"resourceVersion":"7","uid":"uid"},"spec":{"suspend":true}}`},
		"a restart": {func(t *testing.T, w *Writer, job *api.TrainJob) error {
			status := job.Status.DeepCopy()
			status.Lost = &api.Loss{JobSet: "js", Restarts: 1, Restarting: true}
			return w.StatusAsRead(t.Context(), job, status)
		}, `status {"metadata":{"resourceVersion":"7","uid":"uid"},"status":{"lost":{"jobSet":"js","pod":"","restarting":` +
			`true,"restarts":1},"state":"Starting"}}`},
		"what it has used, by a manager that may have lost its lead": {
			func(t *testing.T, w *Writer, job *api.TrainJob) error {
				return w.Usage(t.Context(), job, &api.Usage{Runs: 1, Run: "a"})
			}, `status {"metadata":{"resourceVersion":"7","uid":"uid"},"status":{"state":"Starting","usage":{"run":"a",` +
				`"runs":1,"until":null}}}`},
	} {
		t.Run(name, func(t *testing.T) {
			job := storedJob(t, "spec: {suspend: false}")
			s := newStored(t, job)
			w := s.writer(true)
			if err := c.write(t, w, job.DeepCopy()); err != nil || !w.Behind(job) {
				t.Fatalf("got %v", err)
			}
			s.wantSent("guarded", c.want)
			if err := c.write(t, w, job.DeepCopy()); !apierrors.IsConflict(err) {
				t.Errorf("it has changed since: got %v", err)
			}
		})
	}
}
