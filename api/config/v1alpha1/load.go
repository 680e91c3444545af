package v1alpha1

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// Default returns the configuration of an empty file.
func Default() *Configuration {
	enabled := true
	return &Configuration{
		Health:           Endpoint{BindAddress: ":8081"},
		Metrics:          Metrics{BindAddress: ":8080"},
		Webhook:          Webhook{Port: 9443, CertDir: "/tmp/k8s-webhook-server/serving-certs"},
		LeaderElection:   LeaderElection{Enabled: &enabled},
		ClientConnection: ClientConnection{QPS: 300, Burst: 500},
		Concurrency:      16,
		Limits:           Limits{Pods: 5000, SpecBytes: 256 << 10, Elements: 1000, TerminationGracePeriodSeconds: 3600, PodsWithin: metav1.Duration{Duration: 5 * time.Minute}},
		Trainer: Trainer{
			Enabled: new(true), Progress: Progress{Port: 10443, Service: "signalbox-webhook", Secret: "signalbox-webhook-cert"},
			GangScheduling: GangScheduling{Mode: api.GangOff, Policy: api.GangPolicyGang},
		},
		Kueue: Kueue{
			ConfigMap: NamespacedName{Namespace: "kueue-system", Name: "kueue-manager-config"},
			ManagedJobsNamespaceSelector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{
				Key: "kubernetes.io/metadata.name", Operator: metav1.LabelSelectorOpNotIn, Values: []string{"kube-system", "kueue-system"},
			}}},
			OwnerKinds:      []string{"AppWrapper.v1beta2.workload.codeflare.dev"},
			OwnerIdentities: []string{"system:serviceaccount:appwrapper-system:appwrapper-controller-manager"},
			Identities:      []string{"system:serviceaccount:kueue-system:kueue-controller-manager"},
		},
	}
}

// Parse reads the content of a configuration file over the defaults. A field that doesn't exist and a value that can't be
// are errors that name the field.
func Parse(content []byte) (*Configuration, error) {
	var head metav1.TypeMeta
	if err := yaml.Unmarshal(content, &head); err != nil {
		return nil, err
	}
	if head.APIVersion != APIVersion || head.Kind != Kind {
		return nil, fmt.Errorf("it is apiVersion %q, kind %q; this version of Signalbox reads apiVersion %q, kind %q", head.APIVersion, head.Kind, APIVersion, Kind)
	}
	data, err := yaml.YAMLToJSONStrict(content)
	if err != nil {
		return nil, err
	}
	c := Default()
	var given struct {
		Kueue map[string]any `json:"kueue"`
	}
	if err := yaml.Unmarshal(content, &given); err != nil {
		return nil, err
	}
	if _, has := given.Kueue["managedJobsNamespaceSelector"]; has {
		c.Kueue.ManagedJobsNamespaceSelector = nil // a selector takes the default's place; it isn't merged into it
	}
	strict, err := json.UnmarshalStrict(data, c)
	if err := errors.Join(append(strict, err)...); err != nil {
		return nil, err
	}
	return c, c.validate().ToAggregate()
}

