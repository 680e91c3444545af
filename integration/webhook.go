package integration

import (
	"context"
	"fmt"
	"net/http"
	"slices"

	"gomodules.xyz/jsonpatch/v2"
	admissionv1 "k8s.io/api/admission/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/webhook"
	webhookadmission "sigs.k8s.io/controller-runtime/pkg/webhook/admission"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/controller/constants"
	"sigs.k8s.io/kueue/pkg/controller/jobframework"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides"
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
}

// NewWebhook returns the webhook of the reconciler. The reader trusts the users that the integration writes as, the
// manager's own first, and Kueue's.
func NewWebhook(r *Reconciler, reader review.Reader) *Webhook {
	w := &Webhook{
		queues: r.queues, pods: r.store.Pods, reader: reader, trainer: r.trainer,
		dispatch: newDispatch(r.policy.multiKueue, r.client, r.live),
	}
	if len(reader.Trusted) > 0 {
		w.manager = reader.Trusted[0]
	}
	return w
}

// Register serves the webhook.
func (w *Webhook) Register(mgr ctrl.Manager) {
	server := mgr.GetWebhookServer()
	for path, handler := range map[string]webhookadmission.HandlerFunc{
		"/mutate-trainjob": w.mutate, "/mutate-workload": w.mutateWorkload, "/validate-trainjob": w.validate,
		"/validate-eviction": w.validateEviction,
	} {
		server.Register(path, &webhook.Admission{Handler: handler})
	}
}

// ownAnnotations are the integration's. Nobody else may add, change or remove them.
var ownAnnotations = []string{store.PinAnnotation, overrides.RecordAnnotation}

func (w *Webhook) mutate(ctx context.Context, request webhookadmission.Request) webhookadmission.Response {
	rq, err := w.reader.Read(request)
	if err != nil {
		return webhookadmission.Errored(http.StatusBadRequest, err)
	}
	if rq.OnlyFinalizers() {
		return webhookadmission.Allowed("")
	}
	if rq.Trusted && !rq.Created() {
		return patched(w.trainer.completeOwn(rq))
	}
	if !rq.Trusted && rq.SpecChanged() { // before anything is computed of it: mutating webhooks are called first
		if errs := w.policy.limits.CheckSize(rq.New, overrides.EveryEntry(rq.New)); len(errs) > 0 {
			return review.Reject(rq.New, errs)
		}
	}
	if rq.Created() { // before anything is asked about an owner
		if errs := w.refuseOwned(rq.New, rq.User); len(errs) > 0 {
			return review.Reject(rq.New, errs)
		}
	}
	if !rq.Trusted {
		if errs := w.trainer.checkSize(rq); len(errs) > 0 {
			return review.Reject(rq.New, errs)
		}
	}
	return patched(w.defaults(ctx, rq))
}

func patched(patch []jsonpatch.Operation, err error) webhookadmission.Response {
	if err != nil {
		return webhookadmission.Errored(http.StatusInternalServerError, err)
	}
	return webhookadmission.Patched("", patch...)
}

// defaults returns the patch of a create, or of an update by another client.
func (w *Webhook) defaults(ctx context.Context, rq *review.Request) (
	patch []jsonpatch.Operation, err error,
) {
	if rq.Created() {
		if patch, err = w.defaultLabels(ctx, rq.New); err != nil {
			return nil, err
		}
	}
	if !rq.HasSpec() {
		return patch, nil // the validating webhook rejects it
	}
	if !rq.Created() {
		kept, err := w.trainer.keep(rq)
		if err != nil {
			return nil, err
		}
		patch = append(patch, kept...)
	}
	managed, err := w.suspends(ctx, rq.New)
	if err != nil {
		return nil, err
	}
	if !managed {
		return append(patch, w.trainer.unqueued(rq)...), nil
	}
	given, err := w.defaultManagedBy(ctx, rq)
	if err != nil {
		return nil, err
	}
	queued, err := w.trainer.queued(rq)
	if err != nil {
		return nil, err
	}
	return slices.Concat(patch, given, queued, keepSuspend(rq)), nil
}

// keepSuspend returns the patch that keeps suspend as the integration wants it: only the integration starts a TrainJob.
// A running one is stopped by its Workload; a manifest with "suspend: true" that is applied again doesn't stop it,
// unless it changes the queue.
func keepSuspend(rq *review.Request) []jsonpatch.Operation {
	sent := ptr.Deref(rq.New.Spec.Suspend, false)
	suspend := rq.Created() || ptr.Deref(rq.Old.Spec.Suspend, false)
	if !suspend && jobframework.QueueNameForObject(rq.Old) != jobframework.QueueNameForObject(rq.New) {
		suspend = sent
	}
	if suspend == sent {
		return nil
	}
	if !rq.Created() {
		refusals.WithLabelValues("suspend", "restored").Inc()
	}
	return []jsonpatch.Operation{jsonpatch.NewOperation("add", "/spec/suspend", suspend)}
}

// defaultLabels returns the patch that adds the queue and the priority class that a TrainJob without them gets, as
// Kueue does for its own jobs. It changes the TrainJob accordingly.
func (w *Webhook) defaultLabels(ctx context.Context, trainJob *api.TrainJob) ([]jsonpatch.Operation, error) {
	before := trainJob.Labels
	defaulted := trainJob.DeepCopy()
	var lookup error
	exists := func(namespace string) bool {
		found, err := w.defaultQueueExists(ctx, namespace)
		lookup = err
		return found
	}
	err := jobframework.ApplyDefaultLocalQueueWithManagedJobsNamespaceSelector(
		ctx, w.client, defaulted, exists, w.policy.selector)
	if err != nil {
		return nil, err
	}
	if lookup != nil {
		return nil, lookup
	}
	if jobframework.QueueNameForObject(defaulted) != "" {
		jobframework.ApplyDefaultWorkloadPriorityClass(ctx, w.client, defaulted)
	}
	trainJob.Labels = defaulted.Labels
	if len(defaulted.Labels) == len(before) {
		return nil, nil
	}
	if before == nil {
		return []jsonpatch.Operation{jsonpatch.NewOperation("add", "/metadata/labels", defaulted.Labels)}, nil
	}
	var patch []jsonpatch.Operation
	for _, key := range []string{constants.QueueLabel, constants.WorkloadPriorityClassLabel} {
		if _, had := before[key]; !had && defaulted.Labels[key] != "" {
			patch = append(patch, jsonpatch.NewOperation("add", "/metadata/labels/"+review.Escape(key), defaulted.Labels[key]))
		}
	}
	return patch, nil
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
