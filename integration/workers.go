package integration

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// Nobody waits for what somebody else asks for. A reconcile has a deadline; a namespace of which one has reached it,
// maybe because the API server doesn't answer for a kind, has few workers until that has passed.
const (
	// reconcileTime is how long a reconcile may take. A JobSet's creation calls webhooks of JobSet and Kueue, for up to
	// ten seconds each.
	reconcileTime = 45 * time.Second
	// slowWorkers is how many workers a namespace has of which a reconcile has reached its deadline, for slowFor.
	slowWorkers = 1
	slowFor     = 2 * time.Minute
	// slowRetry is when a TrainJob is looked at again that has found no worker.
	slowRetry = 5 * time.Second
	// stuckAfter is for how long a reconcile must have run on after its deadline to count as stuck.
	stuckAfter = time.Minute
)

// workers are the controller's, and what they reconcile.
type workers struct {
	clock clock.PassiveClock
	all   int

	mu      sync.Mutex
	since   map[reconcile.Request]time.Time
	running map[string]int       // by namespace
	slow    map[string]time.Time // until when a namespace is
}

func newWorkers(clk clock.PassiveClock, all int) *workers {
	return &workers{
		clock: clk, all: all, since: map[reconcile.Request]time.Time{}, running: map[string]int{},
		slow: map[string]time.Time{},
	}
}

// begin reports whether a TrainJob may be reconciled now. end has to follow then.
func (w *workers) begin(request reconcile.Request) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	now, namespace := w.clock.Now(), request.Namespace
	if until, slow := w.slow[namespace]; slow && now.After(until) {
		delete(w.slow, namespace)
	} else if slow && w.running[namespace] >= slowWorkers {
		return false
	}
	w.since[request] = now
	w.running[namespace]++
	return true
}

// end records the end of a reconcile. late is set if it has reached its deadline.
func (w *workers) end(request reconcile.Request, late bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.since, request)
	if w.running[request.Namespace]--; w.running[request.Namespace] == 0 {
		delete(w.running, request.Namespace)
	}
	if late {
		w.slow[request.Namespace] = w.clock.Now().Add(slowFor)
	}
}

// check is a healthz.Checker: it fails if every worker is stuck.
func (w *workers) check(*http.Request) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	stuck, now := 0, w.clock.Now()
	for _, since := range w.since {
		if now.Sub(since) > reconcileTime+stuckAfter {
			stuck++
		}
	}
	if stuck < w.all {
		return nil
	}
	return fmt.Errorf("all %d workers are stuck: their reconciles run on %s after their deadline", stuck, stuckAfter)
}

// bounded reconciles with the workers' bounds.
func (w *workers) bounded(next reconcile.Func) reconcile.Func {
	return func(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
		if !w.begin(request) {
			return reconcile.Result{RequeueAfter: slowRetry}, nil
		}
		ctx, cancel := context.WithTimeout(ctx, reconcileTime)
		late := true // also if it panics
		defer func() {
			w.end(request, late)
			cancel()
		}()
		result, err := next(ctx, request)
		late = errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil
		return result, err
	}
}
