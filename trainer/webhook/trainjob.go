// Package webhook has the bundled Trainer's webhooks: what a TrainJob may change of its runtime, and when; and what a
// runtime may say. It writes nothing.
package webhook

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"github.com/kubeflow/trainer/v2/pkg/constants"
	trainingruntimeutil "github.com/kubeflow/trainer/v2/pkg/util/trainingruntime"
	trainjobutil "github.com/kubeflow/trainer/v2/pkg/util/trainjob"
	"github.com/kubeflow/trainer/v2/pkg/webhooks"
	"gomodules.xyz/jsonpatch/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook"
	webhookadmission "sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/signalbox-dev/signalbox/admission/checkpoint"
	"github.com/signalbox-dev/signalbox/admission/grow"
	"github.com/signalbox-dev/signalbox/admission/stalled"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides"
	"github.com/signalbox-dev/signalbox/overrides/dialect"
	"github.com/signalbox-dev/signalbox/overrides/legacy"
	"github.com/signalbox-dev/signalbox/review"
	"github.com/signalbox-dev/signalbox/store"
	"github.com/signalbox-dev/signalbox/trainer/gang"
	"github.com/signalbox-dev/signalbox/trainer/status"
)

// +kubebuilder:webhook:path=/mutate-trainer-kubeflow-org-v1alpha1-trainjob,mutating=true,failurePolicy=fail,sideEffects=None,groups=trainer.kubeflow.org,resources=trainjobs,verbs=create;update,versions=v1alpha1,name=mtrainjob.trainer.signalbox.dev,admissionReviewVersions=v1
// +kubebuilder:webhook:path=/validate-trainer-kubeflow-org-v1alpha1-trainjob,mutating=false,failurePolicy=fail,sideEffects=None,groups=trainer.kubeflow.org,resources=trainjobs,verbs=create;update,versions=v1alpha1,name=vtrainjob.trainer.signalbox.dev,admissionReviewVersions=v1
// +kubebuilder:webhook:path=/validate-trainer-kubeflow-org-v1alpha1-trainingruntime,mutating=false,failurePolicy=fail,sideEffects=None,groups=trainer.kubeflow.org,resources=trainingruntimes,verbs=create;update,versions=v1alpha1,name=vtrainingruntime.trainer.signalbox.dev,admissionReviewVersions=v1
// +kubebuilder:webhook:path=/validate-trainer-kubeflow-org-v1alpha1-clustertrainingruntime,mutating=false,failurePolicy=fail,sideEffects=None,groups=trainer.kubeflow.org,resources=clustertrainingruntimes,verbs=create;update,versions=v1alpha1,name=vclustertrainingruntime.trainer.signalbox.dev,admissionReviewVersions=v1

// Webhook holds the override contract: what a TrainJob may change of its runtime, and when. The integration's webhook,
// which is called before it with either Trainer, decides who may change which entry. Runtimes are validated by
// Trainer's own code.
type Webhook struct {
	// Client reads from a cache, Live from the API server itself.
	Client  client.Client
	Live    client.Reader
	Builder Builder
	Reader  review.Reader
	Clock   clock.PassiveClock
	Limits  overrides.Limits
	// Reports is set if training processes can report.
	Reports bool
	// Grows is set if TrainJobs may grow.
	Grows bool
}

// Builder validates by Trainer's plugins.
type Builder interface {
	// Validate returns what the plugins reject of a TrainJob on a runtime; before is nil on creation.
	Validate(
		ctx context.Context, before, after *api.TrainJob, spec *trainerapi.TrainingRuntimeSpec,
	) (webhookadmission.Warnings, field.ErrorList)
}

// Register serves the webhooks at the paths of Kubeflow Trainer's.
func (w *Webhook) Register(mgr ctrl.Manager) error {
	server := mgr.GetWebhookServer()
	server.Register("/mutate-trainer-kubeflow-org-v1alpha1-trainjob",
		&webhook.Admission{Handler: webhookadmission.HandlerFunc(w.mutate)})
	server.Register("/validate-trainer-kubeflow-org-v1alpha1-trainjob",
		&webhook.Admission{Handler: webhookadmission.HandlerFunc(w.validate)})
	scheme := runtime.NewScheme() // Trainer's validators take its own types
	if err := trainerapi.AddToScheme(scheme); err != nil {
		return err
	}
	for path, hook := range map[string]*webhook.Admission{
		"/validate-trainer-kubeflow-org-v1alpha1-trainingruntime": webhookadmission.WithValidator(scheme,
			unlessDisabled[*trainerapi.TrainingRuntime]{&webhooks.TrainingRuntimeValidator{}}),
		"/validate-trainer-kubeflow-org-v1alpha1-clustertrainingruntime": webhookadmission.WithValidator(scheme,
			unlessDisabled[*trainerapi.ClusterTrainingRuntime]{&webhooks.ClusterTrainingRuntimeValidator{}}),
	} {
		server.Register(path, measured(w.Reader.Limits, hook))
	}
	return nil
}

