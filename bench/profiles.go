package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"
)

// profiled are the components that serve profiles (net/http/pprof).
var profiled = []string{"signalbox", "kueue", "kube-apiserver"}

// profiler takes profiles, which go to files named MOMENT-COMPONENT.KIND.pprof for `go tool pprof`. Without a folder it
// takes none.
type profiler struct {
	cluster, dir string
	running      errgroup.Group
}

// cpu begins a profile of each component's CPU time; end waits for it.
func (p *profiler) cpu(ctx context.Context, moment string, over time.Duration, components ...string) {
	if p.dir == "" {
		return
	}
	for _, component := range components {
		p.running.Go(func() error {
			return p.take(ctx, moment, component, "cpu", fmt.Sprintf("profile?seconds=%.0f", over.Seconds()))
		})
	}
}

// heap takes a profile of what was live of each component's memory when it last collected garbage. That it be collected
// now isn't asked for, because that would spare what is measured next a collection.
func (p *profiler) heap(ctx context.Context, moment string, components ...string) error {
	if p.dir == "" {
		return nil
	}
	for _, component := range components {
		if err := p.take(ctx, moment, component, "heap", "heap"); err != nil {
			return err
		}
	}
	return nil
}

// end waits for the profiles that were begun.
func (p *profiler) end() error { return p.running.Wait() }

func (p *profiler) take(ctx context.Context, moment, component, kind, query string) (err error) {
	server, via, err := p.server(component)
	if err != nil {
		return fmt.Errorf("profile of %s: %w", component, err)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, server+"/debug/pprof/"+query, nil)
	if err != nil {
		return err
	}
	response, err := via.Do(request)
	if err != nil {
		return fmt.Errorf("profile of %s: %w", component, err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("profile of %s: %s", component, response.Status)
	}
	if err := os.MkdirAll(p.dir, 0o755); err != nil {
		return err
	}
	file, err := os.Create(filepath.Join(p.dir, fmt.Sprintf("%s-%s.%s.pprof", moment, component, kind)))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	_, err = io.Copy(file, response.Body)
	return err
}

// server returns where a component serves profiles, and the client for it.
func (p *profiler) server(component string) (string, *http.Client, error) {
	if component == "kube-apiserver" {
		config, err := clientcmd.BuildConfigFromFlags("", filepath.Join(p.cluster, "kubeconfig"))
		if err != nil {
			return "", nil, err
		}
		via, err := rest.HTTPClientFor(config)
		return config.Host, via, err
	}
	path := filepath.Join(p.cluster, "config", component+".yaml")
	content, err := os.ReadFile(path)
	if err != nil {
		return "", nil, err
	}
	var config struct {
		PprofBindAddress string                       // Kueue's
		Pprof            struct{ BindAddress string } // Signalbox's
	}
	if err := yaml.Unmarshal(content, &config); err != nil {
		return "", nil, fmt.Errorf("%s: %w", path, err)
	}
	address := config.PprofBindAddress + config.Pprof.BindAddress // each has its own field only
	if address == "" {
		return "", nil, fmt.Errorf("%s has no address for profiles; use make bench WHAT=profile", path)
	}
	return "http://" + address, http.DefaultClient, nil
}
