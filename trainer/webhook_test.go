package trainer

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	admissionv1 "k8s.io/api/admission/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/clock"
	webhookadmission "sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/signalbox-dev/signalbox/overrides"
	"github.com/signalbox-dev/signalbox/review"
	"github.com/signalbox-dev/signalbox/store"
)

func testWebhook(t testing.TB) *Webhook {
	t.Helper()
	c := testClient(t)
	return &Webhook{
		Client: c, Live: c, Builder: testBuilder(t, c), Clock: clock.RealClock{},
		Limits: overrides.Limits{Pods: 5000, SpecBytes: 1 << 20, Elements: 1 << 20, GracePeriodSeconds: 3600},
		Reader: testReader(c.Scheme()),
	}
}

func testReader(scheme *runtime.Scheme) review.Reader {
	return review.Reader{
		Decoder: webhookadmission.NewDecoder(scheme), Trusted: []string{"signalbox"},
		Limits: review.LimitsFor(256<<10, 1000),
	}
}

func TestWebhookOnRequests(t *testing.T) {
	w := testWebhook(t)
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
				job := jobOf(t, c.runtime, text)
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
	deprecated := jobOf(t, "old", "spec: {runtimeRef: {kind: ClusterTrainingRuntime, name: old}}")
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

func TestPinSurvives(t *testing.T) {
	spec := runtimeOf(t, "{numNodes: 2, torch: {}}", lastingVolume)
	pin := must(store.Pin(spec))
	job := jobOf(t, "torch", "{}")
	job.Annotations = map[string]string{store.PinAnnotation: pin}
	got, err := store.Pinned(job)
	if err != nil || string(must(json.Marshal(got))) != string(must(json.Marshal(spec))) {
		t.Errorf("what was pinned comes back: got %v, %v", got, err)
	}
	job.Annotations[store.PinAnnotation] = "x"
	if _, err := store.Pinned(job); err == nil || !strings.Contains(err.Error(), "it was not written by Signalbox") {
		t.Errorf("a forged pin is named: got %v", err)
	}
}
