package integration_test

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	webhookadmission "sigs.k8s.io/controller-runtime/pkg/webhook/admission"
	"sigs.k8s.io/kueue/pkg/constants"

	"github.com/signalbox-dev/signalbox/overrides"
)

func TestEviction(t *testing.T) {
	h := newHarness(t, overrides.Bundled)
	h.create(newTrainJob("job"))
	pod := h.pod(h.build("job"))
	evict := func() webhookadmission.Response {
		request := webhookadmission.Request{AdmissionRequest: admissionv1.AdmissionRequest{UID: "request",
			Operation: admissionv1.Create, SubResource: "eviction", Namespace: team, Name: pod.Name}}
		return h.handlers["/validate-eviction"].Handler.Handle(t.Context(), request)
	}
	if answer := evict(); !answer.Allowed {
		t.Errorf("a pod on no quota may be evicted: got %v", answer.Result)
	}
	pod.Labels[constants.PodSetLabel] = "node"
	h.update(pod)
	if answer := evict(); answer.Allowed || answer.Result.Code != http.StatusForbidden ||
		!strings.Contains(answer.Result.Message, "the quota of TrainJob job") {
		t.Errorf("it would be replaced while it runs: got %v", answer.Result)
	}
	h.fail["list Pod"] = errors.New("down")
	if answer := evict(); answer.Allowed || answer.Result.Code != http.StatusInternalServerError {
		t.Errorf("whose it is isn't known: got %v", answer.Result)
	}
}
