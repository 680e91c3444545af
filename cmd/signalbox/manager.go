package main

import (
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	"github.com/signalbox-dev/signalbox/admission/avoid"
	configapi "github.com/signalbox-dev/signalbox/api/config/v1alpha1"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/integration"
	"github.com/signalbox-dev/signalbox/integration/installed"
	"github.com/signalbox-dev/signalbox/store"
	"github.com/signalbox-dev/signalbox/store/foreign"
	"github.com/signalbox-dev/signalbox/trainer/gang"
	"github.com/signalbox-dev/signalbox/trainer/nodes"
)

const leaderElectionID = "signalbox.signalbox.dev"

func newManager(restConfig *rest.Config, config *configapi.Configuration) (ctrl.Manager, error) {
	scheme, err := newScheme(api.AddToScheme)
	if err != nil {
		return nil, err
	}
	cached, err := cacheOptions(avoid.PolicyOf(config.Nodes))
	if err != nil {
		return nil, err
	}
	webhooks := newWebhookServer(&config.Webhook)
	restConfig = rest.CopyConfig(restConfig)
	others := foreign.New(config.Kueue.OwnerKinds...)
	restConfig.Wrap(others.Wrap)
	mgr, err := ctrl.NewManager(restConfig, ctrl.Options{
		Scheme: scheme,
		// Both are served below, with bounds.
		Metrics:                metricsserver.Options{BindAddress: "0"},
		HealthProbeBindAddress: "0",
		PprofBindAddress:       config.Pprof.BindAddress,
		WebhookServer:          webhooks,
		Client: client.Options{
			Cache: &client.CacheOptions{DisableFor: integration.Uncached(&config.Kueue)},
		},
		LeaderElection:                *config.LeaderElection.Enabled,
		LeaderElectionID:              leaderElectionID,
		LeaderElectionNamespace:       config.LeaderElection.Namespace,
		LeaderElectionReleaseOnCancel: true,
		NewCache:                      others.NewCache,
		Cache:                         cached,
	})
	if err != nil {
		return nil, err
	}
	if err := rotateCertificates(mgr, &config.Webhook); err != nil {
		return nil, err
	}
	if err := serveMetrics(mgr, config.Metrics); err != nil {
		return nil, err
	}
	probed, err := newProbed(mgr, config.Health.BindAddress)
	if err != nil {
		return nil, err
	}
	if err := probed.AddHealthzCheck("ping", healthz.Ping); err != nil {
		return nil, err
	}
	return probed, probed.AddReadyzCheck("webhook", webhooks.StartedChecker())
}

// cacheOptions returns what the manager's cache keeps of each kind.
func cacheOptions(avoided avoid.Policy) (cache.Options, error) {
	ofJobSets, err := labels.Parse(jobset.JobSetNameKey)
	return cache.Options{
		// A read of a kind that isn't watched would begin a watch, and wait for it: forever, where the API server
		// doesn't let it. Whatever a request or an owner reference may name is read from the API server instead.
		ReaderFailOnMissingInformer: true,
		DefaultTransform:            cache.TransformStripManagedFields(),
		ByObject: map[client.Object]cache.ByObject{
			&corev1.Pod{}:                 {Label: ofJobSets, Transform: cachedPods(avoided)},
			&corev1.Node{}:                {Transform: nodes.Retain},
			&api.TrainJob{}:               {Transform: withoutManifests},
			&api.TrainingRuntime{}:        {Transform: withoutManifests},
			&api.ClusterTrainingRuntime{}: {Transform: withoutManifests},
			&apiextensionsv1.CustomResourceDefinition{}: {
				Field: fields.OneTermEqualSelector("metadata.name", installed.TrainJobCRD),
			},
		},
	}, err
}

// withoutManifests drops from what users apply what is cached for nothing: who owns which field, and kubectl's copy of
// the manifest. Nothing here sends a whole TrainJob or runtime, so that nothing is lost.
func withoutManifests(object any) (any, error) {
	if m, err := apimeta.Accessor(object); err == nil { // else it is the mark of a deletion that was missed
		m.SetManagedFields(nil)
		delete(m.GetAnnotations(), corev1.LastAppliedConfigAnnotation)
	}
	return object, nil
}

// cachedPods returns of a pod only what shows whether it has ended, what it shows of its node if nodes are avoided, and
// where it is in a group, how that is placed.
func cachedPods(avoided avoid.Policy) toolscache.TransformFunc {
	return func(object any) (any, error) {
		pod, ok := object.(*corev1.Pod)
		if !ok {
			return object, nil
		}
		kept := store.RetainPod(pod)
		avoided.Mark(kept, pod)
		if pod.Spec.SchedulingGroup != nil {
			gang.Retain(kept, pod)
		}
		return kept, nil
	}
}
