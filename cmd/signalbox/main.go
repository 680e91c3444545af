// Command signalbox is the manager: it starts Kubeflow TrainJobs on Kueue's quota.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/go-logr/logr"
	trainerconfig "github.com/kubeflow/trainer/v2/pkg/apis/config/v1alpha1"
	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"github.com/spf13/cobra"
	"go.uber.org/zap/zapcore"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	"sigs.k8s.io/controller-runtime/pkg/metrics/filters"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/webhook"
	webhookadmission "sigs.k8s.io/controller-runtime/pkg/webhook/admission"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	kueuemetrics "sigs.k8s.io/kueue/pkg/metrics"
	coscheduling "sigs.k8s.io/scheduler-plugins/apis/scheduling/v1alpha1"
	volcano "volcano.sh/apis/pkg/apis/scheduling/v1beta1"

	"github.com/signalbox-dev/signalbox/admission"
	configapi "github.com/signalbox-dev/signalbox/api/config/v1alpha1"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/integration"
	"github.com/signalbox-dev/signalbox/overrides"
	"github.com/signalbox-dev/signalbox/trainer"
	"github.com/signalbox-dev/signalbox/trainer/gang"
)

const leaderElectionID = "signalbox.signalbox.dev"

func main() {
	if err := command().ExecuteContext(ctrl.SetupSignalHandler()); err != nil {
		fmt.Fprintln(os.Stderr, "signalbox:", err)
		os.Exit(1)
	}
}

func command() *cobra.Command {
	var path string
	var verbosity int
	var reload bool
	cmd := &cobra.Command{
		Use: "signalbox", Short: "Start Kubeflow TrainJobs on Kueue's quota, each in one write",
		Args: cobra.NoArgs, SilenceUsage: true, SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			log := zap.New(zap.Level(zapcore.Level(-verbosity)), zap.StacktraceLevel(zapcore.DPanicLevel))
			ctrl.SetLogger(log)
			ctx := logr.NewContext(cmd.Context(), log)
			configValid.Set(1) // nothing runs with another
			if path == "" {
				return run(ctx, configapi.Default())
			}
			config, content, err := load(path)
			if err != nil {
				return err
			}
			if !reload {
				return run(ctx, config)
			}
			ctx, end := context.WithCancelCause(ctx)
			go func() { end(awaitChange(ctx, path, content, lookEvery, fits)) }()
			err = run(ctx, config)
			if !errors.Is(context.Cause(ctx), errChanged) || cmd.Context().Err() != nil {
				return err // asked to end, perhaps while it was about to start anew
			}
			log.Info("The configuration has changed; starting anew", "configuration", path, "ended", err)
			return restart()
		},
	}
	cmd.Flags().StringVar(&path, "config", "", "configuration file; without it the defaults hold")
	cmd.Flags().BoolVar(&reload, "reload", false, "start anew when the configuration file has changed to another that is valid")
	cmd.Flags().IntVarP(&verbosity, "verbosity", "v", 0, "how much to log: 0 to 5")
	cmd.AddCommand(versionCommand(), configCommand(), auditCommand())
	return cmd
}

func run(ctx context.Context, config *configapi.Configuration) error {
	if err := integration.Prepare(&config.Kueue); err != nil {
		return fmt.Errorf("configuration: %w", err)
	}
	restConfig, err := ctrl.GetConfig()
	if err != nil {
		return fmt.Errorf("finding the cluster: %w", err)
	}
	restConfig.QPS, restConfig.Burst = config.ClientConnection.QPS, config.ClientConnection.Burst
	clients, err := kubernetes.NewForConfig(restConfig)
	if err != nil {
		return err
	}
	reader, err := newReader(restConfig)
	if err != nil {
		return err
	}
	bundled := *config.Trainer.Enabled
	dialect, err := checkCluster(ctx, reader, clients, config) // before the manager, which says less of a missing CRD
	if err != nil {
		return err
	}
	if err := integration.AwaitTrainJobs(ctx, clients.Discovery(), clock.RealClock{}); err != nil {
		return fmt.Errorf("this cluster is not ready for Signalbox: %w", err)
	}
	mgr, err := newManager(restConfig, config)
	if err != nil {
		return err
	}
	self, err := integration.Identity(ctx, clients)
	if err != nil {
		return err
	}
	installed := integration.NewInstalled(dialect, clock.RealClock{})
	if !bundled {
		if err := installed.Watch(ctx, mgr.GetCache()); err != nil {
			return err
		}
	}
	writer := admission.NewWriter(mgr.GetClient(), clock.RealClock{}, bundled)
	jobSets := admission.NewJobSets(mgr.GetClient(), mgr.GetAPIReader())
	pods := admission.NewPods(mgr.GetClient(), mgr.GetAPIReader())
	recorder := mgr.GetEventRecorder("signalbox")
	gangs := newGangs(ctx, mgr, config, clients, recorder)
	limits := limitsOf(config)
	identities := append([]string{self}, config.Kueue.Identities...)
	var placement integration.Placement = gang.Elsewhere{}
	var next integration.Next
	if bundled {
		if next, placement, err = bundledTrainer(ctx, mgr, config, clients, writer, jobSets, pods, gangs, recorder, limits, identities); err != nil {
			return err
		}
	}
	reconciler, err := integration.NewReconciler(mgr.GetClient(), mgr.GetAPIReader(), writer, jobSets, pods, recorder, &config.Kueue, limits, config.Limits.PodsWithin.Duration, installed, placement, clock.RealClock{})
	if err != nil {
		return fmt.Errorf("configuration: %w", err)
	}
	if err := reconciler.SetupWithManager(ctx, mgr, config.Concurrency, next); err != nil {
		return err
	}
	integration.NewWebhook(reconciler, webhookadmission.NewDecoder(mgr.GetScheme()), identities).Register(mgr)
	kueuemetrics.Register()
	commit, _ := built()
	buildInfo.WithLabelValues(version, orUnknown(commit)).Set(1)
	ctrl.LoggerFrom(ctx).Info("Starting", "as", self, "trainer", dialect.Name)
	return mgr.Start(ctx)
}

