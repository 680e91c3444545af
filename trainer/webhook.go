package trainer

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"github.com/kubeflow/trainer/v2/pkg/constants"
	trainingruntimeutil "github.com/kubeflow/trainer/v2/pkg/util/trainingruntime"
	"github.com/kubeflow/trainer/v2/pkg/webhooks"
	"gomodules.xyz/jsonpatch/v2"
	admissionv1 "k8s.io/api/admission/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook"
	webhookadmission "sigs.k8s.io/controller-runtime/pkg/webhook/admission"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	"github.com/signalbox-dev/signalbox/admission"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides"
	"github.com/signalbox-dev/signalbox/trainer/gang"
)

// +kubebuilder:webhook:path=/mutate-trainer-kubeflow-org-v1alpha1-trainjob,mutating=true,failurePolicy=fail,sideEffects=None,groups=trainer.kubeflow.org,resources=trainjobs,verbs=create;update,versions=v1alpha1,name=mtrainjob.trainer.signalbox.dev,admissionReviewVersions=v1
// +kubebuilder:webhook:path=/validate-trainer-kubeflow-org-v1alpha1-trainjob,mutating=false,failurePolicy=fail,sideEffects=None,groups=trainer.kubeflow.org,resources=trainjobs,verbs=create;update,versions=v1alpha1,name=vtrainjob.trainer.signalbox.dev,admissionReviewVersions=v1
// +kubebuilder:webhook:path=/validate-trainer-kubeflow-org-v1alpha1-trainingruntime,mutating=false,failurePolicy=fail,sideEffects=None,groups=trainer.kubeflow.org,resources=trainingruntimes,verbs=create;update,versions=v1alpha1,name=vtrainingruntime.trainer.signalbox.dev,admissionReviewVersions=v1
// +kubebuilder:webhook:path=/validate-trainer-kubeflow-org-v1alpha1-clustertrainingruntime,mutating=false,failurePolicy=fail,sideEffects=None,groups=trainer.kubeflow.org,resources=clustertrainingruntimes,verbs=create;update,versions=v1alpha1,name=vclustertrainingruntime.trainer.signalbox.dev,admissionReviewVersions=v1

// Webhook holds the override contract: what a TrainJob may change of its runtime, and when. Who may change which entry
// is the integration's webhook's, which stands before it with either Trainer. Runtimes are validated by Trainer's own
// code.
type Webhook struct {
	client  client.Client
	reader  client.Reader // reads from the API server itself
	builder *Builder
	decoder webhookadmission.Decoder
	clock   clock.PassiveClock
	limits  overrides.Limits
	// self are the users that write as the integration.
	self []string
}

// NewWebhook returns the webhook. reader must not be a cache; self are the users that write as the integration.
func NewWebhook(c client.Client, reader client.Reader, builder *Builder, decoder webhookadmission.Decoder, clk clock.PassiveClock, limits overrides.Limits, self []string) *Webhook {
	return &Webhook{client: c, reader: reader, builder: builder, decoder: decoder, clock: clk, limits: limits, self: self}
}

// Register serves the webhooks at the paths of Kubeflow Trainer's.
func (w *Webhook) Register(mgr ctrl.Manager) error {
	server := mgr.GetWebhookServer()
	server.Register("/mutate-trainer-kubeflow-org-v1alpha1-trainjob", &webhook.Admission{Handler: webhookadmission.HandlerFunc(w.mutate)})
	server.Register("/validate-trainer-kubeflow-org-v1alpha1-trainjob", &webhook.Admission{Handler: webhookadmission.HandlerFunc(w.validate)})
	theirs := runtime.NewScheme() // Trainer's validators take its own types
	if err := trainerapi.AddToScheme(theirs); err != nil {
		return err
	}
	server.Register("/validate-trainer-kubeflow-org-v1alpha1-trainingruntime",
		webhookadmission.WithValidator(theirs, unlessDisabled[*trainerapi.TrainingRuntime]{&webhooks.TrainingRuntimeValidator{}}))
	server.Register("/validate-trainer-kubeflow-org-v1alpha1-clustertrainingruntime",
		webhookadmission.WithValidator(theirs, unlessDisabled[*trainerapi.ClusterTrainingRuntime]{&webhooks.ClusterTrainingRuntimeValidator{}}))
	return nil
}

// validationLabel on a runtime, with value "disabled", keeps it from validation: Kubeflow Trainer's webhook configuration
// has a selector for it, and the runtimes that Trainer ships carry it.
const validationLabel = "trainer.kubeflow.org/webhook-validation"

// unlessDisabled validates runtimes that don't have the label.
type unlessDisabled[T client.Object] struct{ webhookadmission.Validator[T] }

