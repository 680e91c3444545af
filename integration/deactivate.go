package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	"gomodules.xyz/jsonpatch/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	webhookadmission "sigs.k8s.io/controller-runtime/pkg/webhook/admission"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/workload"

	"github.com/signalbox-dev/signalbox/podsets"
	"github.com/signalbox-dev/signalbox/review"
)

// Kueue v0.19.2 counts nothing of a Workload from the moment at which spec.active is false, whatever still runs of it
// (pkg/controller/core/workload_controller.go, Update). So the webhook takes the deactivation of a Workload that holds
// quota as a wish, and the reconciler carries it out when the last pod has ended.

// +kubebuilder:webhook:path=/mutate-workload,mutating=true,failurePolicy=fail,sideEffects=None,groups=kueue.x-k8s.io,resources=workloads,verbs=update,versions=v1beta1;v1beta2,name=mworkload.signalbox.dev,admissionReviewVersions=v1

// mutateWorkload turns the deactivation of a TrainJob's Workload that holds quota into the annotation. It reads only
// what all versions of Workload have.
func (w *Webhook) mutateWorkload(_ context.Context, request webhookadmission.Request) webhookadmission.Response {
	before, err := w.readWorkload(request.OldObject.Raw)
	if err != nil {
		return webhookadmission.Errored(http.StatusBadRequest, err)
	}
	after, err := w.readWorkload(request.Object.Raw)
	if err != nil {
		return webhookadmission.Errored(http.StatusBadRequest, err)
	}
	owner := metav1.GetControllerOfNoCopy(before)
	if request.UserInfo.Username == w.manager || !workload.IsActive(before) || workload.IsActive(after) ||
		!isTrainJob(owner) || !podsets.HoldsQuota(before) {
		return webhookadmission.Allowed("")
	}
	const annotations = "/metadata/annotations"
	user := request.UserInfo.Username
	patch := []jsonpatch.Operation{jsonpatch.NewOperation("replace", "/spec/active", true)}
	if after.Annotations == nil {
		patch = append(patch, jsonpatch.NewOperation("add", annotations, map[string]string{DeactivateAnnotation: user}))
	} else if after.Annotations[DeactivateAnnotation] == "" {
		patch = append(patch, jsonpatch.NewOperation("add", annotations+"/"+review.Escape(DeactivateAnnotation), user))
	}
	return webhookadmission.Patched("", patch...).WithWarnings(fmt.Sprintf(
		"the Workload is deactivated when the last pod of TrainJob %s has ended, so that its quota is not given away before",
		owner.Name))
}

// readWorkload reads what decides a deactivation, of any version of Workload. The rest isn't decoded: a topology may
// have thousands of domains.
func (w *Webhook) readWorkload(text []byte) (*kueue.Workload, error) {
	wl := &kueue.Workload{}
	if _, err := review.Elements(text); err != nil {
		return nil, err
	}
	for _, part := range []struct {
		into any
		path []string
	}{
		{&wl.Annotations, []string{"metadata", "annotations"}},
		{&wl.OwnerReferences, []string{"metadata", "ownerReferences"}},
		{&wl.Spec.Active, []string{"spec", "active"}},
		{&wl.Status.Conditions, []string{"status", "conditions"}},
	} {
		member := review.Member(text, part.path...)
		if member == nil {
			continue
		}
		if err := w.reader.Limits.CheckElements(member); err != nil {
			return nil, fmt.Errorf("%s: %w", strings.Join(part.path, "."), err)
		}
		if err := json.Unmarshal(member, part.into); err != nil {
			return nil, fmt.Errorf("%s: %w", strings.Join(part.path, "."), err)
		}
	}
	return wl, nil
}
