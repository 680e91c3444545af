package trainer

import (
	"context"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/signalbox-dev/signalbox/admission/avoid"
)

// trainerCRD is a CRD of Trainer's; properties are those of status.
func trainerCRD(plural, version string, properties ...string) *apiextensionsv1.CustomResourceDefinition {
	status := apiextensionsv1.JSONSchemaProps{Properties: map[string]apiextensionsv1.JSONSchemaProps{}}
	for _, p := range properties {
		status.Properties[p] = apiextensionsv1.JSONSchemaProps{}
	}
	crd := &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: plural + ".trainer.kubeflow.org"}}
	crd.Spec.Versions = []apiextensionsv1.CustomResourceDefinitionVersion{{Name: version,
		Schema: &apiextensionsv1.CustomResourceValidation{
			OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{
				Properties: map[string]apiextensionsv1.JSONSchemaProps{"status": status}}}}}
	return crd
}

func TestPreflight(t *testing.T) {
	ours := []client.Object{trainerCRD("trainjobs", "v1alpha1", "conditions", "state"), trainerCRD("trainingruntimes",
		"v1alpha1"),
		trainerCRD("clustertrainingruntimes", "v1alpha1")}
	with := func(objects ...client.Object) []client.Object { return append(objects, ours...) }
	mutating := &admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "theirs-m"},
		Webhooks: []admissionregistrationv1.MutatingWebhook{{Name: "other.example.com"},
			{Name: "defaulter.trainjob.trainer.kubeflow.org"}}}
	validating := &admissionregistrationv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "theirs-v"},
		Webhooks: []admissionregistrationv1.ValidatingWebhook{{Name: "validator.trainjob.trainer.kubeflow.org"}}}
	own := &admissionregistrationv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "signalbox"},
		Webhooks: []admissionregistrationv1.ValidatingWebhook{{Name: "vtrainjob.trainer.signalbox.dev"}}}
	cases := map[string]struct {
		reason string
		there  []client.Object
		nodes  avoid.Policy
		down   string // the kind that isn't answered for
		want   []string
	}{
		"fine": {reason: "our CRDs and webhooks alone", there: with(own)},
		"another Trainer": {reason: "two would fight over every JobSet", there: with(mutating, validating), want: []string{
			"another Trainer serves TrainJobs here, and both would build every JobSet. Set trainer.enabled to false",
			"defaulter.trainjob.trainer.kubeflow.org (MutatingWebhookConfiguration theirs-m), " +
				"validator.trainjob.trainer.kubeflow.org (ValidatingWebhookConfiguration theirs-v)"}},
		"no CRD": {reason: "the first that is missing is " +
			"named", want: []string{"CRD trainjobs.trainer.kubeflow.org is missing; apply config/crd of this release"}},
		"one is missing": {reason: "it is named", there: ours[:2],
			want: []string{"CRD clustertrainingruntimes.trainer.kubeflow.org is missing"}},
		"Kubeflow's": {reason: "it would drop the " +
			"state", there: append([]client.Object{trainerCRD("trainjobs", "v1alpha1", "conditions")}, ours[1:]...),
			want: []string{"CRD trainjobs.trainer.kubeflow.org has no status.state"}},
		"an earlier release, and nodes are avoided": {reason: "it would drop what is remembered", there: ours,
			nodes: avoiding, want: []string{"CRD trainjobs.trainer.kubeflow.org has no status.avoided"}},
		"nodes are avoided": {reason: "it has both fields", nodes: avoiding, there: append([]client.Object{
			trainerCRD("trainjobs", "v1alpha1", "state", "avoided")}, ours[1:]...)},
		"another version": {reason: "it isn't ours", there: append([]client.Object{trainerCRD("trainjobs", "v1", "state")},
			ours[1:]...), want: []string{"has no status.state"}},
		"both": {reason: "all is said at once", there: []client.Object{validating},
			want: []string{"another Trainer", "is missing"}},
		"CRDs unread": {reason: "it isn't known", there: ours, down: "CustomResourceDefinition",
			want: []string{"reading CRD trainjobs.trainer.kubeflow.org: down"}},
		"webhooks unread": {reason: "it isn't known", there: ours, down: "WebhookConfigurationList",
			want: []string{"looking for another Trainer: down"}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			down := apierrors.NewServiceUnavailable("down")
			there := fake.NewClientBuilder().WithScheme(allKinds()).WithObjects(c.there...).Build()
			reader := interceptor.NewClient(there, interceptor.Funcs{
				Get: func(ctx context.Context, w client.WithWatch, key client.ObjectKey, o client.Object,
					options ...client.GetOption) error {
					if c.down == "CustomResourceDefinition" {
						return down
					}
					return w.Get(ctx, key, o, options...)
				},
				List: func(ctx context.Context, w client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
					if c.down == "WebhookConfigurationList" {
						return down
					}
					return w.List(ctx, list, options...)
				},
			})
			err := Check(t.Context(), reader, c.nodes)
			if len(c.want) == 0 && err != nil {
				t.Errorf("%s: got %v", c.reason, err)
			}
			for _, want := range c.want {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("%s: got %v, want %q", c.reason, err, want)
				}
			}
		})
	}
}