// ValidateCreate implements admission.Validator.
func (u unlessDisabled[T]) ValidateCreate(ctx context.Context, created T) (webhookadmission.Warnings, error) {
	if created.GetLabels()[validationLabel] == "disabled" {
		return nil, nil
	}
	if err := checkRuntime(created); err != nil {
		return nil, err
	}
	return u.Validator.ValidateCreate(ctx, created)
}

// checkRuntime refuses values of our own annotations that don't exist.
func checkRuntime(runtime client.Object) error {
	return gang.CheckAnnotations(field.NewPath("metadata", "annotations"), runtime.GetAnnotations()).ToAggregate()
}

// ValidateUpdate implements admission.Validator.
func (u unlessDisabled[T]) ValidateUpdate(ctx context.Context, before, after T) (webhookadmission.Warnings, error) {
	if after.GetLabels()[validationLabel] == "disabled" {
		return nil, nil
	}
	if err := checkRuntime(after); err != nil && !maps.Equal(before.GetAnnotations(), after.GetAnnotations()) {
		return nil, err
	}
	return u.Validator.ValidateUpdate(ctx, before, after)
}

// decode reads the TrainJob of a request, and the one of before; nil on creation.
func (w *Webhook) decode(request webhookadmission.Request) (before, after *api.TrainJob, err error) {
	after = &api.TrainJob{}
	if err := w.decoder.Decode(request, after); err != nil {
		return nil, nil, err
	}
	if after.Namespace == "" {
		after.Namespace = request.Namespace
	}
	if request.Operation == admissionv1.Update {
		before = &api.TrainJob{}
		err = w.decoder.DecodeRaw(request.OldObject, before)
	}
	return before, after, err
}

// goes reports whether a request only removes finalizers from a TrainJob that is being deleted. Such a request is never denied.
func goes(before, after *api.TrainJob) bool {
	return !after.DeletionTimestamp.IsZero() && (before == nil || equality.Semantic.DeepEqual(before.Spec, after.Spec) && maps.Equal(before.Annotations, after.Annotations))
}

// mutate sets the times of the entries, and refuses what the CRD would refuse with less of a message.
func (w *Webhook) mutate(_ context.Context, request webhookadmission.Request) webhookadmission.Response {
	before, after, err := w.decode(request)
	if err != nil {
		return webhookadmission.Errored(http.StatusBadRequest, err)
	}
	if goes(before, after) {
		return webhookadmission.Allowed("")
	}
	if before == nil || overrides.Changed(before, after) && !w.trusted(request) {
		if errs := w.limits.CheckSize(after); len(errs) > 0 {
			return refused(after, errs, nil) // before anything is computed of it
		}
		if errs := overrides.Bundled.CheckEntries(after); len(errs) > 0 {
			return refused(after, errs, nil)
		}
	}
	times := overrides.Times(before, after, metav1.NewTime(w.clock.Now()), w.trusted(request))
	var patch []jsonpatch.Operation
	if before != nil && !w.trusted(request) {
		patch = keepPin(before, after)
	}
	for _, pointer := range slices.Sorted(maps.Keys(times)) {
		patch = append(patch, jsonpatch.NewOperation("add", pointer, times[pointer]))
	}
	return webhookadmission.Patched("", patch...)
}

// keepPin returns the patch that leaves the pinned runtime as it was before an update by somebody else. It stands here
// beside the integration's, because TrainJobs that nobody queues are pinned too, in every namespace.
func keepPin(before, after *api.TrainJob) []jsonpatch.Operation {
	const path = "/metadata/annotations"
	pointer := path + "/" + strings.ReplaceAll(overrides.PinAnnotation, "/", "~1")
	was, had := before.Annotations[overrides.PinAnnotation]
	is, has := after.Annotations[overrides.PinAnnotation]
	switch {
	case had == has && was == is:
		return nil
	case !had:
		return []jsonpatch.Operation{jsonpatch.NewOperation("remove", pointer, nil)}
	case after.Annotations == nil:
		return []jsonpatch.Operation{jsonpatch.NewOperation("add", path, map[string]string{overrides.PinAnnotation: was})}
	}
	return []jsonpatch.Operation{jsonpatch.NewOperation("add", pointer, was)}
}

// checkPin refuses a pinned runtime that somebody else brings or changes: what is pinned is run, whatever it says.
func checkPin(before, after *api.TrainJob) field.ErrorList {
	is, has := after.Annotations[overrides.PinAnnotation]
	if before != nil {
		if was, had := before.Annotations[overrides.PinAnnotation]; had == has && was == is {
			return nil
		}
	} else if !has {
		return nil
	}
	return field.ErrorList{field.Forbidden(field.NewPath("metadata", "annotations").Key(overrides.PinAnnotation),
		"the annotation is written when the TrainJob starts; take it out of the manifest")}
}

func (w *Webhook) trusted(request webhookadmission.Request) bool {
	return slices.Contains(w.self, request.UserInfo.Username)
}

