package v1alpha1

import (
	"errors"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// Default returns the configuration of a file that sets no field.
func Default() *Configuration {
	return &Configuration{
		Health:           Endpoint{BindAddress: ":8081"},
		Metrics:          Metrics{BindAddress: ":8080", Secure: true},
		Webhook:          Webhook{Port: 9443, CertDir: "/tmp/k8s-webhook-server/serving-certs"},
		LeaderElection:   LeaderElection{Enabled: new(true)},
		ClientConnection: ClientConnection{QPS: 300, Burst: 500},
		Concurrency:      16,
		Limits: Limits{
			Pods: 5000, SpecBytes: 256 << 10, Elements: 1000, TerminationGracePeriodSeconds: 3600, Secrets: true,
			PodsWithin: metav1.Duration{Duration: 5 * time.Minute},
		},
		Nodes: Nodes{AtMost: 8, FailedWithin: metav1.Duration{Duration: time.Minute}, Namespaces: 2},
		Grow:  Grow{Every: metav1.Duration{Duration: 30 * time.Minute}},
		Trainer: Trainer{
			Enabled: new(true), Progress: Progress{Port: 10443, Service: "signalbox-webhook", Secret: "signalbox-webhook-cert"},
			GangScheduling: GangScheduling{Mode: api.GangOff, Policy: api.GangPolicyGang},
		},
		Usage: Usage{Retention: metav1.Duration{Duration: 90 * 24 * time.Hour}},
		Kueue: Kueue{
			ConfigMap: NamespacedName{Namespace: "kueue-system", Name: "kueue-manager-config"},
			ManagedJobsNamespaceSelector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{
				Key: "kubernetes.io/metadata.name", Operator: metav1.LabelSelectorOpNotIn,
				Values: []string{"kube-system", "kueue-system"},
			}}},
			OwnerKinds:      []string{"AppWrapper.v1beta2.workload.codeflare.dev"},
			OwnerIdentities: []string{"system:serviceaccount:appwrapper-system:appwrapper-controller-manager"},
			Identities:      []string{"system:serviceaccount:kueue-system:kueue-controller-manager"},
		},
	}
}

// Parse returns the configuration of a file with this content; fields that it doesn't set have their defaults. An
// unknown field and an invalid value are errors that name the field.
func Parse(content []byte) (*Configuration, error) {
	var given struct {
		metav1.TypeMeta `json:",inline"`
		Kueue           map[string]any `json:"kueue"`
	}
	if err := yaml.Unmarshal(content, &given); err != nil {
		return nil, err
	}
	if given.APIVersion != APIVersion || given.Kind != Kind {
		return nil, fmt.Errorf("it is apiVersion %q, kind %q; this version of Signalbox reads apiVersion %q, kind %q",
			given.APIVersion, given.Kind, APIVersion, Kind)
	}
	data, err := yaml.YAMLToJSONStrict(content)
	if err != nil {
		return nil, err
	}
	c := Default()
	if _, has := given.Kueue["managedJobsNamespaceSelector"]; has {
		c.Kueue.ManagedJobsNamespaceSelector = nil // a selector replaces the default; decoding would merge the two
	}
	strict, err := json.UnmarshalStrict(data, c)
	if err := errors.Join(append(strict, err)...); err != nil {
		return nil, err
	}
	return c, c.validate().ToAggregate()
}
