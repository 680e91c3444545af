package trainer

import (
	"context"
	"encoding/json"

	admissionv1 "k8s.io/api/admission/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	webhookadmission "sigs.k8s.io/controller-runtime/pkg/webhook/admission"
)

// Paths of the webhooks.
const (
	mutatePath         = "/mutate-trainer-kubeflow-org-v1alpha1-trainjob"
	validatePath       = "/validate-trainer-kubeflow-org-v1alpha1-trainjob"
	runtimePath        = "/validate-trainer-kubeflow-org-v1alpha1-trainingruntime"
	clusterRuntimePath = "/validate-trainer-kubeflow-org-v1alpha1-clustertrainingruntime"
)

// ask sends a request to the webhook at a path; before is nil on creation.
func (h *harness) ask(path, user string, before, after any) webhookadmission.Response {
	h.t.Helper()
	request := webhookadmission.Request{AdmissionRequest: admissionv1.AdmissionRequest{
		UID: "request", Operation: admissionv1.Create, Namespace: "ns", Name: "job", Object: h.raw(after),
		UserInfo: authenticationv1.UserInfo{Username: user},
	}}
	if before != nil {
		request.Operation, request.OldObject = admissionv1.Update, h.raw(before)
	}
	hook, found := h.parts.hooks[path]
	if !found {
		h.t.Fatalf("nothing is served at %s", path)
	}
	return hook.Handle(context.Background(), request)
}

// raw is an object as a request holds it. A string stands for itself.
func (h *harness) raw(content any) runtime.RawExtension {
	h.t.Helper()
	if text, ok := content.(string); ok {
		return runtime.RawExtension{Raw: []byte(text)}
	}
	o := content.(client.Object).DeepCopyObject().(client.Object)
	gvk, err := apiutil.GVKForObject(o, h.store.Scheme())
	if err != nil {
		h.t.Fatal(err)
	}
	o.GetObjectKind().SetGroupVersionKind(gvk)
	return runtime.RawExtension{Raw: must(json.Marshal(o))}
}
