package main

import (
	"context"
	"fmt"

	trainerconfig "github.com/kubeflow/trainer/v2/pkg/apis/config/v1alpha1"
	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	webhookadmission "sigs.k8s.io/controller-runtime/pkg/webhook/admission"
	"sigs.k8s.io/kueue/pkg/features"
	kueuemetrics "sigs.k8s.io/kueue/pkg/metrics"

	"github.com/signalbox-dev/signalbox/admission/avoid"
	configapi "github.com/signalbox-dev/signalbox/api/config/v1alpha1"
	"github.com/signalbox-dev/signalbox/integration"
	"github.com/signalbox-dev/signalbox/integration/cleanup"
	"github.com/signalbox-dev/signalbox/overrides"
	"github.com/signalbox-dev/signalbox/review"
	"github.com/signalbox-dev/signalbox/store"
	"github.com/signalbox-dev/signalbox/store/ledger"
	"github.com/signalbox-dev/signalbox/trainer"
	"github.com/signalbox-dev/signalbox/trainer/gang"
	"github.com/signalbox-dev/signalbox/trainer/nodes"
	"github.com/signalbox-dev/signalbox/trainer/trial"
	"github.com/signalbox-dev/signalbox/trainer/webhook"
)

// assembly is the manager with what its parts share.
type assembly struct {
	mgr      ctrl.Manager
	clients  kubernetes.Interface
	config   *configapi.Configuration
	store    *store.Store
	recorder events.EventRecorder
	gangs    *gang.Gangs
	limits   overrides.Limits
	// identities are the users that write as the integration, the manager's own first.
	identities []string
}

// newAssembly returns an assembly of which no part runs yet. self is the user that the manager writes as.
func newAssembly(
	ctx context.Context, mgr ctrl.Manager, clients kubernetes.Interface, config *configapi.Configuration, self string,
) *assembly {
	recorder := newRecorder(ctx, mgr, clients)
	kept := store.New(mgr.GetClient(), mgr.GetAPIReader(), clock.RealClock{}, *config.Trainer.Enabled)
	kept.Pods.MaxGraceSeconds = config.Limits.TerminationGracePeriodSeconds
	kept.Ledger = ledger.New(mgr.GetClient(), config.Usage, clock.RealClock{})
	a := &assembly{
		mgr: mgr, clients: clients, config: config, recorder: recorder,
		store:      kept,
		limits:     limitsOf(config),
		identities: append([]string{self}, config.Kueue.Identities...),
	}
	a.gangs = a.newGangs(ctx)
	return a
}

// newRecorder returns the recorder of events. It writes them with core/v1: the API server lets events.k8s.io/v1 set no
// firstTimestamp, which `kubectl describe` and the Kubeflow SDK (get_job_events) show and sort by.
func newRecorder(ctx context.Context, mgr ctrl.Manager, clients kubernetes.Interface) events.EventRecorder {
	broadcaster := record.NewBroadcaster(record.WithContext(ctx))
	broadcaster.StartRecordingToSink(&corev1client.EventSinkImpl{Interface: clients.CoreV1().Events("")})
	context.AfterFunc(ctx, broadcaster.Shutdown)
	return record.NewEventRecorderAdapter(
		broadcaster.NewRecorder(mgr.GetScheme(), corev1.EventSource{Component: "signalbox"}),
	)
}

// add adds all parts to the manager.
func (a *assembly) add(ctx context.Context, found found) error {
	var placement trial.Trainer = trial.Installed{Unsupported: gang.Unsupported}
	var next integration.Next
	if *a.config.Trainer.Enabled {
		bundled, startable, err := a.addTrainer(ctx)
		if err != nil {
			return err
		}
		next, placement = bundled, startable
	} else if err := a.mgr.Add(always{func(ctx context.Context) error {
		return followTrainer(ctx, a.mgr.GetCache(), found.dialect)
	}}); err != nil {
		return err
	}
	if a.store.Ledger != nil {
		if err := a.mgr.Add(a.store.Ledger); err != nil {
			return err
		}
	}
	limits := a.limits
	limits.ReplicatedJobs = found.releases.MaxPodSets
	patience := integration.PatienceOf(a.config)
	patience.Grow.Room = &room{cached: a.mgr.GetClient(), live: a.mgr.GetAPIReader(),
		resources: a.config.Kueue.Resources, clock: clock.RealClock{}, within: askTime}
	reconciler, err := integration.NewReconciler(integration.Config{
		Client: a.mgr.GetClient(), Reader: a.mgr.GetAPIReader(), Store: a.store, Recorder: a.recorder,
		Kueue: &a.config.Kueue, Limits: limits, Patience: patience,
		Trainer: found.dialect, Clock: clock.RealClock{},
		Placement: trial.New(a.mgr.GetClient(), a.mgr.GetAPIReader(), clock.RealClock{}, placement),
	})
	if err != nil {
		return fmt.Errorf("configuration: %w", err)
	}
	if err := reconciler.SetupWithManager(ctx, a.mgr, a.config.Concurrency, next); err != nil {
		return err
	}
	if err := cleanup.New(a.mgr.GetClient(), a.recorder, clock.RealClock{}).SetupWithManager(a.mgr); err != nil {
		return err
	}
	integration.NewWebhook(reconciler, a.reader()).Register(a.mgr)
	registerKueueMetrics(metrics.Registry)
	return nil
}

