package main

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"sync"
	"time"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/signalbox-dev/signalbox/cmd/signalbox/audit"
)

// auditor runs `signalbox audit --watch` during a benchmark.
type auditor struct {
	stop  context.CancelFunc
	ended sync.WaitGroup
	mu    sync.Mutex
	found map[string]int // by rule
	err   error
}

// audited is how many TrainJobs are audited in a second. The command audits once a second; where there are many, that
// uses CPU time on the machine under test.
const audited = 10000

// auditInterval is how often n TrainJobs are audited.
func auditInterval(n int) time.Duration { return time.Second * time.Duration(1+n/audited) }

// idle is for how long quota may be held for nothing, where no more TrainJobs are admitted at once than have quota
// here.
const idle = time.Minute

// runAudit starts an audit of up to n TrainJobs, whose quota may be held for nothing for so long.
func (g *ground) runAudit(
	ctx context.Context, dir string, n int, idleFor time.Duration, say func(string, ...any),
) (*auditor, error) {
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
		err := watcher.Run(ctx, auditInterval(n), &audit.Lasting{Other: 10 * time.Second, Idle: idleFor},
			func(f audit.Finding) {
				say("audit: %s", f)
				a.mu.Lock()
				defer a.mu.Unlock()
				a.found[string(f.Rule)]++
			}, nil)
		if ctx.Err() != nil {
			return // ended by end
		}
		a.mu.Lock()
		defer a.mu.Unlock()
		a.err = fmt.Errorf("the audit failed: %w", err)
	})
	return a, nil
}

// findings returns the number of findings so far, by rule.
func (a *auditor) findings() (map[string]int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return maps.Clone(a.found), a.err
}

func (a *auditor) end() {
	a.stop()
	a.ended.Wait()
}
