package integration

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"gomodules.xyz/jsonpatch/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	webhookadmission "sigs.k8s.io/controller-runtime/pkg/webhook/admission"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/workload"
	workloadfinish "sigs.k8s.io/kueue/pkg/workload/finish"

	"github.com/signalbox-dev/signalbox/review"
)

// Kueue v0.19.2 counts nothing of a Workload from the moment at which spec.active is false, whatever still runs of it
// (pkg/controller/core/workload_controller.go, Update). So the webhook takes the deactivation of a Workload that holds
// quota as a wish, and the reconciler carries it out when the last pod has ended.

// DeactivateAnnotation on a Workload names the user who deactivates it. Signalbox stops its TrainJob, and sets
// spec.active to false when the last of its pods has ended. If the annotation is removed, the TrainJob starts again.
const DeactivateAnnotation = "signalbox.dev/deactivate"

// +kubebuilder:webhook:path=/mutate-workload,mutating=true,failurePolicy=fail,sideEffects=None,groups=kueue.x-k8s.io,resources=workloads,verbs=update,versions=v1beta1;v1beta2,name=mworkload.signalbox.dev,admissionReviewVersions=v1

// mutateWorkload turns the deactivation of a TrainJob's Workload that holds quota into the annotation. It reads only
// what all versions of Workload have.
func (w *Webhook) mutateWorkload(_ context.Context, request webhookadmission.Request) webhookadmission.Response {
	type readable struct {
		Metadata metav1.ObjectMeta `json:"metadata"`
		Spec     struct {
			Active *bool `json:"active"`
		} `json:"spec"`
		Status struct {
			Conditions []metav1.Condition `json:"conditions"`
		} `json:"status"`
	}
	var before, after readable
	err := errors.Join(json.Unmarshal(request.OldObject.Raw, &before), json.Unmarshal(request.Object.Raw, &after))
	if err != nil {
		return webhookadmission.Errored(http.StatusBadRequest, err)
	}
	is := func(active *bool) bool { return ptr.Deref(active, true) }
	wl := kueue.Workload{Status: kueue.WorkloadStatus{Conditions: before.Status.Conditions}}
	owner := metav1.GetControllerOfNoCopy(&before.Metadata)
	if request.UserInfo.Username == w.manager || !is(before.Spec.Active) || is(after.Spec.Active) ||
		!isTrainJob(owner) || !workload.HasQuotaReservation(&wl) || workloadfinish.IsFinished(&wl) {
		return webhookadmission.Allowed("")
	}
	const annotations = "/metadata/annotations"
	user := request.UserInfo.Username
	patch := []jsonpatch.Operation{jsonpatch.NewOperation("replace", "/spec/active", true)}
	if after.Metadata.Annotations == nil {
		patch = append(patch, jsonpatch.NewOperation("add", annotations, map[string]string{DeactivateAnnotation: user}))
	} else if after.Metadata.Annotations[DeactivateAnnotation] == "" {
		patch = append(patch, jsonpatch.NewOperation("add", annotations+"/"+review.Escape(DeactivateAnnotation), user))
	}
	return webhookadmission.Patched("", patch...).WithWarnings(fmt.Sprintf(
		"the Workload is deactivated when the last pod of TrainJob %s has ended, so that its quota is not given away before",
		owner.Name))
}

func isTrainJob(owner *metav1.OwnerReference) bool {
	return owner != nil && owner.Kind == gvk.Kind && owner.APIVersion == gvk.GroupVersion().String()
}
