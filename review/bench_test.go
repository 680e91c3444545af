package review

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/apimachinery/pkg/runtime"
	webhookadmission "sigs.k8s.io/controller-runtime/pkg/webhook/admission"
)

// BenchmarkGuard is a review of an update of a TrainJob with an entry, a pinned runtime, managed fields and a status,
// as a start sends it: what is done before a webhook decides.
func BenchmarkGuard(b *testing.B) {
	entry := `{"manager":"kueue.x-k8s.io/manager","trainingRuntimeSpec":{"template":{"spec":{"replicatedJobs":[{"name":` +
		`"node","template":{"spec":{"template":{"metadata":{"labels":{"a":"b"}},"spec":{"nodeSelector":{"gpu":"a100"},` +
		`"tolerations":[{"key":"gpu","operator":"Exists","effect":"NoSchedule"}]}}}}}]}}}}`
	fields := strings.Repeat(`{"manager":"m","operation":"Update","apiVersion":"v1","time":"2026-11-26T00:00:00Z",`+
		`"fieldsType":"FieldsV1","fieldsV1":{"f:spec":{".":{},"f:runtimeRef":{".":{},"f:name":{}},"f:suspend":{}}}},`, 3)
	object := fmt.Sprintf(`{"apiVersion":"trainer.kubeflow.org/v1alpha1","kind":"TrainJob","metadata":{"name":"a",`+
		`"namespace":"ns","uid":"x","annotations":{"pin":%q},"managedFields":[%s]},"spec":{"runtimeRef":{"name":"torch"},`+
		`"suspend":true,"trainer":{"numNodes":2,"resourcesPerNode":{"limits":{"nvidia.com/gpu":"1"}}},"runtimePatches":[%s]},`+
		`"status":{"jobsStatus":[{"name":"node","ready":1,"succeeded":0,"failed":0,"active":1,"suspended":0}]}}`,
		strings.Repeat("H4sI", 300), strings.TrimSuffix(fields, ","), entry)
	reader := Reader{Limits: LimitsFor(256<<10, 10000)}
	body, err := json.Marshal(admissionv1.AdmissionReview{Request: &admissionv1.AdmissionRequest{
		UID: "u", Operation: admissionv1.Update, Namespace: "ns", Name: "a",
		Object: runtime.RawExtension{Raw: []byte(object)}, OldObject: runtime.RawExtension{Raw: []byte(object)},
		UserInfo: authenticationv1.UserInfo{Username: "user", Groups: []string{"a", "b"}},
	}})
	if err != nil {
		b.Fatal(err)
	}
	b.Run("guard", func(b *testing.B) {
		hook := NewGuard().Wrap(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
		b.ReportAllocs()
		b.SetBytes(int64(len(body)))
		for b.Loop() {
			r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(string(body)))
			hook.ServeHTTP(httptest.NewRecorder(), r)
		}
	})
	b.Run("check", func(b *testing.B) {
		var request webhookadmission.Request
		request.Object.Raw, request.OldObject.Raw = []byte(object), []byte(object)
		b.ReportAllocs()
		for b.Loop() {
			if err := reader.check(request); err != nil {
				b.Fatal(err)
			}
		}
	})
}
