package main

import (
	"context"
	"errors"
	"fmt"
	"reflect"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/signalbox-dev/signalbox/admission/avoid"
	configapi "github.com/signalbox-dev/signalbox/api/config/v1alpha1"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/integration/installed"
	"github.com/signalbox-dev/signalbox/overrides/dialect"
	"github.com/signalbox-dev/signalbox/store/ledger"
	"github.com/signalbox-dev/signalbox/trainer"
)

// connection is how the manager reaches the cluster.
type connection struct {
	config  *rest.Config
	clients kubernetes.Interface
	reader  client.Client // without a cache
}

// connect finds the cluster.
func connect(limits configapi.ClientConnection) (*connection, error) {
	config, err := ctrl.GetConfig()
	if err != nil {
		return nil, fmt.Errorf("finding the cluster: %w", err)
	}
	config.QPS, config.Burst = limits.QPS, limits.Burst
	clients, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	scheme, err := newScheme(api.AddToScheme)
	if err != nil {
		return nil, err
	}
	reader, err := client.New(config, client.Options{Scheme: scheme})
	return &connection{config, clients, reader}, err
}

// found is what a cluster adds to the configuration.
type found struct {
	// dialect is how the Trainer takes overrides.
	dialect *dialect.Dialect
	// kueue is the configuration's settings, with what Kueue's own says of the rest.
	kueue    *configapi.Kueue
	releases installed.Releases
}

// findKueue returns what of a cluster's Kueue a manager would run with. A component that is missing, one that is too
// old, and settings that contradict each other are errors that say what to change. assumed is for FindReleases.
func findKueue(
	ctx context.Context, cluster *connection, given *configapi.Configuration, assumed installed.Releases,
) (found, error) {
	releases, err := installed.FindReleases(ctx, cluster.reader, cluster.clients.Discovery(), assumed)
	if releases.Kueue == "" {
		return found{}, err
	}
	settings, differs := installed.Adopt(ctx, cluster.reader, &given.Kueue, releases.Kueue)
	if differs == nil {
		differs = errors.Join(installed.CheckBoosts(given.Preemption, settings),
			installed.CheckGrowth(given.Grow, settings))
	}
	return found{kueue: settings, releases: releases}, errors.Join(err, differs)
}

// checkCluster rejects a cluster on which the configuration can't work, with what to change.
func checkCluster(ctx context.Context, cluster *connection, config *configapi.Configuration) (found, error) {
	is, err := findKueue(ctx, cluster, config, installed.Newest())
	var missing error
	if *config.Trainer.Enabled {
		is.dialect, missing = dialect.Bundled, trainer.Check(ctx, cluster.reader, avoid.PolicyOf(config.Nodes))
	} else {
		is.dialect, missing = installed.FindTrainer(ctx, cluster.reader)
	}
	if err := errors.Join(err, missing, ledger.Check(ctx, cluster.reader, config.Usage)); err != nil {
		return found{}, fmt.Errorf("this cluster is not ready for Signalbox: %w", err)
	}
	return is, nil
}

// checkCandidate rejects a changed configuration that can't work on this cluster.
func checkCandidate(ctx context.Context, config *configapi.Configuration) error {
	cluster, err := connect(config.ClientConnection)
	if err != nil {
		return err
	}
	_, err = checkCluster(ctx, cluster, config)
	return err
}

// differs reports whether a manager that runs with the one Kueue would behave differently with the other. Of Kubernetes
// and JobSet it makes no difference which release they are: what depends on it is found out by their APIs all the time.
func (f found) differs(other found) bool {
	return f.releases.Kueue != other.releases.Kueue || f.releases.MaxPodSets != other.releases.MaxPodSets ||
		!reflect.DeepEqual(f.kueue, other.kueue)
}
