package webhook

import (
	"runtime"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	k8sruntime "k8s.io/apimachinery/pkg/runtime"
	webhookadmission "sigs.k8s.io/controller-runtime/pkg/webhook/admission"
)

// TestManyElements holds that no webhook decodes an object with too many list elements, whichever of a review it is and
// whatever the review says that it is about: anybody may send one, and `{}` becomes a ReplicatedJob.
func TestManyElements(t *testing.T) {
	h := newHarness(t)
	many := strings.TrimSuffix(strings.Repeat("{},", 100_000), ",")
	for path, kind := range map[string]string{
		mutatePath: "TrainJob", validatePath: "TrainJob", runtimePath: "TrainingRuntime",
		clusterRuntimePath: "ClusterTrainingRuntime",
	} {
		head := `{"apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "` + kind + `", "metadata": {"name": "a"}, "spec": `
		small, large := k8sruntime.RawExtension{Raw: []byte(head + `{}}`)}, k8sruntime.RawExtension{}
		if large.Raw = []byte(head + `{"template": {"spec": {"replicatedJobs": [` + many + `]}}}}`); kind == "TrainJob" {
			large.Raw = []byte(head + `{"runtimePatches": [` + many + `]}}`)
		}
		for name, r := range map[string]admissionv1.AdmissionRequest{
			"create":           {Operation: admissionv1.Create, Object: large},
			"update to it":     {Operation: admissionv1.Update, Object: large, OldObject: small},
			"update from it":   {Operation: admissionv1.Update, Object: small, OldObject: large},
			"delete":           {Operation: admissionv1.Delete, OldObject: large},
			"delete, and both": {Operation: admissionv1.Delete, Object: small, OldObject: large},
			"connect":          {Operation: admissionv1.Connect, Object: large, OldObject: large},
		} {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			h.hooks[path].Handle(t.Context(), webhookadmission.Request{AdmissionRequest: r})
			runtime.ReadMemStats(&after)
			if took := after.TotalAlloc - before.TotalAlloc; took > 8<<20 {
				t.Errorf("%s: %s of %d bytes takes %d MiB", path, name, len(large.Raw), took>>20)
			}
		}
	}
}

// TestStoredWithManyElements holds that a runtime which was stored before there was a limit can be made smaller, and is
// checked then as a new one is.
func TestStoredWithManyElements(t *testing.T) {
	h := newHarness(t)
	runtime := func(annotations, node string) k8sruntime.RawExtension {
		return k8sruntime.RawExtension{Raw: []byte(`{"apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainingRuntime", ` +
			`"metadata": {"name": "a", "annotations": {` + annotations + `}}, "spec": {"template": {"spec": {"replicatedJobs": [` +
			node + `]}}}}`)}
	}
	const node, wrong = `{"name": "node"}`, `"signalbox.dev/gang-scheduling": "yes"`
	many := strings.Repeat(`{},`, 100_000) + node
	for annotations, allowed := range map[string]bool{"": true, wrong: false} {
		answer := h.hooks[runtimePath].Handle(t.Context(), webhookadmission.Request{
			AdmissionRequest: admissionv1.AdmissionRequest{Operation: admissionv1.Update,
				Object: runtime(annotations, node), OldObject: runtime(annotations, many)}})
		if answer.Allowed != allowed {
			t.Errorf("annotations %q: allowed %t, want %t: %v", annotations, answer.Allowed, allowed, answer.Result)
		}
	}
}