// checkCluster refuses a cluster on which the configuration can't work, with what to change. It returns how the Trainer
// takes overrides.
func checkCluster(ctx context.Context, reader client.Reader, clients kubernetes.Interface, config *configapi.Configuration) (overrides.Dialect, error) {
	err := integration.Check(ctx, reader, clients.Discovery(), &config.Kueue)
	dialect := overrides.Bundled
	if *config.Trainer.Enabled {
		err = errors.Join(err, trainer.Check(ctx, reader))
	} else {
		var missing error
		dialect, missing = integration.FindTrainer(ctx, reader)
		err = errors.Join(err, missing)
	}
	if err != nil {
		return dialect, fmt.Errorf("this cluster is not ready for Signalbox: %w", err)
	}
	return dialect, nil
}

// fits tells what of the cluster a configuration doesn't fit.
func fits(ctx context.Context, config *configapi.Configuration) error {
	restConfig, err := ctrl.GetConfig()
	if err != nil {
		return fmt.Errorf("finding the cluster: %w", err)
	}
	clients, err := kubernetes.NewForConfig(restConfig)
	if err != nil {
		return err
	}
	reader, err := newReader(restConfig)
	if err != nil {
		return err
	}
	_, err = checkCluster(ctx, reader, clients, config)
	return err
}

// newReader returns a client without a cache.
func newReader(config *rest.Config) (client.Client, error) {
	scheme, err := newScheme(api.AddToScheme)
	if err != nil {
		return nil, err
	}
	return client.New(config, client.Options{Scheme: scheme})
}

func limitsOf(config *configapi.Configuration) overrides.Limits {
	return overrides.Limits{Pods: config.Limits.Pods, SpecBytes: config.Limits.SpecBytes, Elements: config.Limits.Elements, GracePeriodSeconds: config.Limits.TerminationGracePeriodSeconds}
}

// bundledTrainer sets the Trainer role up and returns what is run for each TrainJob, and what decides whether it can start.
func bundledTrainer(ctx context.Context, mgr ctrl.Manager, config *configapi.Configuration, clients kubernetes.Interface, writer *admission.Writer, jobSets *admission.JobSets, pods *admission.Pods, gangs *gang.Gangs, recorder events.EventRecorder, limits overrides.Limits, self []string) (integration.Next, integration.Placement, error) {
	progress := config.Trainer.Progress
	theirs := &trainerconfig.Configuration{
		CertManagement: &trainerconfig.CertManagement{WebhookServiceName: progress.Service, WebhookSecretName: progress.Secret},
		StatusServer:   &trainerconfig.StatusServer{Port: &progress.Port},
	}
	if progress.Enabled {
		if err := trainer.EnableProgress(); err != nil {
			return nil, nil, err
		}
	}
	// Trainer's plugins read a Secret or a pod group now and then; to cache all of the cluster's would cost more. Its code
	// takes its own types.
	scheme, err := newScheme(trainerapi.AddToScheme)
	if err != nil {
		return nil, nil, err
	}
	live, err := client.New(mgr.GetConfig(), client.Options{HTTPClient: mgr.GetHTTPClient(), Scheme: scheme, Mapper: mgr.GetRESTMapper()})
	if err != nil {
		return nil, nil, err
	}
	if progress.Enabled {
		if err := (trainer.Progress{Config: theirs, CertDir: config.Webhook.CertDir, Await: awaitCertificates}).AddTo(mgr, live, clients); err != nil {
			return nil, nil, err
		}
	}
	builder, err := trainer.NewBuilder(ctx, live, theirs)
	if err != nil {
		return nil, nil, err
	}
	reconciler := trainer.NewReconciler(mgr.GetClient(), mgr.GetAPIReader(), builder, writer, jobSets, pods, gangs, recorder, clock.RealClock{})
	if err := reconciler.Setup(ctx, mgr.GetFieldIndexer()); err != nil {
		return nil, nil, err
	}
	startable := trainer.NewStartable(mgr.GetClient(), mgr.GetClient(), builder, gangs, clock.RealClock{})
	webhook := trainer.NewWebhook(mgr.GetClient(), mgr.GetAPIReader(), builder, webhookadmission.NewDecoder(mgr.GetScheme()), clock.RealClock{}, limits, self)
	return reconciler, startable, webhook.Register(mgr)
}

