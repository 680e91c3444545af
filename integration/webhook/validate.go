package webhook

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"

	trainjobutil "github.com/kubeflow/trainer/v2/pkg/util/trainjob"
	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	webhookadmission "sigs.k8s.io/controller-runtime/pkg/webhook/admission"
	"sigs.k8s.io/kueue/pkg/controller/constants"
	"sigs.k8s.io/kueue/pkg/controller/jobframework"

	"github.com/signalbox-dev/signalbox/admission/ttl"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/integration/managed"
	"github.com/signalbox-dev/signalbox/overrides"
	"github.com/signalbox-dev/signalbox/review"
)

func (w *Webhook) validate(ctx context.Context, request webhookadmission.Request) webhookadmission.Response {
	if w.Reader.Trusts(request) && request.Operation == admissionv1.Update {
		return webhookadmission.Allowed("") // it never removes the spec
	}
	rq, err := w.Reader.Read(request)
	if err != nil {
		return webhookadmission.Errored(http.StatusBadRequest, err)
	}
	if rq.OnlyFinalizers() {
		return webhookadmission.Allowed("")
	}
	if !rq.HasSpec() { // none of the CRD's rules holds without it
		return review.Reject(rq.New, field.ErrorList{field.Required(field.NewPath("spec"),
			"a TrainJob without it runs nothing; send the whole manifest")})
	}
	if rq.Trusted {
		return webhookadmission.Allowed("")
	}
	errs, err := w.check(ctx, rq)
	if err != nil {
		return webhookadmission.Errored(http.StatusInternalServerError, err)
	}
	if len(errs) > 0 {
		return review.Reject(rq.New, errs)
	}
	return webhookadmission.Allowed("").WithWarnings(w.Reviews.Warnings(rq)...)
}

// check returns what is wrong with a create or an update by another client. An error means that it isn't known.
func (w *Webhook) check(ctx context.Context, rq *review.Request) (field.ErrorList, error) {
	var expiry field.ErrorList
	if rq.AnnotationChanged(api.TTLAnnotation) {
		expiry = ttl.Check(rq.New.Annotations, field.NewPath("metadata", "annotations"))
	}
	dependencies, unknown := w.checkAfter(ctx, rq)
	errs, err := w.checkQueueing(ctx, rq)
	return slices.Concat(errs, expiry, dependencies), errors.Join(err, unknown)
}

// checkQueueing returns what is wrong with how a TrainJob is queued.
func (w *Webhook) checkQueueing(ctx context.Context, rq *review.Request) (field.ErrorList, error) {
	if rq.Created() {
		errs := append(jobframework.ValidateJobOnCreate(sentJob{sent: rq.New}), refuseOwn(w.guarded(rq.New), rq.New)...)
		return append(errs, w.refuseOwned(rq.New, rq.User)...), nil
	}
	var lookup error
	errs := jobframework.ValidateJobOnUpdate(sentJob{sent: rq.Old}, sentJob{sent: rq.New}, w.hasDefaultQueue(ctx, &lookup))
	errs = append(errs, refuseAdopted(rq)...)
	if trainjobutil.IsTrainJobFinished(rq.Old.Upstream()) {
		return errs, lookup
	}
	errs = append(errs, refuseBrought(rq)...)
	errs = append(errs, w.refuseUnqueued(rq)...)
	errs = append(errs, refusePrebuilt(rq)...)
	noClass, err := w.refuseNoClass(ctx, rq)
	return append(errs, noClass...), errors.Join(lookup, err)
}

// refuseBrought rejects an update that makes the TrainJob one that would not be created. What it was created with,
// under other rules, stays.
func refuseBrought(rq *review.Request) field.ErrorList {
	before := jobframework.ValidateJobOnCreate(sentJob{sent: rq.Old})
	return slices.DeleteFunc(jobframework.ValidateJobOnCreate(sentJob{sent: rq.New}), func(e *field.Error) bool {
		return slices.ContainsFunc(before, func(b *field.Error) bool { return b.Error() == e.Error() })
	})
}

// sentJob is a TrainJob as a request has it. Of a job, it is only what jobframework's validation asks for.
type sentJob struct {
	jobframework.GenericJob
	sent *api.TrainJob
}

// Object implements jobframework.GenericJob.
func (j sentJob) Object() client.Object { return j.sent }

// GVK implements jobframework.GenericJob.
func (sentJob) GVK() schema.GroupVersionKind { return managed.Kind }

// IsSuspended implements jobframework.GenericJob.
func (j sentJob) IsSuspended() bool { return ptr.Deref(j.sent.Spec.Suspend, false) }

// refuseUnqueued rejects an update that takes a TrainJob out of its queue before its end: its Workload would keep its
// quota, and nobody would release it.
func (w *Webhook) refuseUnqueued(rq *review.Request) field.ErrorList {
	before, after := jobframework.QueueNameForObject(rq.Old), jobframework.QueueNameForObject(rq.New)
	if w.All || before == "" || after != "" {
		return nil
	}
	return field.ErrorList{field.Invalid(field.NewPath("metadata", "labels").Key(constants.QueueLabel), "", fmt.Sprintf(
		"the TrainJob is in queue %q; name another queue, or delete the TrainJob", before))}
}

