package webhook

import (
	"cmp"
	"context"
	"net/http"
	"slices"

	"gomodules.xyz/jsonpatch/v2"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/webhook"
	webhookadmission "sigs.k8s.io/controller-runtime/pkg/webhook/admission"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/controller/constants"
	"sigs.k8s.io/kueue/pkg/controller/jobframework"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/integration/managed"
	"github.com/signalbox-dev/signalbox/overrides/legacy"
	"github.com/signalbox-dev/signalbox/review"
)

func (w *Webhook) mutate(ctx context.Context, request webhookadmission.Request) webhookadmission.Response {
	rq, err := w.Reader.Read(request)
	if err != nil {
		return webhookadmission.Errored(http.StatusBadRequest, err)
	}
	if rq.OnlyFinalizers() {
		return webhookadmission.Allowed("")
	}
	if rq.Trusted && !rq.Created() {
		return patched(w.Reviews.CompleteOwn(rq))
	}
	if !rq.Trusted && rq.SpecChanged() { // before anything is computed of it: mutating webhooks are called first
		if errs := w.Limits.CheckSize(rq.New, legacy.EveryEntry(rq.New)); len(errs) > 0 {
			return review.Reject(rq.New, errs)
		}
	}
	if rq.Created() { // before anything is asked about an owner
		if errs := w.refuseOwned(rq.New, rq.User); len(errs) > 0 {
			return review.Reject(rq.New, errs)
		}
	}
	if !rq.Trusted {
		if errs := w.Reviews.CheckSize(rq); len(errs) > 0 {
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
		patch, err = w.defaultLabels(ctx, rq.New)
	} else if rq.HasSpec() {
		patch, err = w.Reviews.Keep(rq)
	}
	patch = slices.Concat(patch, w.keepUser(rq), keepGate(rq))
	if err != nil || !rq.HasSpec() { // the validating webhook rejects one without
		return patch, err
	}
	queued, err := w.Suspends(ctx, rq.New)
	if err != nil {
		return nil, err
	}
	if !queued {
		return append(patch, w.Reviews.Unqueued(rq)...), nil
	}
	given, err := w.defaultManagedBy(ctx, rq)
	if err != nil {
		return nil, err
	}
	further, err := w.Reviews.Queued(rq)
	if err != nil {
		return nil, err
	}
	return slices.Concat(patch, given, further, gate(rq), keepSuspend(rq)), nil
}

// keepUser returns the patch that writes who creates a TrainJob, if that is recorded, and that restores it later. Kueue
// copies a TrainJob to another cluster with the user whom the first one has seen.
func (w *Webhook) keepUser(rq *review.Request) []jsonpatch.Operation {
	_, copied := rq.New.Annotations[api.UserAnnotation]
	switch {
	case !w.Signs || rq.Created() && rq.Trusted && copied:
		return nil
	case rq.Created():
		return rq.Annotate(api.UserAnnotation, &rq.User)
	}
	return keepAnnotations(rq, []string{api.UserAnnotation})
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
	err := jobframework.ApplyDefaultLocalQueueWithManagedJobsNamespaceSelector(
		ctx, w.Defaults, defaulted, w.hasDefaultQueue(ctx, &lookup), w.Selector)
	if err := cmp.Or(err, lookup); err != nil {
		return nil, err
	}
	if jobframework.QueueNameForObject(defaulted) != "" {
		jobframework.ApplyDefaultWorkloadPriorityClass(ctx, w.Defaults, defaulted)
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

// defaultManagedBy returns the patch that gives a new TrainJob to MultiKueue if its queue leads to other clusters. The
// CRD has set managedBy to Trainer's name by then where the user sets none.
func (w *Webhook) defaultManagedBy(ctx context.Context, rq *review.Request) ([]jsonpatch.Operation, error) {
	if !rq.Created() || managed.Elsewhere(rq.New) || rq.New.Labels[kueue.MultiKueueOriginLabel] != "" {
		return nil, nil
	}
	away, err := w.LeadsAway(ctx, rq.New.Namespace, string(jobframework.QueueNameForObject(rq.New)))
	if err != nil || !away {
		return nil, err
	}
	rq.New.Spec.ManagedBy = ptr.To(kueue.MultiKueueControllerName)
	return []jsonpatch.Operation{jsonpatch.NewOperation("add", "/spec/managedBy", kueue.MultiKueueControllerName)}, nil
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
