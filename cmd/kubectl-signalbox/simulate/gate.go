package simulate

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/go-logr/logr"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	qcache "sigs.k8s.io/kueue/pkg/cache/queue"
)

// gate lets Kueue's scheduler go through one cycle at a time. The scheduler has no method for that: it loops, and waits
// inside queues.Heads (Kueue v0.19.2, pkg/cache/queue/manager.go) until a ClusterQueue that is active has a Workload.
// The gate says that none is active while it is closed. Heads logs how many Workloads each of its passes has found,
// while it holds the queues' lock; the gate listens to that.
type gate struct {
	active func(kueue.ClusterQueueReference) bool

	mu    sync.Mutex
	open  bool
	found bool      // the pass that was let through has found Workloads
	done  chan bool // gets found when the cycle has ended; nil if nobody waits
}

// passed is what Heads logs after each pass, with the number of Workloads as "count".
const passed = "Obtained ClusterQueue heads"

// patience is how long a cycle may take. Cycles take milliseconds; a Kueue that logs something else takes forever.
const patience = time.Minute

var errNoCycle = errors.New("Kueue's scheduler has not gone through a cycle within a minute")

// ClusterQueueActive implements the StatusChecker of Kueue's queues.
func (g *gate) ClusterQueueActive(name kueue.ClusterQueueReference) bool {
	g.mu.Lock()
	open := g.open
	g.mu.Unlock()
	return open && g.active(name)
}

// cycle lets the scheduler go through one cycle, and reports whether there was a Workload to decide on.
func (g *gate) cycle(ctx context.Context, queues *qcache.Manager) (found bool, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, errNoCycle)
	defer cancel()
	done := make(chan bool, 1)
	g.mu.Lock()
	g.open, g.found, g.done = true, false, done
	g.mu.Unlock()
	queues.GetClusterQueueNames() // it takes the lock that Heads holds until it waits
	queues.Broadcast()
	select {
	case found = <-done:
		return found, nil
	case <-ctx.Done():
		return false, context.Cause(ctx)
	}
}

func (g *gate) pass(found bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.done == nil:
	case g.open && found:
		g.open, g.found = false, true // the next pass is at the end of the cycle
	case g.open || g.found:
		g.done <- g.found
		g.open, g.done = false, nil
	}
}

// ear is a log that nobody but the gate reads.
type ear struct{ *gate }

func (ear) Init(logr.RuntimeInfo)            {}
func (ear) Enabled(int) bool                 { return true }
func (e ear) WithName(string) logr.LogSink   { return e }
func (e ear) WithValues(...any) logr.LogSink { return e }
func (ear) Error(error, string, ...any)      {}

// Info implements logr.LogSink.
func (e ear) Info(_ int, message string, pairs ...any) {
	if message != passed {
		return
	}
	for i := 0; i+1 < len(pairs); i += 2 {
		if n, is := pairs[i+1].(int); is && pairs[i] == "count" {
			e.pass(n > 0)
		}
	}
}
