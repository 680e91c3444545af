package trainer

import (
	"context"
	"maps"

	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/client"
	webhookadmission "sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/signalbox-dev/signalbox/trainer/gang"
)

// validationLabel on a runtime, with value "disabled", keeps it from validation: Kubeflow Trainer's webhook
// configuration has a selector for it, and the runtimes that Trainer ships carry it.
const validationLabel = "trainer.kubeflow.org/webhook-validation"

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
	return gang.CheckAnnotations(field.NewPath("metadata", "annotations"), rt.GetAnnotations()).ToAggregate()
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
