package integration

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// Nobody waits for what others ask for. A reconcile that takes long, maybe because the API server doesn't answer
// for a kind, leaves its worker to others, and has a deadline; its namespace has few of them.
const (
	// reconcileTime is how long a reconcile may take. A JobSet's creation calls webhooks of JobSet and Kueue, for up to
	// ten seconds each.
	reconcileTime = 45 * time.Second
	// workerTime is for how long one may keep its worker, and others of its namespace may begin as if it were none.
	workerTime = 3 * time.Second
	// lateReconciles is how many reconciles at a time a namespace has, for lateFor, after one has reached its deadline.
	lateReconciles = 1
	lateFor        = 2 * time.Minute
	// againAfter is when a TrainJob is looked at again that has found no worker, or has left its own.
	againAfter = 5 * time.Second
	// stuckAfter is for how long a reconcile must have run on after its deadline to count as stuck.
	stuckAfter = time.Minute
)

// workers are the controller's, and what they reconcile.
type workers struct {
	clock clock.PassiveClock
	all   int

	mu   sync.Mutex
	runs map[reconcile.Request]run
	late map[string]time.Time // until when a namespace has few
}

// run is a reconcile that has not ended.
type run struct {
	since time.Time
	alone bool // it has left its worker
}

func newWorkers(clk clock.PassiveClock, all int) *workers {
	return &workers{clock: clk, all: all, runs: map[reconcile.Request]run{}, late: map[string]time.Time{}}
}

// begin reports whether a TrainJob may be reconciled now. end has to follow then.
func (w *workers) begin(request reconcile.Request) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	now, namespace := w.clock.Now(), request.Namespace
	running, alone := 0, 0 // of the namespace
	for other, r := range w.runs {
		if other.Namespace == namespace {
			running++
		}
		if other.Namespace == namespace && r.alone {
			alone++
		}
	}
	if _, runs := w.runs[request]; runs || alone >= w.all {
		return false
	}
	if until, late := w.late[namespace]; late && now.After(until) {
		delete(w.late, namespace)
	} else if late && running >= lateReconciles {
		return false
	}
	w.runs[request] = run{since: now}
	return true
}

func (w *workers) leave(request reconcile.Request) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.runs[request] = run{w.runs[request].since, true}
}

// end records the end of a reconcile; late is set if it has reached its deadline.
func (w *workers) end(request reconcile.Request, late bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.runs, request)
	if late {
		w.late[request.Namespace] = w.clock.Now().Add(lateFor)
	}
}

// check is a healthz.Checker: it fails if every worker is stuck.
func (w *workers) check(*http.Request) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	stuck, now := 0, w.clock.Now()
	for _, r := range w.runs {
		if now.Sub(r.since) > reconcileTime+stuckAfter {
			stuck++
		}
	}
	if stuck < w.all {
		return nil
	}
	return fmt.Errorf("%d reconciles are stuck: they run on %s after their deadline", stuck, stuckAfter)
}

// outcome is what a reconcile returns, or panics with.
type outcome struct {
	result   reconcile.Result
	err      error
	panicked any
}

// bounded reconciles with the workers' bounds. What a reconcile returns that has left its worker is only logged: the
// TrainJob is looked at again.
func (w *workers) bounded(next reconcile.Func) reconcile.Func {
	return func(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
		if !w.begin(request) {
			return reconcile.Result{RequeueAfter: againAfter}, nil
		}
		ctx, cancel := context.WithTimeout(ctx, reconcileTime)
		done := make(chan outcome, 1)
		go func() {
			o := outcome{}
			defer func() {
				o.panicked = recover()
				done <- o
			}()
			o.result, o.err = next(ctx, request)
		}()
		end := func(o outcome) {
			w.end(request, ctx.Err() != nil || errors.Is(o.err, context.DeadlineExceeded))
			cancel()
		}
		select {
		case o := <-done:
			end(o)
			if o.panicked != nil {
				panic(o.panicked) // the controller recovers it, and logs it
			}
			return o.result, o.err
		case <-time.After(workerTime):
		}
		w.leave(request)
		go func() {
			o := <-done
			end(o)
			if o.panicked != nil {
				o.err = fmt.Errorf("panic: %v", o.panicked)
			}
			if o.err != nil {
				log.FromContext(ctx).Error(o.err, "A reconcile that took long has failed")
			}
		}()
		return reconcile.Result{RequeueAfter: againAfter}, nil
	}
}
