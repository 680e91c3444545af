package trainer

import (
	"context"
	"errors"
	"fmt"
	"strings"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/signalbox-dev/signalbox/admission/avoid"
)

// theirWebhooks is how the names of Kubeflow Trainer's webhooks end.
const theirWebhooks = ".trainer.kubeflow.org"

// Check refuses a cluster on which the bundled Trainer can't work, with what to change: one where another Trainer
// serves the same kinds, or that has another's CRDs. Of a release before nodes were avoided, the CRD of TrainJobs would
// drop what is remembered: each reconcile would write it again.
func Check(ctx context.Context, reader client.Reader, avoided avoid.Policy) error {
	fields := []string{"state"}
	if avoided.On() {
		fields = append(fields, "avoided")
	}
	return errors.Join(checkAlone(ctx, reader), checkCRDs(ctx, reader, fields))
}

func checkAlone(ctx context.Context, reader client.Reader) error {
	var mutating admissionregistrationv1.MutatingWebhookConfigurationList
	var validating admissionregistrationv1.ValidatingWebhookConfigurationList
	if err := errors.Join(reader.List(ctx, &mutating), reader.List(ctx, &validating)); err != nil {
		return fmt.Errorf("looking for another Trainer: %w", err)
	}
	var theirs []string
	note := func(webhook, kind, configuration string) {
		if strings.HasSuffix(webhook, theirWebhooks) {
			theirs = append(theirs, fmt.Sprintf("%s (%s %s)", webhook, kind, configuration))
		}
	}
	for _, c := range mutating.Items {
		for _, w := range c.Webhooks {
			note(w.Name, "MutatingWebhookConfiguration", c.Name)
		}
	}
	for _, c := range validating.Items {
		for _, w := range c.Webhooks {
			note(w.Name, "ValidatingWebhookConfiguration", c.Name)
		}
	}
	if len(theirs) == 0 {
		return nil
	}
	return fmt.Errorf("another Trainer serves TrainJobs here, and both would build every JobSet. Set "+
		"trainer.enabled to false to work beside it, or remove its controller and its webhooks (not its CRDs: that "+
		"would delete all TrainJobs) to use the bundled one; found %s", strings.Join(theirs, ", "))
}

// checkCRDs refuses CRDs that are missing, or that of TrainJobs without some fields of status.
func checkCRDs(ctx context.Context, reader client.Reader, fields []string) error {
	for _, plural := range []string{"trainjobs", "trainingruntimes", "clustertrainingruntimes"} {
		name := plural + "." + trainerapi.GroupVersion.Group
		var crd apiextensionsv1.CustomResourceDefinition
		if err := reader.Get(ctx, client.ObjectKey{Name: name}, &crd); apierrors.IsNotFound(err) {
			return fmt.Errorf("CRD %s is missing; apply config/crd of this release", name)
		} else if err != nil {
			return fmt.Errorf("reading CRD %s: %w", name, err)
		}
		for _, field := range fields {
			if plural == "trainjobs" && !hasStatus(&crd, field) {
				return fmt.Errorf("CRD %s has no status.%s: it is Kubeflow Trainer's, or of an earlier release; apply "+
					"config/crd of this release over it (TrainJobs stay as they are)", name, field)
			}
		}
	}
	return nil
}

func hasStatus(crd *apiextensionsv1.CustomResourceDefinition, field string) bool {
	for _, version := range crd.Spec.Versions {
		if version.Name == trainerapi.GroupVersion.Version && version.Schema != nil && version.Schema.OpenAPIV3Schema != nil {
			_, found := version.Schema.OpenAPIV3Schema.Properties["status"].Properties[field]
			return found
		}
	}
	return false
}
