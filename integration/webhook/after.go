package webhook

import (
	"context"

	"gomodules.xyz/jsonpatch/v2"
	"k8s.io/apimachinery/pkg/util/validation/field"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	kueueconstants "sigs.k8s.io/kueue/pkg/constants"
	"sigs.k8s.io/kueue/pkg/controller/constants"
	"sigs.k8s.io/kueue/pkg/controller/jobframework"

	"github.com/signalbox-dev/signalbox/admission/after"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/review"
)

// copied reports whether a TrainJob was created in another cluster, where it has waited for those that it runs after.
// Any user may set the label; but one that names a Workload runs on the quota of that alone, which has its own gates.
func copied(job *api.TrainJob) bool {
	return job.Labels[kueue.MultiKueueOriginLabel] != "" && jobframework.PrebuiltWorkloadNameFor(job) != "" &&
		!after.Gated(job)
}

// guarded returns the annotations that nobody else may bring with a TrainJob.
func (w *Webhook) guarded(job *api.TrainJob) []string {
	if copied(job) {
		return w.Reviews.Guarded()
	}
	return append(w.Reviews.Guarded(), api.AfterEndedAnnotation)
}

// gate returns the patch that keeps a new TrainJob which runs after others from being admitted before.
func gate(rq *review.Request) []jsonpatch.Operation {
	_, set := rq.New.Annotations[api.AfterAnnotation]
	if !rq.Created() || !set || copied(rq.New) {
		return nil
	}
	gates := after.WithGate(rq.New)
	return rq.Annotate(kueueconstants.AdmissionGatedByAnnotation, &gates)
}

// keepGate returns the patch that restores the gate in an update by another client, and what is noted of those that the
// TrainJob runs after. Their owners remove the gates of others.
func keepGate(rq *review.Request) (patch []jsonpatch.Operation) {
	if rq.Created() {
		return nil
	}
	if after.Gated(rq.Old) && !after.Gated(rq.New) {
		refusals.WithLabelValues("annotation", "restored").Inc()
		gates := after.WithGate(rq.New)
		patch = rq.Annotate(kueueconstants.AdmissionGatedByAnnotation, &gates)
	}
	return append(patch, keepAnnotations(rq, []string{api.AfterEndedAnnotation})...)
}

// refuseUngated rejects an update that would have a TrainJob admitted before those have ended that it runs after: what
// the mutating webhook restores may be taken off by one after it.
func refuseUngated(rq *review.Request) (errs field.ErrorList) {
	path := field.NewPath("metadata", "annotations")
	if after.Waits(rq.Old) && !after.Gated(rq.New) {
		errs = append(errs, field.Forbidden(path.Key(kueueconstants.AdmissionGatedByAnnotation), "gate "+after.Gate+
			" is Signalbox's to remove, when those have ended that the TrainJob runs after; leave it"))
	}
	if rq.AnnotationChanged(api.AfterEndedAnnotation) {
		errs = append(errs, field.Forbidden(path.Key(api.AfterEndedAnnotation), "it is Signalbox's to write; leave it"))
	}
	_, set := rq.New.Annotations[api.AfterAnnotation]
	if set && !after.Gated(rq.New) && jobframework.QueueNameForObject(rq.Old) == "" &&
		jobframework.QueueNameForObject(rq.New) != "" {
		errs = append(errs, field.Forbidden(path.Key(api.AfterAnnotation), "the TrainJob was created without a queue, and "+
			"so without the gate by which it waits; delete it, and create it again in a queue"))
	}
	return errs
}

// checkAfter rejects a new TrainJob that can't wait for those that it names, and an update that names others.
func (w *Webhook) checkAfter(ctx context.Context, rq *review.Request) (field.ErrorList, error) {
	annotations := field.NewPath("metadata", "annotations")
	path := annotations.Key(api.AfterAnnotation)
	_, set := rq.New.Annotations[api.AfterAnnotation]
	switch {
	case !rq.Created() && rq.AnnotationChanged(api.AfterAnnotation):
		return field.ErrorList{field.Forbidden(path, "what a TrainJob runs after is decided when it is created: Kueue "+
			"takes a gate then only; delete the TrainJob, and create it again")}, nil
	case !rq.Created():
		return refuseUngated(rq), nil
	case !set || copied(rq.New):
		return nil, nil
	}
	errs := after.Check(rq.New, annotations)
	if !w.Gates {
		errs = append(errs, field.Forbidden(path, "it needs Kueue's feature gate AdmissionGatedBy, which is off in this "+
			"cluster (by default before Kueue 0.19); remove the annotation, or have your batch admin turn the gate on"))
	}
	if !after.Gated(rq.New) {
		errs = append(errs, field.Forbidden(annotations.Key(kueueconstants.AdmissionGatedByAnnotation), "gate "+after.Gate+
			" is missing, which Signalbox's mutating webhook adds; a webhook after it has removed it, or it wasn't called"))
	}
	if name := jobframework.PrebuiltWorkloadNameFor(rq.New); name != "" {
		errs = append(errs, field.Forbidden(path, "it can't gate prebuilt Workload "+name+
			", which exists already; remove the annotation, or the label that names the Workload"))
	}
	queued, err := w.Suspends(ctx, rq.New)
	if err == nil && !queued {
		errs = append(errs, field.Forbidden(path, "only a TrainJob that Kueue queues, on quota of its own, waits for "+
			"others; give it a queue by label "+constants.QueueLabel+", or remove the annotation"))
	}
	return errs, err
}