// mutate sets the times of the entries, and rejects what the CRD would reject with a worse message.
func (w *Webhook) mutate(_ context.Context, request webhookadmission.Request) webhookadmission.Response {
	rq, err := w.Reader.Read(request)
	if err != nil {
		return webhookadmission.Errored(http.StatusBadRequest, err)
	}
	if rq.OnlyFinalizers() {
		return webhookadmission.Allowed("")
	}
	if rq.Created() || changedEntries(rq) != nil && !rq.Trusted {
		if errs := w.Limits.CheckSize(rq.New, legacy.EveryEntry(rq.New)); len(errs) > 0 {
			return review.Reject(rq.New, errs) // before anything is computed of it
		}
		errs := overrides.CheckEntries(rq.New, dialect.Bundled.Entries(rq.New))
		if errs = append(legacy.CheckHistoryManagers(rq.New), errs...); len(errs) > 0 {
			return review.Reject(rq.New, errs)
		}
	}
	now := metav1.NewTime(w.Clock.Now())
	times := overrides.Times(rq.Old, rq.New, now, rq.Trusted)
	maps.Copy(times, legacy.HistoryTimes(rq.Old, rq.New, now))
	var patch []jsonpatch.Operation
	if !rq.Created() && !rq.Trusted {
		// The integration's webhook keeps the pin of queued TrainJobs; others are pinned too.
		patch = rq.Restore(store.PinAnnotation)
	}
	for _, pointer := range slices.Sorted(maps.Keys(times)) {
		patch = append(patch, jsonpatch.NewOperation("add", pointer, times[pointer]))
	}
	return webhookadmission.Patched("", patch...)
}

func (w *Webhook) validate(ctx context.Context, request webhookadmission.Request) webhookadmission.Response {
	rq, err := w.Reader.Read(request)
	if err != nil {
		return webhookadmission.Errored(http.StatusBadRequest, err)
	}
	if rq.OnlyFinalizers() {
		return webhookadmission.Allowed("")
	}
	errs := checkAnnotations(rq)
	if len(errs) == 0 && !rq.Created() {
		errs, _ = overrides.CheckFrozen(rq.Old, rq.New)
		errs = append(errs, legacy.CheckHistories(rq.Old, rq.New)...)
	}
	if len(errs) > 0 {
		return review.Reject(rq.New, errs)
	}
	var unheard webhookadmission.Warnings
	if !w.Reports {
		unheard = stalled.Unheard(rq.Old, rq.New)
	}
	unheard = append(unheard, w.growthWarnings(ctx, rq)...)
	if !rq.Created() && !concerned(rq) {
		return webhookadmission.Allowed("").WithWarnings(unheard...) // above all, a stop needs no runtime
	}
	warnings, errs, err := w.check(ctx, rq)
	if err != nil {
		return webhookadmission.Errored(http.StatusInternalServerError, err)
	}
	if warnings = append(unheard, warnings...); len(errs) > 0 {
		return review.Reject(rq.New, errs, warnings...)
	}
	return webhookadmission.Allowed("").WithWarnings(warnings...)
}

// checkAnnotations rejects a pinned runtime that another client adds or changes, because what is pinned is run,
// whatever it is; and annotations with unknown values.
func checkAnnotations(rq *review.Request) field.ErrorList {
	annotations := field.NewPath("metadata", "annotations")
	if !rq.Trusted && rq.AnnotationChanged(store.PinAnnotation) {
		return field.ErrorList{field.Forbidden(annotations.Key(store.PinAnnotation),
			"Signalbox alone writes this annotation; take it out of the manifest")}
	}
	changed := maps.Clone(rq.New.Annotations)
	maps.DeleteFunc(changed, func(key, _ string) bool { // what is stored keeps nobody from a stop
		return !rq.Created() && !rq.AnnotationChanged(key)
	})
	errs := gang.CheckAnnotations(annotations, changed)
	errs = append(errs, status.CheckRestarts(annotations, changed)...)
	errs = append(errs, checkpoint.Check(changed, annotations)...)
	errs = append(errs, grow.Check(changed, annotations)...)
	return append(errs, stalled.Check(changed, annotations)...)
}

// growthWarnings returns why a TrainJob that gets the annotation doesn't grow. What isn't known of its runtime is no
// reason to refuse it.
func (w *Webhook) growthWarnings(ctx context.Context, rq *review.Request) []string {
	if rq.New.Annotations[api.GrowAnnotation] != "true" || trainjobutil.IsManagedByExternalController(rq.New.Upstream()) ||
		!rq.AnnotationChanged(api.GrowAnnotation) && !rq.AnnotationChanged(overrides.MinParallelismAnnotation) {
		return nil
	}
	spec, _, err := w.runtimeOf(ctx, rq.New)
	if err != nil {
		return nil
	}
	least, err := overrides.MinNodes(rq.New, spec)
	if err != nil {
		return nil // it is rejected
	}
	return grow.Warnings(w.Grows, least, overrides.Nodes(rq.New, spec))
}

// changedEntries returns the field of the entries that an update changes, the first of several; nil if there is none.
func changedEntries(rq *review.Request) *field.Path {
	return cmp.Or(overrides.Changed(rq.Old, rq.New), legacy.ChangedForm(rq.Old, rq.New))
}

