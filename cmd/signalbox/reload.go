package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	configapi "github.com/signalbox-dev/signalbox/api/config/v1alpha1"
	"github.com/signalbox-dev/signalbox/integration"
)

// reloadInterval is how often the configuration file is read. A mounted ConfigMap changes by a symbolic link's, which
// watches of files miss.
const reloadInterval = 5 * time.Second

var configValid = prometheus.NewGauge(prometheus.GaugeOpts{
	Name: "signalbox_config_valid",
	Help: "1 where the configuration file is what the manager runs with, 0 where it was changed to what can't be; the " +
		"log says why.",
})

var buildInfo = prometheus.NewGaugeVec(prometheus.GaugeOpts{
	Name: "signalbox_build_info",
	Help: "Always 1; version and commit of the manager.",
}, []string{"version", "commit"})

func init() { metrics.Registry.MustRegister(configValid, buildInfo) }

// errChanged is why a manager ends whose configuration is another now.
var errChanged = errors.New("the configuration has changed")

// awaitChange returns errChanged when the configuration file has changed to another that is valid and fits the cluster,
// which check tells, and nil when ctx ends. Of what can't be it says so, and the manager runs on with what it has.
func awaitChange(
	ctx context.Context, path string, running []byte, every time.Duration,
	check func(context.Context, *configapi.Configuration) error,
) error {
	log := ctrl.LoggerFrom(ctx).WithName("configuration")
	tick := time.NewTicker(every)
	defer tick.Stop()
	logged := ""
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		content, err := os.ReadFile(path)
		if err == nil && bytes.Equal(content, running) {
			configValid.Set(1)
			logged = ""
			continue
		}
		var config *configapi.Configuration
		if err == nil {
			config, err = parse(path, content)
		}
		if err == nil {
			err = check(ctx, config)
		}
		if err == nil {
			return errChanged
		}
		configValid.Set(0)
		if err.Error() != logged && ctx.Err() == nil {
			log.Error(err, "The configuration was changed to what can't be; running on with the one of before")
			logged = err.Error()
		}
	}
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
		err = integration.CheckConfiguration(&config.Kueue)
	}
	if err != nil {
		return nil, fmt.Errorf("configuration %s: %w", path, err)
	}
	return config, nil
}

// restart runs the program anew in this process.
func restart() error {
	program, err := os.Executable()
	if err != nil {
		return fmt.Errorf("starting anew: %w", err)
	}
	return fmt.Errorf("starting anew: %w", syscall.Exec(program, os.Args, os.Environ()))
}
