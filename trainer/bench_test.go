package trainer

import (
	"context"
	"encoding/json"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/apimachinery/pkg/runtime"
	ctrladmission "sigs.k8s.io/controller-runtime/pkg/webhook/admission"
)

// BenchmarkBuild is the JobSet of a TrainJob that is started.
func BenchmarkBuild(b *testing.B) {
	builder := testBuilder(b, testClient(b))
	job, spec := jobOf(b, "torch", "spec: {suspend: false, trainer: {numNodes: 2}}"), runtimeOf(b, "{numNodes: 2, torch: {}}", lostVolume)
	b.ReportAllocs()
	for b.Loop() {
		if _, _, err := builder.Build(context.Background(), job, spec); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkWebhook is both webhooks of the override contract, for a TrainJob that is created.
func BenchmarkWebhook(b *testing.B) {
	w := testWebhook(b)
	job := jobOf(b, "torch", `
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
spec:
  suspend: true
  trainer: {numNodes: 2}
  runtimePatches:
  - {manager: a.com/a, trainingRuntimeSpec: {template: {spec: {replicatedJobs: [{name: node, template: {spec: {template: {spec: {nodeSelector: {a: b}}}}}}]}}}}
`)
	raw, err := json.Marshal(job)
	if err != nil {
		b.Fatal(err)
	}
	request := ctrladmission.Request{AdmissionRequest: admissionv1.AdmissionRequest{
		Operation: admissionv1.Create, Namespace: "ns", Name: "job", Object: runtime.RawExtension{Raw: raw}, UserInfo: authenticationv1.UserInfo{Username: "user"},
	}}
	b.ReportAllocs()
	for b.Loop() {
		if answer := w.mutate(context.Background(), request); !answer.Allowed {
			b.Fatal(answer.Result)
		}
		if answer := w.validate(context.Background(), request); !answer.Allowed {
			b.Fatal(answer.Result)
		}
	}
}
