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
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"

	configapi "github.com/signalbox-dev/signalbox/api/config/v1alpha1"
	"github.com/signalbox-dev/signalbox/integration"
	"github.com/signalbox-dev/signalbox/integration/installed"
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
		"restart when the configuration file has changed and is valid")
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
	ctrl.LoggerFrom(ctx).Info("The configuration has changed; restarting", "configuration", path, "ended", err)
	return restart()
}

// run runs the manager until ctx ends.
func run(ctx context.Context, config *configapi.Configuration) error {
	cluster, err := connect(config.ClientConnection)
	if err != nil {
		return err
	}
	found, err := checkCluster(ctx, cluster, config) // before the manager, which says less of a missing CRD
	if err != nil {
		return err
	}
	given := *config
	report(ctx, found.releases)
	config.Kueue = *found.kueue
	if err := integration.Prepare(&config.Kueue); err != nil {
		return fmt.Errorf("configuration: %w", err)
	}
	if err := installed.AwaitTrainJobs(ctx, cluster.clients.Discovery()); err != nil {
		return fmt.Errorf("this cluster is not ready for Signalbox: %w", err)
	}
	mgr, err := newManager(cluster.config, config)
	if err != nil {
		return err
	}
	self, err := installed.Identity(ctx, cluster.clients)
	if err != nil {
		return err
	}
	if err := newAssembly(ctx, mgr, cluster.clients, config, self).add(ctx, found); err != nil {
		return err
	}
	err = mgr.Add(always{func(ctx context.Context) error {
		return followKueue(ctx, cluster, &given, found, followInterval)
	}})
	if err != nil {
		return err
	}
	commit, _ := built()
	buildInfo.WithLabelValues(version, commit).Set(1)
	ctrl.LoggerFrom(ctx).Info("Starting", "as", self, "trainer", found.dialect.Name)
	return mgr.Start(ctx)
}
