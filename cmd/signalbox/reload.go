package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/util/wait"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	configapi "github.com/signalbox-dev/signalbox/api/config/v1alpha1"
	"github.com/signalbox-dev/signalbox/integration/installed"
	"github.com/signalbox-dev/signalbox/overrides/dialect"
)

// reloadInterval is how often the configuration file is read. A mounted ConfigMap changes by a symbolic link's, which
// watches of files miss.
const reloadInterval = 5 * time.Second

var configValid = prometheus.NewGauge(prometheus.GaugeOpts{
	Name: "signalbox_config_valid",
	Help: "1 if the manager runs with the present configuration file, 0 if the file was changed and is invalid. The log " +
		"has the reason.",
})

var kueueConfigValid = prometheus.NewGauge(prometheus.GaugeOpts{
	Name: "signalbox_kueue_config_valid",
	Help: "1 if the manager runs with Kueue's present configuration, 0 if it can't read that or if that conflicts with " +
		"the manager's own. The log has the reason.",
})

var releaseInfo = prometheus.NewGaugeVec(prometheus.GaugeOpts{
	Name: "signalbox_release_info",
	Help: "Always 1. release: the release of a component of the cluster; of Kueue and JobSet, as far as their CRDs " +
		"show it. supported: whether this version of Signalbox supports it.",
}, []string{"component", "release", "supported"})

var buildInfo = prometheus.NewGaugeVec(prometheus.GaugeOpts{
	Name: "signalbox_build_info",
	Help: "Always 1. The version and the commit of the manager.",
}, []string{"version", "commit"})

func init() { metrics.Registry.MustRegister(configValid, kueueConfigValid, releaseInfo, buildInfo) }

// report sets the metric of the cluster's releases, and logs those that this version doesn't support.
func report(ctx context.Context, releases installed.Releases) {
	releaseInfo.Reset()
	for _, c := range releases.Components() {
		releaseInfo.WithLabelValues(c.Name, c.Release, strconv.FormatBool(c.Supported())).Set(1)
	}
	if unsupported := releases.Unsupported(); len(unsupported) > 0 {
		ctrl.LoggerFrom(ctx).Info("The cluster has later releases than this version of Signalbox supports; upgrade Signalbox",
			"unsupported", unsupported)
	}
}

// errChanged is why a manager ends whose configuration is another now.
var errChanged = errors.New("the configuration has changed")

// follow calls look every so often, and returns errChanged when that has found a change, and nil when ctx ends. Of what
// can't be followed it says so, and the manager runs on with what it has; valid is 0 for so long.
func follow(
	ctx context.Context, every time.Duration, valid prometheus.Gauge, problem string,
	look func() (changed bool, err error),
) error {
	log := ctrl.LoggerFrom(ctx).WithName("configuration")
	logged := ""
	err := wait.PollUntilContextCancel(ctx, every, false, func(ctx context.Context) (bool, error) {
		changed, err := look()
		if err == nil {
			valid.Set(1)
			logged = ""
			return changed, nil
		}
		valid.Set(0)
		if err.Error() != logged && ctx.Err() == nil {
			log.Error(err, problem)
			logged = err.Error()
		}
		return false, nil
	})
	if err != nil {
		return nil // ctx has ended
	}
	return errChanged
}

// awaitChange returns errChanged when the configuration file has changed to another that is valid and fits the cluster,
// which check tells, and nil when ctx ends.
func awaitChange(
	ctx context.Context, path string, running []byte, every time.Duration,
	check func(context.Context, *configapi.Configuration) error,
) error {
	const problem = "The configuration is invalid; the previous one stays in use"
	return follow(ctx, every, configValid, problem, func() (bool, error) {
		content, err := os.ReadFile(path)
		if err != nil || bytes.Equal(content, running) {
			return false, err
		}
		config, err := parse(path, content)
		if err != nil {
			return false, err
		}
		return true, check(ctx, config)
	})
}

// followInterval is how often Kueue's configuration is read.
const followInterval = time.Minute

// always is what runs on each replica: those that don't lead serve webhooks, and may lead later.
type always struct{ manager.RunnableFunc }

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (always) NeedLeaderElection() bool { return false }

// followKueue returns errChanged when Kueue, or a setting that was adopted from it, has changed and doesn't contradict
// the manager's own configuration, which is given.
func followKueue(
	ctx context.Context, cluster *connection, given *configapi.Configuration, running found, every time.Duration,
) error {
	const problem = "Kueue's configuration can't be used; the previous one stays in use"
	reported := running.releases
	return follow(ctx, every, kueueConfigValid, problem, func() (bool, error) {
		now, err := findKueue(ctx, cluster, given, reported)
		if err != nil {
			return false, err
		}
		if now.releases != reported {
			report(ctx, now.releases)
			reported = now.releases
		}
		return now.differs(running), nil
	})
}

// followTrainer returns errChanged when the TrainJobs' CRD is that of another Trainer.
func followTrainer(ctx context.Context, informers cache.Informers, running *dialect.Dialect) error {
	if other, err := installed.AwaitOther(ctx, informers, running); err != nil || !other {
		return err
	}
	return errChanged
}

// load reads a configuration file and checks it. It returns its content too.
func load(path string) (*configapi.Configuration, []byte, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, nil, fmt.Errorf("reading the configuration: %w", err)
	}
	config, err := parse(path, content)
	return config, content, err
}

func parse(path string, content []byte) (*configapi.Configuration, error) {
	config, err := configapi.Parse(content)
	if err == nil {
		err = installed.CheckGates(&config.Kueue)
	}
	if err != nil {
		return nil, fmt.Errorf("configuration %s: %w", path, err)
	}
	return config, nil
}

// restart runs the program again in this process.
func restart() error {
	program, err := os.Executable()
	if err != nil {
		return fmt.Errorf("restarting: %w", err)
	}
	return fmt.Errorf("restarting: %w", syscall.Exec(program, os.Args, os.Environ()))
}