func (w *Webhook) validate(ctx context.Context, request webhookadmission.Request) webhookadmission.Response {
	before, after, err := w.decode(request)
	if err != nil {
		return webhookadmission.Errored(http.StatusBadRequest, err)
	}
	if goes(before, after) {
		return webhookadmission.Allowed("")
	}
	if !w.trusted(request) {
		if errs := checkPin(before, after); len(errs) > 0 {
			return refused(after, errs, nil)
		}
	}
	if before == nil || !maps.Equal(before.Annotations, after.Annotations) {
		if errs := gang.CheckAnnotations(field.NewPath("metadata", "annotations"), after.Annotations); len(errs) > 0 {
			return refused(after, errs, nil)
		}
	}
	if before != nil {
		errs, changed := overrides.CheckFrozen(before, after)
		errs = append(errs, overrides.CheckHistories(before, after)...)
		if len(errs) > 0 {
			return refused(after, errs, nil)
		}
		if !changed && !overrides.Changed(before, after) {
			return webhookadmission.Allowed("") // nothing here is about it; above all, a stop needs no runtime
		}
		var js jobset.JobSet
		found := &js
		if err := w.client.Get(ctx, client.ObjectKeyFromObject(after), &js); apierrors.IsNotFound(err) || err == nil && !metav1.IsControlledBy(&js, after) {
			found = nil
		} else if err != nil {
			return webhookadmission.Errored(http.StatusInternalServerError, err)
		}
		if errs := overrides.CheckTransition(before, after, found); len(errs) > 0 {
			return refused(after, errs, nil)
		}
		if w.trusted(request) {
			return webhookadmission.Allowed("") // its entry was computed on the runtime
		}
	}
	warnings, errs, err := w.check(ctx, before, after)
	if err != nil {
		return webhookadmission.Errored(http.StatusInternalServerError, err)
	}
	if len(errs) > 0 {
		return refused(after, errs, warnings)
	}
	return webhookadmission.Allowed("").WithWarnings(warnings...)
}

// check compares the TrainJob with its runtime.
func (w *Webhook) check(ctx context.Context, before, after *api.TrainJob) (webhookadmission.Warnings, field.ErrorList, error) {
	path := field.NewPath("spec", "runtimeRef")
	var warnings webhookadmission.Warnings
	spec, err := overrides.Pinned(after)
	if err != nil {
		return nil, field.ErrorList{field.Invalid(field.NewPath("metadata", "annotations").Key(overrides.PinAnnotation), "", err.Error())}, nil
	}
	if spec == nil {
		live, err := admission.LiveRuntime(ctx, w.client, after)
		if err == nil && live == nil {
			live, err = admission.LiveRuntime(ctx, w.reader, after) // made a moment ago, maybe
		}
		switch {
		case errors.Is(err, admission.ErrUnknownKind):
			return nil, field.ErrorList{field.NotSupported(path.Child("kind"), fmt.Sprintf("%s.%s", ptr.Deref(after.Spec.RuntimeRef.Kind, ""), ptr.Deref(after.Spec.RuntimeRef.APIGroup, "")),
				[]string{"ClusterTrainingRuntime.trainer.kubeflow.org", "TrainingRuntime.trainer.kubeflow.org"})}, nil
		case err != nil:
			return nil, nil, err
		case live == nil:
			return nil, field.ErrorList{field.Invalid(path, after.Spec.RuntimeRef.Name, fmt.Sprintf(
				"there is no %s; create it before the TrainJob, or refer to another", admission.Describe(after)))}, nil
		}
		spec = &live.Spec
		if trainingruntimeutil.IsSupportDeprecated(live.Labels) {
			warnings = append(warnings, fmt.Sprintf("%s is deprecated and will be removed in a future release of Kubeflow Trainer; its policy for runtimes: %s",
				admission.Describe(after), constants.RuntimeDeprecationPolicyURL))
		}
	}
	if errs := append(w.limits.CheckSize(after), w.limits.CheckRuntime(after, spec)...); before == nil && len(errs) > 0 {
		return warnings, errs, nil
	}
	warnings = append(warnings, overrides.Warnings(overrides.Bundled.Entries(after))...)
	warnings = append(warnings, overrides.Deprecations(after, spec)...)
	if errs := overrides.Bundled.Check(after, spec); len(errs) > 0 {
		return warnings, errs, nil
	}
	more, errs := w.builder.Validate(ctx, before, after, spec)
	return append(warnings, more...), errs, nil
}

func refused(job *api.TrainJob, errs field.ErrorList, warnings webhookadmission.Warnings) webhookadmission.Response {
	kind := trainerapi.GroupVersion.WithKind(trainerapi.TrainJobKind).GroupKind()
	status := apierrors.NewInvalid(kind, job.Name, errs).Status()
	return webhookadmission.Response{AdmissionResponse: admissionv1.AdmissionResponse{Allowed: false, Result: &status, Warnings: warnings}}
}
