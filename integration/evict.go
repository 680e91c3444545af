package integration

import (
	"context"
	"fmt"
	"net/http"

	"k8s.io/apimachinery/pkg/types"
	webhookadmission "sigs.k8s.io/controller-runtime/pkg/webhook/admission"
)

// +kubebuilder:webhook:path=/validate-eviction,mutating=false,failurePolicy=fail,sideEffects=None,groups="",resources=pods/eviction,verbs=create,versions=v1,name=veviction.signalbox.dev,admissionReviewVersions=v1

// validateEviction refuses the eviction of a pod that runs on a TrainJob's quota. Its Job replaces an evicted pod at
// once, while the pod may terminate for as long as its grace period: each eviction would run one pod more than was
// admitted. The chart's policies keep users from deleting such a pod, but an eviction deletes it without admission of
// the deletion (Kubernetes' pkg/registry/core/pod/storage/eviction.go). The webhook doesn't receive evictions by those
// who may drain nodes.
func (w *Webhook) validateEviction(
	ctx context.Context, request webhookadmission.Request,
) webhookadmission.Response {
	trainJob, err := w.pods.OnQuota(ctx, types.NamespacedName{Namespace: request.Namespace, Name: request.Name})
	if err != nil {
		return webhookadmission.Errored(http.StatusInternalServerError, err)
	}
	if trainJob == "" {
		return webhookadmission.Allowed("")
	}
	return webhookadmission.Denied(fmt.Sprintf("pod %s runs on the quota of TrainJob %s: "+
		"once evicted, it would be replaced while it still runs, and more would run than was admitted; "+
		"suspend or delete the TrainJob instead. Whoever drains nodes needs the right to patch nodes, "+
		"or to be named in the chart's policies.exemptUsers", request.Name, trainJob))
}