// registerKueueMetrics registers what jobframework measures. Kueue's scheduler, which simulations run, and its caches
// write other metrics of the library: of Workloads that are admitted in a simulation only.
func registerKueueMetrics(registry prometheus.Registerer) {
	registry.MustRegister(kueuemetrics.QueuedUntilReadyWaitTime, kueuemetrics.AdmittedUntilReadyWaitTime)
	if features.Enabled(features.MetricForWorkloadCreationLatency) {
		registry.MustRegister(kueuemetrics.WorkloadCreationLatency)
	}
}

// addTrainer adds the bundled Trainer. It returns what is run for each TrainJob after the integration, and what knows
// whether a TrainJob can start.
func (a *assembly) addTrainer(ctx context.Context) (*trainer.Reconciler, *trainer.Startable, error) {
	plugins, err := a.pluginClient()
	if err != nil {
		return nil, nil, err
	}
	settings, err := a.addProgress(plugins)
	if err != nil {
		return nil, nil, err
	}
	builder, err := trainer.NewBuilder(ctx, plugins, settings)
	if err != nil {
		return nil, nil, err
	}
	reconciler := trainer.NewReconciler(trainer.Config{
		Client: a.mgr.GetClient(), Reader: a.mgr.GetAPIReader(), Store: a.store, Builder: builder, Gangs: a.gangs,
		Recorder: a.recorder, Clock: clock.RealClock{}, Limits: a.limits, Reports: a.config.Trainer.Progress.Enabled,
		Avoid: avoid.PolicyOf(a.config.Nodes),
	})
	startable := &trainer.Startable{
		Client: a.mgr.GetClient(), Reader: a.mgr.GetAPIReader(), Builder: builder, Gangs: a.gangs,
	}
	hooks := &webhook.Webhook{
		Client: a.mgr.GetClient(), Live: a.mgr.GetAPIReader(), Builder: builder,
		Reader: a.reader(), Clock: clock.RealClock{}, Limits: a.limits, Reports: a.config.Trainer.Progress.Enabled,
		Grows: a.config.Grow.Enabled,
	}
	if a.config.Nodes.AvoidFor.Duration > 0 {
		if err := a.mgr.Add(nodes.New(a.mgr.GetClient(), a.recorder, clock.RealClock{}, a.config.Nodes)); err != nil {
			return nil, nil, err
		}
	}
	return reconciler, startable, hooks.Register(a.mgr)
}

// reader returns what the webhooks read requests with.
func (a *assembly) reader() review.Reader {
	return review.Reader{
		Decoder: webhookadmission.NewDecoder(a.mgr.GetScheme()), Trusted: a.identities,
		Limits: review.LimitsFor(a.config.Limits.SpecBytes, a.config.Limits.Elements),
	}
}

// pluginClient returns the client of Trainer's plugins, without a cache: they read a Secret or a pod group now and
// then, and caching all of the cluster's would cost more. Trainer's code takes its own types.
func (a *assembly) pluginClient() (client.WithWatch, error) {
	scheme, err := newScheme(trainerapi.AddToScheme)
	if err != nil {
		return nil, err
	}
	return client.NewWithWatch(a.mgr.GetConfig(), client.Options{
		HTTPClient: a.mgr.GetHTTPClient(), Scheme: scheme, Mapper: a.mgr.GetRESTMapper(),
	})
}

// addProgress adds the server to which training processes report, if it is enabled, and returns Trainer's own
// configuration.
func (a *assembly) addProgress(plugins client.Client) (*trainerconfig.Configuration, error) {
	progress := a.config.Trainer.Progress
	settings := &trainerconfig.Configuration{
		CertManagement: &trainerconfig.CertManagement{
			WebhookServiceName: progress.Service, WebhookSecretName: progress.Secret,
		},
		StatusServer: &trainerconfig.StatusServer{Port: &progress.Port},
	}
	if !progress.Enabled {
		return settings, nil
	}
	if err := trainer.EnableProgress(settings); err != nil {
		return nil, err
	}
	server := trainer.Progress{Config: settings, CertDir: a.config.Webhook.CertDir, Await: awaitCertificates,
		Clock: clock.RealClock{}}
	return settings, server.AddTo(a.mgr, plugins, a.clients)
}

// newGangs returns what puts pods into groups. Its cache is created once the API server serves them.
func (a *assembly) newGangs(ctx context.Context) *gang.Gangs {
	setting := a.config.Trainer.GangScheduling
	newCache := func() (cache.Cache, error) {
		return cache.New(a.mgr.GetConfig(), cache.Options{
			HTTPClient: a.mgr.GetHTTPClient(), Scheme: a.mgr.GetScheme(), Mapper: a.mgr.GetRESTMapper(),
			DefaultLabelSelector: gang.Selector(), DefaultTransform: cache.TransformStripManagedFields(),
		})
	}
	return gang.NewGangs(ctx, gang.Config{
		Client: a.mgr.GetClient(), Reader: a.mgr.GetAPIReader(), JobsOf: a.store.Pods.JobsOf,
		Discovery: a.clients.Discovery(), NewCache: newCache,
		Recorder: a.recorder, Clock: clock.RealClock{}, Mode: setting.Mode, Policy: setting.Policy,
	})
}

// limitsOf returns the limits of a configuration. Kubeflow Trainer builds Jobs whose terminating pods are replaced.
func limitsOf(config *configapi.Configuration) overrides.Limits {
	limits := config.Limits
	return overrides.Limits{
		Pods: limits.Pods, SpecBytes: limits.SpecBytes, Elements: limits.Elements,
		GracePeriodSeconds: limits.TerminationGracePeriodSeconds,
		HostPaths:          limits.HostPaths, NoSecrets: !limits.Secrets, PodsReplaced: !*config.Trainer.Enabled,
	}
}
