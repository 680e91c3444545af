package webhook

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	admissionv1 "k8s.io/api/admission/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	webhookadmission "sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides"
)

func TestWebhookOnRequests(t *testing.T) {
	h := newHarness(t)
	h.put(&api.ClusterTrainingRuntime{ObjectMeta: metav1.ObjectMeta{Name: "old",
		Labels: map[string]string{"trainer.kubeflow.org/support": "deprecated"}}, Spec: h.runtime("old", "{torch: {}}").Spec})
	other := h.trainJob("torch", "metadata: {name: active}")
	h.put(active(other))
	w := h.hook
	const entry = `{manager: a.com/a, trainingRuntimeSpec: {template: {spec: {replicatedJobs: [{name: node, template: {spec: {template: {spec: {nodeSelector: {a: b}}}}}}]}}}}`
	cases := map[string]struct {
		reason, runtime, before, after, user, want string
	}{
		"fine": {
			"an entry for a job that is there",
			"torch",
			"",
			"spec: {runtimePatches: [" + entry + "]}",
			"",
			"",
		},
		"no runtime": {
			"path, value and way out",
			"missing",
			"",
			"{}",
			"",
			`spec.runtimeRef: Invalid value: "missing": there is no TrainingRuntime "missing" in namespace "ns"; create it before the TrainJob`,
		},
		"an unknown kind": {
			"path, value and what there is",
			"torch",
			"",
			"spec: {runtimeRef: {name: x, kind: Other}}",
			"",
			`spec.runtimeRef.kind: Unsupported value: "Other.trainer.kubeflow.org": supported values: "ClusterTrainingRuntime`,
		},
		"reserved variables": {
			"Trainer's plugins are asked too",
			"torch",
			"",
			"spec: {trainer: {env: [{name: PET_NNODES, value: x}]}}",
			"",
			"must not have reserved envs",
		},
		"stopped, no runtime": {
			"a running TrainJob can be stopped whatever became of its runtime",
			"missing",
			"spec: {suspend: false}",
			"spec: {suspend: true}",
			"",
			"",
		},
		"changed while it runs": {
			"the transition table",
			"torch",
			"spec: {suspend: false}",
			"spec: {suspend: false, runtimePatches: [" + entry + "]}",
			"",
			"spec.runtimePatches: Forbidden: the entry of a.com/a can't change while the TrainJob runs; suspend it " +
				"before, or in the same update",
		},
		"changed while active": {
			"the transition table",
			"torch",
			"metadata: {name: active}\nspec: {suspend: true}",
			"metadata: {name: active}\nspec: {suspend: true, runtimePatches: [" + entry + "]}",
			"",
			`replicatedJob "node" of the last run is still active (2)`,
		},
		"by the integration": {
			"its entry was computed on the runtime, wherever that is now",
			"missing",
			"spec: {suspend: true}",
			"spec: {suspend: false, runtimePatches: [{manager: kueue.x-k8s.io/manager}]}",
			"signalbox",
			"",
		},
		"no manager": {
			"path, value and way out",
			"torch",
			"",
			"spec: {runtimePatches: [{manager: me}]}",
			"",
			`spec.runtimePatches[0].manager: Invalid value: "me": must be a domain-prefixed path`,
		},
		"being deleted": {
			"it is let go",
			"missing",
			"metadata: {deletionTimestamp: '2026-01-01T00:00:00Z'}",
			"metadata: {deletionTimestamp: '2026-01-01T00:00:00Z'}",
			"",
			"",
		},
		"an unreadable object": {"the decoder's word", "", "", "", "", "there is no content to decode"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			if c.user == "" {
				c.user = "user"
			}
			request := webhookadmission.Request{AdmissionRequest: admissionv1.AdmissionRequest{
				Operation: admissionv1.Create, Namespace: "ns", UserInfo: authenticationv1.UserInfo{Username: c.user},
			}}
			raw := func(text string) runtime.RawExtension {
				job := h.trainJob(c.runtime, text)
				job.APIVersion, job.Kind = trainerapi.GroupVersion.String(), trainerapi.TrainJobKind
				return runtime.RawExtension{Raw: must(json.Marshal(job))}
			}
			if c.runtime != "" {
				request.Object = raw(c.after)
			}
			if c.before != "" {
				request.Operation, request.OldObject = admissionv1.Update, raw(c.before)
			}
			answer := w.mutate(context.Background(), request)
			if answer.Allowed {
				answer = w.validate(context.Background(), request)
			}
			if c.want == "" && !answer.Allowed ||
				c.want != "" && (answer.Allowed || !strings.Contains(answer.Result.Message, c.want)) {
				t.Errorf("%s: got allowed %t, %+v; want %q", c.reason, answer.Allowed, answer.Result, c.want)
			}
		})
	}
	deprecated := h.trainJob("old", "spec: {runtimeRef: {kind: ClusterTrainingRuntime, name: old}}")
	request := webhookadmission.Request{
		AdmissionRequest: admissionv1.AdmissionRequest{
			Operation: admissionv1.Create,
			Object:    runtime.RawExtension{Raw: must(json.Marshal(deprecated))},
		},
	}
	if answer := w.validate(context.Background(), request); !answer.Allowed || len(answer.Warnings) != 1 ||
		!strings.Contains(answer.Warnings[0], `ClusterTrainingRuntime "old" is deprecated`) {
		t.Errorf("a deprecated runtime is warned of: got %+v", answer)
	}
}

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

