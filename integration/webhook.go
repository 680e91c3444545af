package integration

import (
	"context"
	"fmt"
	"net/http"

	admissionv1 "k8s.io/api/admission/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	webhookadmission "sigs.k8s.io/controller-runtime/pkg/webhook/admission"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/controller/constants"

	"github.com/signalbox-dev/signalbox/review"
	"github.com/signalbox-dev/signalbox/store"
)

// +kubebuilder:webhook:path=/mutate-trainjob,mutating=true,failurePolicy=fail,sideEffects=None,groups=trainer.kubeflow.org,resources=trainjobs,verbs=create;update,versions=v1alpha1,name=mtrainjob.signalbox.dev,admissionReviewVersions=v1
// +kubebuilder:webhook:path=/validate-trainjob,mutating=false,failurePolicy=fail,sideEffects=None,groups=trainer.kubeflow.org,resources=trainjobs,verbs=create;update,versions=v1alpha1,name=vtrainjob.signalbox.dev,admissionReviewVersions=v1

// Webhook queues TrainJobs: it suspends them on creation, reverts other users' changes of suspend and of the
// integration's entry, and validates Kueue's labels. It answers with patches of single fields, so that nothing else of
// a TrainJob changes.
type Webhook struct {
	queues
	pods     *store.Pods
	reader   review.Reader
	trainer  Trainer
	dispatch dispatch
	// manager is the user that the manager itself writes as.
	manager string
	// signs is set if TrainJobs say who created them.
	signs bool
}

// NewWebhook returns the webhook of the reconciler. The reader trusts the users that the integration writes as, the
// manager's own first, and Kueue's.
func NewWebhook(r *Reconciler, reader review.Reader) *Webhook {
	w := &Webhook{
		queues: r.queues, pods: r.store.Pods, reader: reader, trainer: r.trainer,
		dispatch: newDispatch(r.policy.multiKueue, r.client, r.live), signs: r.meter != nil,
	}
	if len(reader.Trusted) > 0 {
		w.manager = reader.Trusted[0]
	}
	return w
}

func (w *Webhook) defaultQueueExists(ctx context.Context, namespace string) (bool, error) {
	var queue kueue.LocalQueue
	key := types.NamespacedName{Namespace: namespace, Name: string(constants.DefaultLocalQueueName)}
	err := w.client.Get(ctx, key, &queue)
	if err != nil && !apierrors.IsNotFound(err) {
		return false, fmt.Errorf("looking for LocalQueue %s: %w", key, err)
	}
	return err == nil, nil
}

// isUpdate reports whether a request updates an object.
func isUpdate(request webhookadmission.Request) bool { return request.Operation == admissionv1.Update }

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