func (c *Configuration) validate() field.ErrorList {
	var errs field.ErrorList
	for _, a := range []struct{ name, address string }{{"health", c.Health.BindAddress}, {"metrics", c.Metrics.BindAddress}} {
		if a.name == "metrics" && a.address == "0" {
			continue
		}
		if _, _, err := net.SplitHostPort(a.address); err != nil {
			errs = append(errs, field.Invalid(field.NewPath(a.name, "bindAddress"), a.address, "must be HOST:PORT or :PORT"))
		}
	}
	if c.Webhook.Port < 1 || c.Webhook.Port > 65535 {
		errs = append(errs, field.Invalid(field.NewPath("webhook", "port"), c.Webhook.Port, "must be 1 to 65535"))
	}
	if s := c.Webhook.Certificates; s.Secret != (NamespacedName{}) {
		path := field.NewPath("webhook", "certificates")
		if s.Secret.Namespace == "" || s.Secret.Name == "" {
			errs = append(errs, field.Invalid(path.Child("secret"), s.Secret.Namespace+"/"+s.Secret.Name, "needs both namespace and name"))
		}
		if len(s.DNSNames) == 0 {
			errs = append(errs, field.Required(path.Child("dnsNames"), "name the Service of the webhooks, such as signalbox-webhook.signalbox-system.svc"))
		}
	}
	if c.Concurrency < 1 {
		errs = append(errs, field.Invalid(field.NewPath("concurrency"), c.Concurrency, "must be 1 or more"))
	}
	if c.ClientConnection.QPS <= 0 {
		errs = append(errs, field.Invalid(field.NewPath("clientConnection", "qps"), c.ClientConnection.QPS, "must be more than 0"))
	}
	if c.ClientConnection.Burst < 1 {
		errs = append(errs, field.Invalid(field.NewPath("clientConnection", "burst"), c.ClientConnection.Burst, "must be 1 or more"))
	}
	for _, e := range []struct {
		path  *field.Path
		value *bool
	}{{field.NewPath("leaderElection", "enabled"), c.LeaderElection.Enabled}, {field.NewPath("trainer", "enabled"), c.Trainer.Enabled}} {
		if e.value == nil {
			errs = append(errs, field.Required(e.path, "leave the line out for the default, true, or write true or false"))
		}
	}
	if p := c.Trainer.Progress.Port; p < 1 || p > 65535 {
		errs = append(errs, field.Invalid(field.NewPath("trainer", "progress", "port"), p, "must be 1 to 65535"))
	}
	limits := field.NewPath("limits")
	for _, l := range []struct {
		name  string
		value int64
	}{{"pods", int64(c.Limits.Pods)}, {"specBytes", int64(c.Limits.SpecBytes)}, {"elements", int64(c.Limits.Elements)}, {"terminationGracePeriodSeconds", c.Limits.TerminationGracePeriodSeconds}} {
		if l.value < 1 {
			errs = append(errs, field.Invalid(limits.Child(l.name), l.value, "must be 1 or more"))
		}
	}
	if d := c.Limits.PodsWithin.Duration; d < time.Second {
		errs = append(errs, field.Invalid(limits.Child("podsWithin"), d.String(), "must be 1s or more"))
	}
	errs = append(errs, c.Trainer.validateGangScheduling(field.NewPath("trainer", "gangScheduling"))...)
	return append(errs, c.Kueue.validate(field.NewPath("kueue"))...)
}

func (t *Trainer) validateGangScheduling(path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if g := t.GangScheduling; !slices.Contains(api.GangModes, g.Mode) {
		errs = append(errs, field.NotSupported(path.Child("mode"), g.Mode, api.GangModes))
	} else if g.Mode != api.GangOff && t.Enabled != nil && !*t.Enabled {
		errs = append(errs, field.Invalid(path.Child("mode"), g.Mode, "the JobSets of an installed Kubeflow Trainer are not Signalbox's to build, so that their pods can't be put into groups; "+
			"set it to off, or use the bundled Trainer (trainer.enabled)"))
	}
	if p := t.GangScheduling.Policy; !slices.Contains(api.GangPolicies, p) {
		errs = append(errs, field.NotSupported(path.Child("policy"), p, api.GangPolicies))
	}
	return errs
}

func (k *Kueue) validate(path *field.Path) field.ErrorList {
	var errs field.ErrorList
	selector := path.Child("managedJobsNamespaceSelector")
	if k.ManagedJobsNamespaceSelector == nil {
		errs = append(errs, field.Required(selector, "leave the line out for the default, or write {} for all namespaces"))
	} else {
		errs = append(errs, validation.ValidateLabelSelector(k.ManagedJobsNamespaceSelector, validation.LabelSelectorValidationOptions{}, selector)...)
	}
	for i, kind := range k.OwnerKinds {
		if gvk, _ := schema.ParseKindArg(kind); gvk == nil {
			errs = append(errs, field.Invalid(path.Child("ownerKinds").Index(i), kind, "must be Kind.version.group, such as AppWrapper.v1beta2.workload.codeflare.dev"))
		}
	}
	if d := k.AfterDeactivated; d != nil && d.Duration < 0 {
		errs = append(errs, field.Invalid(path.Child("afterDeactivated"), d.Duration.String(), "must not be negative"))
	}
	return errs
}