// TestGrow holds that a value which says nothing is rejected with path, value and what is valid, and that a TrainJob
// which can't grow is warned of when it asks.
func TestGrow(t *testing.T) {
	const invalid = `metadata.annotations[signalbox.dev/grow]: Invalid value: "yes": must be "true"`
	const all, off = "admitted with all its nodes (2) or not at all; set annotation kueue.x-k8s.io/job-min-parallelism",
		"grow.enabled is false"
	for name, c := range map[string]struct {
		before, after map[string]string // annotations; nil before for a new TrainJob
		off           bool
		want, warns   string
	}{
		"without it":        {after: map[string]string{"a": "b"}},
		"created":           {after: map[string]string{api.GrowAnnotation: "true", overrides.MinParallelismAnnotation: "1"}},
		"without a minimum": {after: map[string]string{api.GrowAnnotation: "true"}, warns: all},
		"doesn't want to":   {after: map[string]string{api.GrowAnnotation: "false"}},
		"nothing grows":     {off: true, after: map[string]string{api.GrowAnnotation: "true"}, warns: off},
		"is added":          {before: map[string]string{}, after: map[string]string{api.GrowAnnotation: "true"}, warns: all},
		"was there": {before: map[string]string{api.GrowAnnotation: "true"}, after: map[string]string{
			api.GrowAnnotation: "true", "a": "b"}},
		"the minimum is removed": {before: map[string]string{api.GrowAnnotation: "true",
			overrides.MinParallelismAnnotation: "1"}, after: map[string]string{api.GrowAnnotation: "true"}, warns: all},
		"invalid":         {after: map[string]string{api.GrowAnnotation: "yes"}, want: invalid},
		"becomes invalid": {before: map[string]string{}, after: map[string]string{api.GrowAnnotation: "yes"}, want: invalid},
		"empty":           {after: map[string]string{api.GrowAnnotation: ""}, want: `Invalid value: ""`},
		"stored, and another": {before: map[string]string{api.GrowAnnotation: "yes"}, after: map[string]string{
			api.GrowAnnotation: "yes", "a": "b"}},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			h.hook.Grows = !c.off
			of := func(annotations map[string]string) *api.TrainJob {
				job := h.trainJob("torch", stopped)
				job.Annotations = annotations
				return job
			}
			var before any
			if c.before != nil {
				before = of(c.before)
			}
			answer := h.ask(validatePath, user, before, of(c.after))
			if answer.Allowed != (c.want == "") || !answer.Allowed && !strings.Contains(answer.Result.Message, c.want) {
				t.Errorf("got allowed %t, %+v; want %q", answer.Allowed, answer.Result, c.want)
			}
			warns := strings.Join(answer.Warnings, "; ")
			if (warns == "") != (c.warns == "") || !strings.Contains(warns, c.warns) || len(answer.Warnings) > 1 {
				t.Errorf("warns %q, want %q", warns, c.warns)
			}
		})
	}
}
