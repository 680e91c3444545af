package main

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"sync"
	"time"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/signalbox-dev/signalbox/audit"
)

// auditor runs what `signalbox audit --watch` does beside all that is measured.
type auditor struct {
	stop  context.CancelFunc
	ended sync.WaitGroup
	mu    sync.Mutex
	found map[string]int // by rule
	err   error
}

// runAudit compares what runs with what was admitted until it is ended.
func (g *ground) runAudit(ctx context.Context, dir string, say func(string, ...any)) (*auditor, error) {
	config, err := clientcmd.BuildConfigFromFlags("", filepath.Join(dir, "kubeconfig"))
	if err != nil {
		return nil, err
	}
	watcher, err := audit.NewWatcher(config, g.client.Scheme())
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	a := &auditor{stop: cancel, found: map[string]int{}}
	a.ended.Go(func() {
		// A look at ten thousand takes its time on a machine that is measured: every second, as the command does.
		err := watcher.Run(ctx, time.Second, &audit.Lasting{Other: 10 * time.Second, Idle: time.Minute}, func(f audit.Finding) {
			say("audit: %s", f)
			a.mu.Lock()
			defer a.mu.Unlock()
			a.found[string(f.Rule)]++
		}, nil)
		if ctx.Err() != nil {
			return // an end that was asked for
		}
		a.mu.Lock()
		defer a.mu.Unlock()
		a.err = fmt.Errorf("the audit has ended by itself: %w", err)
	})
	return a, nil
}

// findings returns how much was found so far, by rule.
func (a *auditor) findings() (map[string]int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return maps.Clone(a.found), a.err
}

func (a *auditor) end() {
	a.stop()
	a.ended.Wait()
}
