package main

import (
	"context"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// stop and resume set an annotation, or spec.suspend of a TrainJob that is in no queue.
func TestControl(t *testing.T) {
	const outside = `apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata: {name: outside, namespace: team, uid: outside}
spec: {suspend: false, runtimeRef: {name: torch}}`
	tr := newTrial(t, interceptor.Funcs{}, outside)
	job := func(name string) *api.TrainJob {
		j := &api.TrainJob{}
		if err := tr.client.Get(t.Context(), client.ObjectKey{Namespace: "team", Name: name}, j); err != nil {
			t.Fatal(err)
		}
		return j
	}
	must := func(args ...string) {
		t.Helper()
		if err := tr.try(args...); err != nil {
			t.Fatal(args, err)
		}
	}
	must("stop", "first")
	if job("first").Annotations[api.StopAnnotation] == "" || !strings.Contains(tr.out.String(), "is stopping") {
		t.Errorf("got %v, %q", job("first").Annotations, tr.out.String())
	}
	must("resume", "first")
	if _, stopped := job("first").Annotations[api.StopAnnotation]; stopped {
		t.Error("it is queued again")
	}
	must("stop", "outside")
	if !*job("outside").Spec.Suspend {
		t.Error("it is in no queue, and suspended")
	}
	must("resume", "outside")
	if *job("outside").Spec.Suspend {
		t.Error("it runs again")
	}
	must("stop", "first")
	must("restart", "first")
	if _, stopped := job("first").Annotations[api.StopAnnotation]; stopped {
		t.Error("it was stopped, and is queued again")
	}
	must("restart", "outside")
	if *job("outside").Spec.Suspend {
		t.Error("it was stopped, and runs again")
	}
	wl := objectsOf(t, strings.Split(base, "\n---\n")[8])[0]
	patch := client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"active":false}}`))
	if err := tr.client.Patch(t.Context(), wl, patch); err != nil {
		t.Fatal(err)
	}
	if err := tr.try(
		"resume",
		"second",
	); err == nil ||
		!strings.Contains(err.Error(), "was deactivated by Kueue or by an admin") {
		t.Errorf("an admin has deactivated it: got %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := tr.run(
		ctx,
		"restart",
		"first",
	); err == nil ||
		!strings.Contains(err.Error(), "resume first queues it again") {
		t.Errorf("nobody stops it here: got %v", err)
	}
	ended := client.RawPatch("application/merge-patch+json", []byte(`{"status":{"conditions":[{"type":"Complete",`+
		`"status":"True","reason":"X","message":"","lastTransitionTime":"2026-11-24T10:00:00Z"}]}}`))
	if err := tr.client.Patch(t.Context(), job("outside"), ended); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"stop", "nobody"}, {"resume", "nobody"}, {"stop", "outside"}, {"resume", "outside"}, {"restart", "outside"},
	} {
		if err := tr.try(args...); err == nil {
			t.Error(args)
		}
	}
}

// TestRestartOfFailedStart holds that a TrainJob whose start has failed is stopped, and queued again when the manager
// has replaced its Workload.
func TestRestartOfFailedStart(t *testing.T) {
	for _, replaced := range []bool{true, false} {
		wl := &kueue.Workload{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "wl-second"}}
		tr := newTrial(t, interceptor.Funcs{Patch: func(ctx context.Context, c client.WithWatch, o client.Object,
			patch client.Patch, options ...client.PatchOption) error {
			err := c.Patch(ctx, o, patch, options...)
			if _, stopped := o.GetAnnotations()[api.StopAnnotation]; err == nil && stopped && replaced {
				err = c.Delete(ctx, wl)
			}
			return err
		}})
		failed := client.RawPatch("application/merge-patch+json", []byte(`{"status":{"conditions":[{"type":"Finished",`+
			`"status":"True","reason":"FailedToStart","message":"","lastTransitionTime":"2026-11-24T10:00:00Z"}]}}`))
		if err := tr.client.Patch(t.Context(), wl.DeepCopy(), failed); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		err := tr.run(ctx, "restart", "second")
		if queued := strings.Contains(tr.out.String(), "second is queued again"); queued != replaced ||
			(err == nil) != replaced {
			t.Errorf("replaced %t: got %v, %q", replaced, err, tr.out.String())
		}
	}
}

// list --watch, wait and logs -f follow a TrainJob.
func TestFollow(t *testing.T) {
	finish := func(tr *trial) {
		patch := client.RawPatch("application/merge-patch+json", []byte(`{"status":{"state":"Complete"}}`))
		job := &api.TrainJob{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "first"}}
		if err := tr.client.Patch(tr.t.Context(), job, patch); err != nil {
			tr.t.Error(err)
		}
	}
	cases := map[string]struct {
		args []string
		out  string
		err  string
	}{
		"list": {[]string{"list", "--watch"}, "Complete", ""},
		"wait": {[]string{"wait", "first", "--for", "complete"}, "TrainJob first is Complete", ""},
		"wait for another end": {
			[]string{"wait", "first", "--for", "failed"},
			"is Complete",
			"is Complete, and won't be failed",
		},
		"logs": {[]string{"logs", "first", "-f"}, "[node-0] fake logs", ""},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			tr := newTrial(t, interceptor.Funcs{}, twoPods)
			watching := make(chan struct{}, 8)
			tr.client = interceptor.NewClient(tr.client, interceptor.Funcs{Watch: func(
				ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption,
			) (w watch.Interface, err error) {
				w, err = c.Watch(ctx, list, opts...)
				if _, jobs := list.(*api.TrainJobList); jobs {
					watching <- struct{}{}
				}
				return w, err
			}})
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			go func() {
				<-watching
				finish(tr)
			}()
			if name == "list" { // it watches until it is interrupted
				tr.out.shown = func(piece string) {
					if strings.Contains(piece, c.out) {
						cancel()
					}
				}
			}
			err := tr.run(ctx, c.args...)
			if name != "list" &&
				(c.err == "" && err != nil || c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err))) {
				t.Fatalf("got %v, want %q", err, c.err)
			}
			if !strings.Contains(tr.out.String(), c.out) {
				t.Errorf("got %q, %q", tr.out.String(), tr.errs.String())
			}
		})
	}
}

// Names of TrainJobs are completed.
func TestComplete(t *testing.T) {
	tr := newTrial(t, interceptor.Funcs{})
	c := &cli{connect: func() (*session, error) { return &session{client: tr.client, namespace: "team"}, nil }}
	cmd := explainCommand(c)
	cmd.SetContext(t.Context())
	names, _ := cmd.ValidArgsFunction(cmd, nil, "")
	if len(names) != 2 {
		t.Errorf("got %v", names)
	}
	if names, _ := cmd.ValidArgsFunction(cmd, []string{"first"}, ""); len(names) != 0 {
		t.Errorf("one name is enough: got %v", names)
	}
}
