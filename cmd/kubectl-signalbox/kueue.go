package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueueconfig "sigs.k8s.io/kueue/apis/config/v1beta2"

	"github.com/signalbox-dev/signalbox/cmd/kubectl-signalbox/simulate"
	"github.com/signalbox-dev/signalbox/integration/installed"
)

// defaultKueueNamespace is where Kueue is installed by its charts and manifests.
const defaultKueueNamespace = "kueue-system"

// errConfig is for a configuration of Kueue that is invalid, errNoConfig for one that isn't where it is looked for.
var (
	errConfig   = errors.New("Kueue's configuration is invalid")
	errNoConfig = errors.New("Kueue's configuration isn't found")
)

// kueueConfig returns Kueue's configuration; nil if it may not be read, which means Kueue's defaults.
func (s *session) kueueConfig(ctx context.Context) (*kueueconfig.Configuration, error) {
	var cm corev1.ConfigMap
	key := client.ObjectKey{Namespace: s.kueueNamespace, Name: "kueue-manager-config"}
	switch err := s.client.Get(ctx, key, &cm); {
	case apierrors.IsForbidden(err):
		s.lacks("get configmap " + key.String())
		return nil, nil
	case apierrors.IsNotFound(err):
		return nil, fmt.Errorf("%w: there is no ConfigMap %s", errNoConfig, key)
	case err != nil:
		return nil, fmt.Errorf("reading Kueue's configuration: %w", err)
	}
	config, err := installed.KueueConfiguration(cm.Data["controller_manager_config.yaml"])
	if err != nil {
		return nil, fmt.Errorf("%w: ConfigMap %s: %w", errConfig, key, err)
	}
	return config, nil
}

// useGates makes simulations run with the feature gates of the cluster's Kueue: those on its command line, or else
// those of its configuration, which may be nil. What can't be read or isn't known has Kueue's default. They are read
// once.
func (s *session) useGates(ctx context.Context, config *kueueconfig.Configuration) error {
	if s.gated {
		return nil
	}
	gates, err := installed.GateArguments(ctx, s.client, s.kueueNamespace)
	if err != nil {
		return err
	}
	s.gated = true
	if len(gates) == 0 && config != nil {
		gates = config.FeatureGates
	}
	unknown, err := simulate.UseGates(installed.ExpandGates(gates, installed.Newest().Kueue))
	if err != nil {
		fmt.Fprintf(s.streams.ErrOut, "Some of Kueue's feature gates are ignored: %v\n", err)
	}
	if len(unknown) > 0 {
		fmt.Fprintf(s.streams.ErrOut, "Feature gates that the simulation doesn't know are ignored: %s\n",
			strings.Join(unknown, ", "))
	}
	return nil
}
