package main

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// checkWebhooks looks at the webhooks for TrainJobs, at their certificates, and at what serves them.
func checkWebhooks(ctx context.Context, s *session, r *report) error {
	var mutating admissionv1.MutatingWebhookConfigurationList
	var validating admissionv1.ValidatingWebhookConfigurationList
	read, err := s.list(ctx, &mutating, "mutatingwebhookconfigurations.admissionregistration.k8s.io")
	if err != nil || !read {
		return err
	}
	read, err = s.list(ctx, &validating, "validatingwebhookconfigurations.admissionregistration.k8s.io")
	if err != nil || !read {
		return err
	}
	hooks, kubeflow := hooksOf(mutating.Items, validating.Items)
	ours, bundled := 0, false
	for _, name := range slices.Sorted(maps.Keys(hooks)) {
		if !strings.HasSuffix(name, ".signalbox.dev") {
			continue
		}
		ours++
		bundled = bundled || strings.Contains(name, "trainingruntime")
		s.checkWebhook(ctx, "webhook "+name, hooks[name], r)
	}
	if ours == 0 {
		r.add(bad, "webhooks", "there is no webhook of Signalbox: it isn't installed, or its configuration was deleted",
			"helm upgrade --install signalbox …")
	}
	if bundled && kubeflow != "" {
		r.add(bad, "webhooks", "the bundled Trainer and Kubeflow Trainer ("+kubeflow+") are both installed, and fight over "+
			"every JobSet", "helm upgrade signalbox … --set trainer.enabled=false")
	}
	return nil
}

// hooksOf returns the webhooks of all configurations by name, and the configuration of Kubeflow Trainer; "" for none.
func hooksOf(
	mutating []admissionv1.MutatingWebhookConfiguration, validating []admissionv1.ValidatingWebhookConfiguration,
) (hooks map[string]admissionv1.WebhookClientConfig, kubeflow string) {
	hooks = map[string]admissionv1.WebhookClientConfig{}
	for _, c := range mutating {
		for _, w := range c.Webhooks {
			hooks[w.Name] = w.ClientConfig
		}
	}
	for _, c := range validating {
		for _, w := range c.Webhooks {
			hooks[w.Name] = w.ClientConfig
			if strings.HasSuffix(w.Name, ".trainer.kubeflow.org") {
				kubeflow = c.Name
			}
		}
	}
	return hooks, kubeflow
}

// soon is how long before its end a certificate is worth a word. cert-controller renews 90 days before it.
const soon = 7 * 24 * time.Hour

func (s *session) checkWebhook(ctx context.Context, about string, c admissionv1.WebhookClientConfig, r *report) {
	restart := "kubectl rollout restart deployment signalbox"
	if c.Service != nil {
		restart += " -n " + c.Service.Namespace
	}
	if ends, err := certificateEnd(c.CABundle); err != nil {
		r.add(bad, about, err.Error()+": the API server can't call it, so that TrainJobs can't be changed", restart)
	} else if time.Until(ends) < soon {
		r.add(bad, about, "its CA ends at "+ends.Format(time.RFC3339), restart)
	}
	if c.Service == nil {
		return
	}
	var slicesOf discoveryv1.EndpointSliceList
	read, err := s.list(ctx, &slicesOf, "endpointslices in namespace "+c.Service.Namespace,
		client.InNamespace(c.Service.Namespace), client.MatchingLabels{discoveryv1.LabelServiceName: c.Service.Name})
	if err != nil || !read {
		return
	}
	for _, slice := range slicesOf.Items {
		for _, endpoint := range slice.Endpoints {
			if ptr.Deref(endpoint.Conditions.Ready, true) {
				return
			}
		}
	}
	r.add(bad, about, fmt.Sprintf("service %s/%s has no ready endpoint", c.Service.Namespace, c.Service.Name),
		fmt.Sprintf("kubectl -n %s get pods", c.Service.Namespace))
}

// certificateEnd returns when the last certificate of a bundle ends.
func certificateEnd(bundle []byte) (time.Time, error) {
	var last time.Time
	for block, rest := pem.Decode(bundle); block != nil; block, rest = pem.Decode(rest) {
		certificate, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return last, fmt.Errorf("its caBundle is invalid: %w", err)
		}
		if certificate.NotAfter.After(last) {
			last = certificate.NotAfter
		}
	}
	if last.IsZero() {
		return last, fmt.Errorf("its caBundle has no certificate")
	}
	return last, nil
}