// concerned reports whether an update changes what is compared with the runtime.
func concerned(rq *review.Request) bool {
	_, changed := overrides.CheckFrozen(rq.Old, rq.New)
	return changed || changedEntries(rq) != nil || rq.AnnotationChanged(overrides.MinParallelismAnnotation)
}

// check compares a new TrainJob, or an update, with the JobSet and the runtime. An error means that it isn't known what
// is wrong.
func (w *Webhook) check(ctx context.Context, rq *review.Request) (webhookadmission.Warnings, field.ErrorList, error) {
	if !rq.Created() {
		js, err := store.JobSetNamed(ctx, w.Client, client.ObjectKeyFromObject(rq.New))
		if err != nil {
			return nil, nil, err
		}
		if js != nil && !metav1.IsControlledBy(js, rq.New) {
			js = nil
		}
		errs := append(overrides.CheckTransition(changedEntries(rq), rq.Old, rq.New, js),
			overrides.CheckResize(rq.Old, rq.New, js)...)
		if len(errs) > 0 || rq.Trusted {
			return nil, errs, nil // the integration has computed its entry on the runtime
		}
	}
	spec, warnings, err := w.runtimeOf(ctx, rq.New)
	if invalid := (*field.Error)(nil); errors.As(err, &invalid) {
		return nil, field.ErrorList{invalid}, nil
	}
	if err != nil {
		return nil, nil, err
	}
	if rq.Created() || overrides.Resized(rq.Old, rq.New) || rq.AnnotationChanged(overrides.MinParallelismAnnotation) {
		entries := legacy.EveryEntry(rq.New)
		errs := append(w.Limits.CheckSize(rq.New, entries), w.Limits.CheckRuntime(rq.New, spec, entries)...)
		if errs = append(errs, overrides.CheckMinNodes(rq.New, spec)...); len(errs) > 0 {
			return warnings, errs, nil
		}
		warnings = append(warnings, dialect.Bundled.Unused(rq.New, spec)...)
	}
	entries := dialect.Bundled.Entries(rq.New)
	warnings = append(warnings, overrides.Warnings(entries)...)
	warnings = append(warnings, legacy.Deprecations(rq.New, spec)...)
	if errs := overrides.Check(rq.New, spec, entries); len(errs) > 0 {
		return warnings, errs, nil
	}
	more, errs := w.Builder.Validate(ctx, rq.Old, rq.New, spec)
	return append(warnings, more...), errs, nil
}

// runtimeOf returns the runtime that a TrainJob is compared with, and warnings about it. An unusable one is a
// *field.Error.
func (w *Webhook) runtimeOf(
	ctx context.Context, job *api.TrainJob,
) (*trainerapi.TrainingRuntimeSpec, webhookadmission.Warnings, error) {
	pinned, err := store.Pinned(job)
	if err != nil {
		path := field.NewPath("metadata", "annotations").Key(store.PinAnnotation)
		return nil, nil, field.Invalid(path, "", err.Error())
	}
	if pinned != nil {
		return pinned, nil, nil
	}
	path := field.NewPath("spec", "runtimeRef")
	live, err := store.LiveRuntime(ctx, w.Client, job)
	if err == nil && live == nil {
		live, err = store.LiveRuntime(ctx, w.Live, job) // created a moment ago, maybe
	}
	if errors.Is(err, store.ErrUnknownKind) {
		ref := job.Spec.RuntimeRef
		kind := fmt.Sprintf("%s.%s", ptr.Deref(ref.Kind, ""), ptr.Deref(ref.APIGroup, ""))
		return nil, nil, field.NotSupported(path.Child("kind"), kind,
			[]string{"ClusterTrainingRuntime.trainer.kubeflow.org", "TrainingRuntime.trainer.kubeflow.org"})
	}
	if err != nil {
		return nil, nil, err
	}
	if live == nil {
		return nil, nil, field.Invalid(path, job.Spec.RuntimeRef.Name, fmt.Sprintf(
			"there is no %s; create it before the TrainJob, or refer to another", store.Describe(job)))
	}
	return &live.Spec, w.runtimeWarnings(job, live), nil
}

// runtimeWarnings returns the warnings about the runtime that a TrainJob refers to.
func (w *Webhook) runtimeWarnings(job *api.TrainJob, live *store.Runtime) (warnings webhookadmission.Warnings) {
	_, own := job.Annotations[api.StalledAfterAnnotation]
	elsewhere := trainjobutil.IsManagedByExternalController(job.Upstream())
	if _, set := live.Annotations[api.StalledAfterAnnotation]; set && !own && !elsewhere && !w.Reports {
		warnings = append(warnings, fmt.Sprintf("%s: %s", store.Describe(job), stalled.NoEffect))
	}
	if trainingruntimeutil.IsSupportDeprecated(live.Labels) {
		warnings = append(warnings, fmt.Sprintf(
			"%s is deprecated and will be removed in a future release of Kubeflow Trainer; its policy for runtimes: %s",
			store.Describe(job), constants.RuntimeDeprecationPolicyURL))
	}
	return warnings
}
