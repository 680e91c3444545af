package webhook

import (
	"errors"
	"strings"
	"testing"

	"k8s.io/utils/ptr"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// TestStalledAfter holds that an annotation is rejected that says nothing, with path, value and what is valid, and that
// one that has no effect is warned of when it comes.
func TestStalledAfter(t *testing.T) {
	const noEffect = "annotation signalbox.dev/stalled-after has no effect"
	for name, c := range map[string]struct {
		before, after, runtime *string // nil for none
		reports                bool
		want, warns            string
	}{
		"without it":                  {},
		"created":                     {after: ptr.To("30m,stop"), reports: true},
		"added":                       {before: nil, after: ptr.To("30m"), reports: true},
		"created, nothing reports":    {after: ptr.To("30m"), warns: noEffect},
		"its runtime's, and nothing":  {runtime: ptr.To("30m"), warns: `TrainingRuntime "torch" in namespace "ns": ` + noEffect},
		"its runtime's":               {runtime: ptr.To("30m"), reports: true},
		"both, and nothing":           {after: ptr.To("30m"), runtime: ptr.To("1h"), warns: noEffect},
		"changed, nothing reports":    {before: ptr.To("1h"), after: ptr.To("30m"), warns: noEffect},
		"as before, nothing reports":  {before: ptr.To("30m"), after: ptr.To("30m")},
		"removed":                     {before: ptr.To("30m")},
		"invalid":                     {after: ptr.To("5s"), want: `metadata.annotations[signalbox.dev/stalled-after]: Invalid value: "5s"`},
		"becomes invalid":             {before: ptr.To("30m"), after: ptr.To("30m,kill"), want: `"30m,kill": must be a duration from 1m`},
		"stored, and another changes": {before: ptr.To("soon"), after: ptr.To("soon")},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			h.hook.Reports = c.reports
			if c.runtime != nil {
				rt := h.runtime("torch", "{numNodes: 2, torch: {}}")
				rt.Annotations = map[string]string{api.StalledAfterAnnotation: *c.runtime}
				if err := errors.Join(h.store.Delete(t.Context(), rt), h.store.Create(t.Context(), rt)); err != nil {
					t.Fatal(err)
				}
			}
			of := func(value *string) *api.TrainJob {
				job := h.trainJob("torch", stopped)
				if value != nil {
					job.Annotations = map[string]string{api.StalledAfterAnnotation: *value}
				}
				return job
			}
			var before any
			after := of(c.after)
			if c.before != nil {
				before, after.Labels = of(c.before), map[string]string{"a": "b"}
			}
			answer := h.ask(validatePath, user, before, after)
			if c.want == "" && !answer.Allowed || c.want != "" && (answer.Allowed ||
				!strings.Contains(answer.Result.Message, c.want)) {
				t.Errorf("got allowed %t, %+v; want %q", answer.Allowed, answer.Result, c.want)
			}
			warns := strings.Join(answer.Warnings, "; ")
			if (warns == "") != (c.warns == "") || !strings.HasPrefix(warns, c.warns) || len(answer.Warnings) > 1 {
				t.Errorf("warns %q, want %q", warns, c.warns)
			}
		})
	}
	h := newHarness(t)
	rt := h.runtime("rt", "{torch: {}}")
	rt.Annotations = map[string]string{api.StalledAfterAnnotation: "soon"}
	if answer := h.ask(runtimePath, user, nil, rt); answer.Allowed {
		t.Error("a runtime may say what a TrainJob may, and no more")
	}
}
