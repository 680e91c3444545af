// Command signalbox is the manager: it starts Kubeflow TrainJobs on Kueue's quota.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"go.uber.org/zap/zapcore"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"

	configapi "github.com/signalbox-dev/signalbox/api/config/v1alpha1"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/integration"
	"github.com/signalbox-dev/signalbox/overrides"
	"github.com/signalbox-dev/signalbox/trainer"
)

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
			kueueConfigValid.Set(1)
			return runWith(ctx, path, reload)
		},
	}
	cmd.Flags().StringVar(&path, "config", "", "configuration file; without it the defaults hold")
	cmd.Flags().BoolVar(&reload, "reload", false,
		"start anew when the configuration file has changed to another that is valid")
	cmd.Flags().IntVarP(&verbosity, "verbosity", "v", 0, "how much to log: 0 to 5")
	cmd.AddCommand(versionCommand(), configCommand(), auditCommand())
	return cmd
}

// runWith runs the manager with a configuration file, "" for none, and restarts it when Kueue's configuration has
// changed or, if reload is set, the file.
func runWith(ctx context.Context, path string, reload bool) error {
	config, content := configapi.Default(), []byte(nil)
	if path != "" {
		var err error
		if config, content, err = load(path); err != nil {
			return err
		}
	}
	running, end := context.WithCancelCause(ctx)
	defer end(nil)
	if reload && path != "" {
		go func() { end(awaitChange(running, path, content, reloadInterval, checkCandidate)) }()
	}
	err := run(running, config)
	changed := errors.Is(context.Cause(running), errChanged) || errors.Is(err, errChanged)
	if !changed || ctx.Err() != nil {
		return err // asked to end, perhaps while it was about to restart
	}
	ctrl.LoggerFrom(ctx).Info("The configuration has changed; starting anew", "configuration", path, "ended", err)
	return restart()
}

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

// run runs the manager until ctx ends.
func run(ctx context.Context, config *configapi.Configuration) error {
	if err := integration.CheckConfiguration(&config.Kueue); err != nil {
		return fmt.Errorf("configuration: %w", err)
	}
	cluster, err := connect(config.ClientConnection)
	if err != nil {
		return err
	}
	found, err := checkCluster(ctx, cluster, config) // before the manager, which says less of a missing CRD
	if err != nil {
		return err
	}
	follow := &kueueFollower{connection: cluster, given: config.Kueue, running: found.kueue, every: followInterval}
	report(ctx, found.kueue.releases)
	config.Kueue = *found.kueue.settings
	if err := integration.Prepare(&config.Kueue); err != nil {
		return fmt.Errorf("configuration: %w", err)
	}
	if err := integration.AwaitTrainJobs(ctx, cluster.clients.Discovery(), clock.RealClock{}); err != nil {
		return fmt.Errorf("this cluster is not ready for Signalbox: %w", err)
	}
	mgr, err := newManager(cluster.config, config)
	if err != nil {
		return err
	}
	self, err := integration.Identity(ctx, cluster.clients)
	if err != nil {
		return err
	}
	if err := newAssembly(ctx, mgr, cluster.clients, config, self).add(ctx, found); err != nil {
		return err
	}
	if err := mgr.Add(follow); err != nil {
		return err
	}
	commit, _ := built()
	buildInfo.WithLabelValues(version, orUnknown(commit)).Set(1)
	ctrl.LoggerFrom(ctx).Info("Starting", "as", self, "trainer", found.dialect.Name())
	return mgr.Start(ctx)
}

// found is what a cluster adds to the configuration.
type found struct {
	// dialect is how the Trainer takes overrides.
	dialect overrides.Dialect
	kueue   kueueFound
}

// kueueFound is what of a cluster's Kueue a manager runs with.
type kueueFound struct {
	// settings are the configuration's, with what Kueue's own says of the rest.
	settings *configapi.Kueue
	releases integration.Releases
}

// findKueue returns what of a cluster's Kueue a manager would run with. A component that is missing, one that is too
// old, and settings that contradict each other are errors that say what to change. assumed is for FindReleases.
func findKueue(ctx context.Context, cluster *connection, given *configapi.Kueue, assumed integration.Releases) (
	kueueFound, error) {
	releases, err := integration.FindReleases(ctx, cluster.reader, cluster.clients.Discovery(), assumed)
	if releases.Kueue == "" {
		return kueueFound{}, err
	}
	settings, differs := integration.Adopt(ctx, cluster.reader, given, releases.Kueue)
	return kueueFound{settings, releases}, errors.Join(err, differs)
}

// checkCluster rejects a cluster on which the configuration can't work, with what to change.
func checkCluster(ctx context.Context, cluster *connection, config *configapi.Configuration) (found, error) {
	kueue, err := findKueue(ctx, cluster, &config.Kueue, integration.Newest())
	dialect := overrides.Bundled
	if *config.Trainer.Enabled {
		err = errors.Join(err, trainer.Check(ctx, cluster.reader))
	} else {
		var missing error
		dialect, missing = integration.FindTrainer(ctx, cluster.reader)
		err = errors.Join(err, missing)
	}
	if err != nil {
		return found{}, fmt.Errorf("this cluster is not ready for Signalbox: %w", err)
	}
	return found{dialect, kueue}, nil
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
