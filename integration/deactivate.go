package integration

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"gomodules.xyz/jsonpatch/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	webhookadmission "sigs.k8s.io/controller-runtime/pkg/webhook/admission"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/workload"
	workloadfinish "sigs.k8s.io/kueue/pkg/workload/finish"
)

// Kueue v0.19.2 counts nothing of a Workload from the moment at which spec.active is false, whatever still runs of it
// (pkg/controller/core/workload_controller.go, Update). So the webhook takes the deactivation of a Workload that holds quota as
// a wish, and the reconciler carries it out when the last pod has ended.

// DeactivateAnnotation on a Workload says who wishes to deactivate it. Signalbox stops its TrainJob, and sets spec.active to
// false when the last of its pods has ended. Without the annotation, the TrainJob starts again.
const DeactivateAnnotation = "signalbox.dev/deactivate"

// +kubebuilder:webhook:path=/mutate-workload,mutating=true,failurePolicy=fail,sideEffects=None,groups=kueue.x-k8s.io,resources=workloads,verbs=update,versions=v1beta1;v1beta2,name=mworkload.signalbox.dev,admissionReviewVersions=v1

// mutateWorkload turns the deactivation of a TrainJob's Workload that holds quota into the annotation. It reads only what all
// versions of Workload have.
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
	if err := errors.Join(json.Unmarshal(request.OldObject.Raw, &before), json.Unmarshal(request.Object.Raw, &after)); err != nil {
		return webhookadmission.Errored(http.StatusBadRequest, err)
	}
	wasActive, isActive := before.Spec.Active == nil || *before.Spec.Active, after.Spec.Active == nil || *after.Spec.Active
	wl := kueue.Workload{Status: kueue.WorkloadStatus{Conditions: before.Status.Conditions}}
	owner := metav1.GetControllerOfNoCopy(&before.Metadata)
	if len(w.self) > 0 && request.UserInfo.Username == w.self[0] || !wasActive || isActive || owner == nil || owner.Kind != gvk.Kind || owner.APIVersion != gvk.GroupVersion().String() ||
		!workload.HasQuotaReservation(&wl) || workloadfinish.IsFinished(&wl) {
		return webhookadmission.Allowed("")
	}
	patch := []jsonpatch.Operation{jsonpatch.NewOperation("replace", "/spec/active", true)}
	if after.Metadata.Annotations == nil {
		patch = append(patch, jsonpatch.NewOperation("add", "/metadata/annotations", map[string]string{DeactivateAnnotation: request.UserInfo.Username}))
	} else if after.Metadata.Annotations[DeactivateAnnotation] == "" {
		patch = append(patch, jsonpatch.NewOperation("add", "/metadata/annotations/"+escape(DeactivateAnnotation), request.UserInfo.Username))
	}
	return webhookadmission.Patched("", patch...).WithWarnings(fmt.Sprintf(
		"the Workload is deactivated when the last pod of TrainJob %s has ended, so that its quota is not given away before", owner.Name))
}

// deactivating reports whether a Workload is to be deactivated.
func deactivating(wl *kueue.Workload) bool {
	return wl != nil && wl.Annotations[DeactivateAnnotation] != "" && workload.IsActive(wl) && !workloadfinish.IsFinished(wl)
}

// deactivate stops a TrainJob whose Workload is to be deactivated, and deactivates that when the last pod has ended.
func (r *Reconciler) deactivate(ctx context.Context, j *job) error {
	wl := j.matched
	if !deactivating(wl) {
		return nil
	}
	if !j.IsSuspended() && !hasEnded(&j.TrainJob) {
		if err := r.writer.Suspend(ctx, &j.TrainJob); err != nil {
			return fmt.Errorf("suspending: %w", err)
		}
		evictions.WithLabelValues(kueue.WorkloadDeactivated).Inc()
		return nil
	}
	if j.IsActive() {
		return nil
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": wl.UID, "resourceVersion": wl.ResourceVersion, "annotations": map[string]any{DeactivateAnnotation: nil}},
		"spec":     map[string]any{"active": false},
	})
	if err != nil {
		return fmt.Errorf("encoding the deactivation: %w", err)
	}
	if err := r.client.Patch(ctx, wl.DeepCopy(), client.RawPatch(types.MergePatchType, patch)); err != nil {
		return client.IgnoreNotFound(fmt.Errorf("deactivating Workload %s: %w", wl.Name, err))
	}
	ctrl.LoggerFrom(ctx).Info("Deactivated a Workload whose pods have ended", "workload", wl.Name, "for", wl.Annotations[DeactivateAnnotation])
	return nil
}