// newGangs returns what puts pods into groups. Its cache is made when the API server is found to serve them.
func newGangs(ctx context.Context, mgr ctrl.Manager, config *configapi.Configuration, clients kubernetes.Interface, recorder events.EventRecorder) *gang.Gangs {
	newCache := func() (cache.Cache, error) {
		return cache.New(mgr.GetConfig(), cache.Options{
			HTTPClient: mgr.GetHTTPClient(), Scheme: mgr.GetScheme(), Mapper: mgr.GetRESTMapper(),
			DefaultLabelSelector: gang.Selector(), DefaultTransform: cache.TransformStripManagedFields(),
		})
	}
	setting := config.Trainer.GangScheduling
	return gang.NewGangs(ctx, mgr.GetClient(), mgr.GetAPIReader(), clients.Discovery(), newCache, recorder, clock.RealClock{}, setting.Mode, setting.Policy)
}

// newScheme returns a scheme with every kind that we deal with; trainers are whose types TrainJobs and runtimes have.
func newScheme(trainers func(*runtime.Scheme) error) (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		clientgoscheme.AddToScheme, apiextensionsv1.AddToScheme, trainers, jobset.AddToScheme, kueue.AddToScheme,
		coscheduling.AddToScheme, volcano.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			return nil, err
		}
	}
	return scheme, nil
}

// metricsOptions has metrics served over HTTP to everybody, or over TLS to those whom the API server lets.
func metricsOptions(config configapi.Metrics) metricsserver.Options {
	options := metricsserver.Options{BindAddress: config.BindAddress, SecureServing: config.Secure}
	if config.Secure {
		options.FilterProvider = filters.WithAuthenticationAndAuthorization
	}
	return options
}

func newManager(restConfig *rest.Config, config *configapi.Configuration) (ctrl.Manager, error) {
	scheme, err := newScheme(api.AddToScheme)
	if err != nil {
		return nil, err
	}
	pods, err := jobSetPods()
	if err != nil {
		return nil, err
	}
	mgr, err := ctrl.NewManager(restConfig, ctrl.Options{
		Scheme:                 scheme,
		Metrics:                metricsOptions(config.Metrics),
		HealthProbeBindAddress: config.Health.BindAddress,
		WebhookServer: whenMounted{
			Server:  webhook.NewServer(webhook.Options{Host: config.Webhook.Host, Port: config.Webhook.Port, CertDir: config.Webhook.CertDir}),
			certDir: config.Webhook.CertDir,
		},
		LeaderElection:                *config.LeaderElection.Enabled,
		LeaderElectionID:              leaderElectionID,
		LeaderElectionNamespace:       config.LeaderElection.Namespace,
		LeaderElectionReleaseOnCancel: true,
		Cache: cache.Options{
			DefaultTransform: cache.TransformStripManagedFields(),
			ByObject: map[client.Object]cache.ByObject{
				&corev1.Pod{}:                               pods,
				&api.TrainJob{}:                             {Transform: withoutManifests},
				&api.TrainingRuntime{}:                      {Transform: withoutManifests},
				&api.ClusterTrainingRuntime{}:               {Transform: withoutManifests},
				&apiextensionsv1.CustomResourceDefinition{}: {Field: fields.OneTermEqualSelector("metadata.name", integration.TrainJobCRD)},
			},
		},
	})
	if err != nil {
		return nil, err
	}
	if err := rotateCertificates(mgr, &config.Webhook); err != nil {
		return nil, err
	}
	if err := mgr.AddHealthzCheck("ping", healthz.Ping); err != nil {
		return nil, err
	}
	return mgr, mgr.AddReadyzCheck("webhook", mgr.GetWebhookServer().StartedChecker())
}

// withoutManifests drops from what users apply what is cached for nothing: who owns which field, and kubectl's copy of the
// manifest. Nothing here sends a whole TrainJob or runtime, so that nothing is lost.
func withoutManifests(object any) (any, error) {
	if m, err := apimeta.Accessor(object); err == nil { // else it is the mark of a deletion that was missed
		m.SetManagedFields(nil)
		delete(m.GetAnnotations(), corev1.LastAppliedConfigAnnotation)
	}
	return object, nil
}

// jobSetPods caches of the pods only those of JobSets, and of each only what tells whether it has ended, and where it is
// in a group, how that is placed.
func jobSetPods() (cache.ByObject, error) {
	ofJobSets, err := labels.NewRequirement(jobset.JobSetNameKey, selection.Exists, nil)
	if err != nil {
		return cache.ByObject{}, err
	}
	return cache.ByObject{
		Label: labels.NewSelector().Add(*ofJobSets),
		Transform: func(object any) (any, error) {
			pod, ok := object.(*corev1.Pod)
			if !ok {
				return object, nil
			}
			kept := admission.RetainPod(pod)
			if pod.Spec.SchedulingGroup != nil {
				gang.Retain(kept, pod)
			}
			return kept, nil
		},
	}, nil
}
