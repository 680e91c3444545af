package webhook

import (
	"context"
	"encoding/json"
	"testing"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	admissionv1 "k8s.io/api/admission/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/apimachinery/pkg/runtime"
	webhookadmission "sigs.k8s.io/controller-runtime/pkg/webhook/admission"
	kjson "sigs.k8s.io/json"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides"
	"github.com/signalbox-dev/signalbox/overrides/legacy"
)

// FuzzWebhook holds that no create or update makes the webhooks panic or fail. They change only the times of entries,
// and every rejection says what it concerns.
func FuzzWebhook(f *testing.F) {
	const head = `{"apiVersion":"trainer.kubeflow.org/v1alpha1","kind":"TrainJob","metadata":{"namespace":"ns","name":"job"},"spec":`
	const ref = `"runtimeRef":{"apiGroup":"trainer.kubeflow.org","kind":"TrainingRuntime","name":"`
	seeds := []string{
		head + `{` + ref + `torch"},"suspend":true}}`,
		head + `{` + ref + `mpi"},"suspend":false,"runtimePatches":[{"manager":"a.com/a","trainingRuntimeSpec":{"template":{"spec":{"replicatedJobs":[{"name":"node","template":{"spec":{"template":{"spec":{"nodeSelector":{"a":"b"}}}}}}]}}}}]}}`,
		head + `{` + ref + `torch"},"runtimePatches":[{"manager":"a.com/a","time":"2026-01-01T00:00:00Z"},{"manager":"kueue.x-k8s.io/manager"},{"manager":"x"}]}}`,
		head + `{` + ref + `flux"},"trainer":{"numNodes":2,"command":["a"]},"initializer":{"dataset":{},"model":{}}}}`,
		head + `{` + ref + `nothing"}}}`, head + `{"runtimeRef":{"kind":"Other","name":"x"}}}`, head + `{}}`,
	}
	for i, seed := range seeds {
		f.Add([]byte(seed), []byte(seeds[(i+1)%len(seeds)]), uint8(i))
	}
	h := newHarness(f)
	w := h.hook
	f.Fuzz(func(t *testing.T, before, after []byte, kind uint8) {
		request := webhookadmission.Request{AdmissionRequest: admissionv1.AdmissionRequest{
			Operation: admissionv1.Create, Namespace: "ns", Name: "job", Object: runtime.RawExtension{Raw: after},
			UserInfo: authenticationv1.UserInfo{Username: []string{"user", "signalbox"}[kind%2]},
		}}
		if kind%3 > 0 {
			request.Operation, request.OldObject = admissionv1.Update, runtime.RawExtension{Raw: before}
		}
		rq, err := w.Reader.Read(request)
		if err != nil {
			return
		}
		ctx := context.Background()
		answer := w.mutate(ctx, request)
		if answer.Allowed && len(answer.Patches) > 0 {
			data, err := json.Marshal(answer.Patches)
			if err != nil {
				t.Fatal(err)
			}
			patch, err := jsonpatch.DecodePatch(data)
			if err != nil {
				t.Fatal(err)
			}
			changed, err := patch.Apply(after)
			if err != nil {
				t.Fatalf("the patch %s can't be applied to %s: %v", data, after, err)
			}
			var result api.TrainJob
			if err := kjson.UnmarshalCaseSensitivePreserveInts(changed, &result); err != nil {
				t.Fatal(err)
			}
			if overrides.Changed(rq.New, &result) != nil || legacy.ChangedForm(rq.New, &result) != nil ||
				len(rq.New.Spec.RuntimePatches) != len(result.Spec.RuntimePatches) {
				t.Fatalf("%s became %s", after, changed)
			}
		}
		if answer.Allowed {
			answer = w.validate(ctx, request)
		}
		if !answer.Allowed && (answer.Result == nil || answer.Result.Message == "" || answer.Result.Code >= 500) {
			t.Fatalf("refused with %+v", answer.Result)
		}
	})
}