// refusePrebuilt rejects an update that gives a TrainJob another prebuilt Workload, or its first: the Workload that it
// has would keep its quota. jobframework rejects it for those that run. A prebuilt Workload doesn't follow into another
// queue.
func refusePrebuilt(rq *review.Request) field.ErrorList {
	before, after := jobframework.PrebuiltWorkloadNameFor(rq.Old), jobframework.PrebuiltWorkloadNameFor(rq.New)
	if from, to := jobframework.QueueNameForObject(rq.Old), jobframework.QueueNameForObject(rq.New); before != "" &&
		before == after && from != to {
		return field.ErrorList{field.Invalid(field.NewPath("metadata", "labels").Key(constants.QueueLabel), to, fmt.Sprintf(
			"prebuilt Workload %q is in queue %q; create another TrainJob", before, from))}
	}
	if before == after || !ptr.Deref(rq.New.Spec.Suspend, false) {
		return nil
	}
	return field.ErrorList{field.Invalid(jobframework.GetPrebuiltWorkloadPath(rq.New), after, fmt.Sprintf(
		"which Workload a TrainJob has is decided when it is created, and was %q; create another TrainJob", before))}
}

var ownersPath = field.NewPath("metadata", "ownerReferences")

// refuseOwned rejects a new TrainJob that names an owner of a kind which Kueue manages, except from that owner's
// controller: its quota would be the owner's, whose Workload doesn't stand for it.
func (w *Webhook) refuseOwned(trainJob *api.TrainJob, user string) field.ErrorList {
	owner := metav1.GetControllerOf(trainJob)
	if owner == nil || slices.Contains(w.OwnerIdentities, user) || !w.MayOwn(owner) {
		return nil
	}
	return field.ErrorList{field.Forbidden(ownersPath, fmt.Sprintf(
		"a TrainJob that %s %q owns runs on the owner's quota, so that only the owner's controller may create it, and %q is "+
			"not listed in kueue.ownerIdentities of Signalbox's configuration; create the TrainJob without an owner, or list "+
			"the user",
		owner.Kind,
		owner.Name,
		user,
	))}
}

// refuseAdopted rejects an update that gives a TrainJob another controller: whose quota it runs on is decided when it
// is created. Removing the controller is harmless: the TrainJob then needs quota of its own.
func refuseAdopted(rq *review.Request) field.ErrorList {
	before, after := metav1.GetControllerOf(rq.Old), metav1.GetControllerOf(rq.New)
	if after == nil || before != nil && before.UID == after.UID && before.Kind == after.Kind &&
		before.Name == after.Name && before.APIVersion == after.APIVersion {
		return nil
	}
	return field.ErrorList{field.Forbidden(ownersPath, fmt.Sprintf(
		"%s %q can't become the controller of a TrainJob that is there already: whose quota it runs on is decided when it "+
			"is created; create another TrainJob",
		after.Kind,
		after.Name,
	))}
}

// refuseOwn rejects a new TrainJob that has what is the integration's: its entry, or its annotations.
func refuseOwn(guarded []string, trainJob *api.TrainJob) field.ErrorList {
	var errs field.ErrorList
	for _, name := range guarded {
		if _, found := trainJob.Annotations[name]; found {
			refusals.WithLabelValues("annotation", "refused").Inc()
			errs = append(errs, field.Forbidden(field.NewPath("metadata", "annotations").Key(name),
				"Signalbox alone writes this annotation; take it out of the manifest"))
		}
	}
	if overrides.OwnIndex(trainJob) < 0 {
		return errs
	}
	refusals.WithLabelValues("entry", "refused").Inc()
	return append(errs, field.Forbidden(field.NewPath("spec", "runtimePatches").Key(overrides.Manager), fmt.Sprintf(
		"the entry of manager %q is written when the TrainJob is admitted; take it out of the manifest. If the manifest has "+
			"none, Kueue's built-in TrainJob integration has added it: take trainer.kubeflow.org/trainjob out of "+
			"integrations.frameworks in Kueue's configuration",
		overrides.Manager,
	)))
}

// refuseNoClass rejects an update that names a priority class that doesn't exist. A new TrainJob may name one that is
// created after it.
func (w *Webhook) refuseNoClass(ctx context.Context, rq *review.Request) (field.ErrorList, error) {
	name := jobframework.WorkloadPriorityClassName(rq.New)
	if name == "" || name == jobframework.WorkloadPriorityClassName(rq.Old) ||
		jobframework.QueueNameForObject(rq.New) == "" && !w.All {
		return nil, nil
	}
	exists, err := w.PriorityClassExists(ctx, name)
	if err != nil || exists {
		return nil, err
	}
	path := field.NewPath("metadata", "labels").Key(constants.WorkloadPriorityClassLabel)
	return field.ErrorList{field.Invalid(path, name,
		"there is no WorkloadPriorityClass of that name; kubectl get workloadpriorityclasses lists those there are")}, nil
}
