package webhook

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	admissionv1 "k8s.io/api/admission/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	webhookadmission "sigs.k8s.io/controller-runtime/pkg/webhook/admission"
)

// BenchmarkWebhook is both webhooks of the override contract, for a TrainJob that is created.
func BenchmarkWebhook(b *testing.B) {
	h := newHarness(b)
	w := h.hook
	job := h.trainJob("torch", `
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
	request := webhookadmission.Request{AdmissionRequest: admissionv1.AdmissionRequest{
		Operation: admissionv1.Create, Namespace: "ns", Name: "job", Object: runtime.RawExtension{Raw: raw},
		UserInfo: authenticationv1.UserInfo{Username: "user"},
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

// BenchmarkWebhookLarge is the same for a TrainJob of 16 entries that have as many mounts in all as is said. A
// strategic merge takes time in the square of a list's length, which limits.elements bounds.
func BenchmarkWebhookLarge(b *testing.B) {
	for _, elements := range []int{125, 250, 500, 1000} {
		b.Run(fmt.Sprint(elements), func(b *testing.B) {
			h := newHarness(b)
			w := h.hook
			job := h.trainJob("torch", "spec: {suspend: true, trainer: {numNodes: 2}}")
			job.APIVersion, job.Kind = "trainer.kubeflow.org/v1alpha1", "TrainJob"
			for entry := range 16 {
				container := trainerapi.ContainerPatch{Name: "node"}
				for i := range elements / 16 {
					container.VolumeMounts = append(container.VolumeMounts, corev1.VolumeMount{
						Name: "v", MountPath: fmt.Sprintf("/%s/%d/%d", strings.Repeat("x", 12), entry, i)})
				}
				pod := &trainerapi.PodTemplatePatch{
					Spec: &trainerapi.PodSpecPatch{Containers: []trainerapi.ContainerPatch{container}}}
				node := trainerapi.ReplicatedJobPatch{Name: "node", Template: &trainerapi.JobTemplatePatch{
					Spec: &trainerapi.JobSpecPatch{Template: pod}}}
				job.Spec.RuntimePatches = append(job.Spec.RuntimePatches, trainerapi.RuntimePatch{
					Manager: fmt.Sprintf("a.com/m%d", entry),
					TrainingRuntimeSpec: &trainerapi.TrainingRuntimeSpecPatch{Template: &trainerapi.JobSetTemplatePatch{
						Spec: &trainerapi.JobSetSpecPatch{ReplicatedJobs: []trainerapi.ReplicatedJobPatch{node}}}},
				})
			}
			raw, err := json.Marshal(job)
			if err != nil {
				b.Fatal(err)
			}
			request := webhookadmission.Request{AdmissionRequest: admissionv1.AdmissionRequest{
				Operation: admissionv1.Create, Namespace: "ns", Name: "job", Object: runtime.RawExtension{Raw: raw},
				UserInfo: authenticationv1.UserInfo{Username: "user"},
			}}
			for b.Loop() {
				w.mutate(context.Background(), request)
				if answer := w.validate(context.Background(), request); !answer.Allowed {
					b.Fatal(answer.Result)
				}
			}
		})
	}
}
