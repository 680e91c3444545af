package webhook

import (
	"context"
	"maps"
	"net/http"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	admissionv1 "k8s.io/api/admission/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/client"
	webhookadmission "sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/signalbox-dev/signalbox/admission/checkpoint"
	"github.com/signalbox-dev/signalbox/admission/stalled"
	"github.com/signalbox-dev/signalbox/admission/ttl"
	"github.com/signalbox-dev/signalbox/review"
	"github.com/signalbox-dev/signalbox/trainer/gang"
)

// validationLabel on a runtime, with value "disabled", keeps it from validation: Kubeflow Trainer's webhook
// configuration has a selector for it, and the runtimes that Trainer ships carry it.
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
func checkRuntime(rt client.Object) error {
	path, annotations := field.NewPath("metadata", "annotations"), rt.GetAnnotations()
	errs := append(gang.CheckAnnotations(path, annotations), checkpoint.CheckRuntime(annotations, path)...)
	errs = append(errs, stalled.Check(annotations, path)...)
	errs = append(errs, ttl.Check(annotations, path)...)
	template := field.NewPath("spec", "template", "metadata", "annotations") // a JobSet has these
	return append(errs, ttl.Check(templateOf(rt).Annotations, template)...).ToAggregate()
}

func templateOf(rt client.Object) trainerapi.JobSetTemplateSpec {
	switch rt := rt.(type) {
	case *trainerapi.TrainingRuntime:
		return rt.Spec.Template
	case *trainerapi.ClusterTrainingRuntime:
		return rt.Spec.Template
	}
	return trainerapi.JobSetTemplateSpec{}
}

// ValidateUpdate implements admission.Validator.
func (u unlessDisabled[T]) ValidateUpdate(ctx context.Context, before, after T) (webhookadmission.Warnings, error) {
	if after.GetLabels()[validationLabel] == "disabled" {
		return nil, nil
	}
	if err := checkRuntime(after); err != nil && (!maps.Equal(before.GetAnnotations(), after.GetAnnotations()) ||
		!maps.Equal(templateOf(before).Annotations, templateOf(after).Annotations)) {
		return nil, err
	}
	return u.Validator.ValidateUpdate(ctx, before, after)
}

// measured has a webhook reject objects that would cost more to decode than their bytes allow. What is stored may be
// older than that limit, and isn't decoded: what replaces it is checked as a new one.
func measured(limits review.Limits, hook *webhookadmission.Webhook) *webhookadmission.Webhook {
	decode := hook.Handler
	hook.Handler = webhookadmission.HandlerFunc(
		func(ctx context.Context, request webhookadmission.Request) webhookadmission.Response {
			if err := limits.CheckElements(request.Object.Raw); err != nil {
				return webhookadmission.Errored(http.StatusBadRequest, err)
			}
			if limits.CheckElements(request.OldObject.Raw) != nil {
				request.Operation, request.OldObject = admissionv1.Create, runtime.RawExtension{}
			}
			return decode.Handle(ctx, request)
		})
	return hook
}
