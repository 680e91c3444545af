package integration

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

func requestIn(namespace, name string) reconcile.Request {
	return reconcile.Request{NamespacedName: types.NamespacedName{Namespace: namespace, Name: name}}
}

// TestOthersDontWait holds that a namespace whose TrainJobs wait for the API server has few workers, so that those of
// others are reconciled meanwhile, and that it has all again when that is over.
func TestOthersDontWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const all = 4
		w := newWorkers(clock.RealClock{}, all)
		hangs := true
		reconciles := w.bounded(func(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
			if request.Namespace == "bad" && hangs {
				<-ctx.Done()
				return reconcile.Result{}, ctx.Err()
			}
			return reconcile.Result{}, nil
		})
		var first sync.WaitGroup
		for i := range all {
			first.Go(func() {
				if _, err := reconciles(t.Context(), requestIn("bad", fmt.Sprint(i))); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("it has a deadline: got %v", err)
				}
			})
		}
		first.Wait()
		var second sync.WaitGroup
		second.Go(func() { _, _ = reconciles(t.Context(), requestIn("bad", "0")) })
		synctest.Wait()
		if result, err := reconciles(t.Context(), requestIn("bad", "1")); err != nil || result.RequeueAfter != slowRetry {
			t.Errorf("it has one worker from then on: got %v, %v", result, err)
		}
		if result, err := reconciles(t.Context(), requestIn("good", "1")); err != nil || result.RequeueAfter != 0 {
			t.Errorf("others have theirs: got %v, %v", result, err)
		}
		second.Wait()
		hangs = false
		time.Sleep(slowFor + time.Second)
		for i := range all {
			if result, err := reconciles(t.Context(), requestIn("bad", fmt.Sprint(i))); err != nil || result.RequeueAfter != 0 {
				t.Errorf("it is over: got %v, %v", result, err)
			}
		}
		if len(w.since)+len(w.running)+len(w.slow) != 0 {
			t.Errorf("nothing is kept: got %v, %v, %v", w.since, w.running, w.slow)
		}
	})
}

// TestStuckWorkers holds that the liveness probe fails when no worker is left, and not before.
func TestStuckWorkers(t *testing.T) {
	clk := clocktesting.NewFakeClock(time.Now())
	w := newWorkers(clk, 2)
	w.begin(requestIn("a", "1"))
	clk.Step(time.Hour)
	if err := w.check(nil); err != nil {
		t.Errorf("another works: got %v", err)
	}
	w.begin(requestIn("b", "1"))
	if err := w.check(nil); err != nil {
		t.Errorf("it has just begun: got %v", err)
	}
	clk.Step(reconcileTime + stuckAfter + time.Second)
	if err := w.check(nil); err == nil {
		t.Error("none works")
	}
	w.end(requestIn("b", "1"), false)
	if err := w.check(nil); err != nil {
		t.Errorf("one works again: got %v", err)
	}
}

// TestPanicIsLate holds that a reconcile that panics leaves no worker taken.
func TestPanicIsLate(t *testing.T) {
	w := newWorkers(clock.RealClock{}, 1)
	func() {
		defer func() { _ = recover() }()
		_, _ = w.bounded(func(context.Context, reconcile.Request) (reconcile.Result, error) { panic("!") })(
			t.Context(), requestIn("a", "1"))
	}()
	if len(w.since)+len(w.running) != 0 {
		t.Errorf("got %v, %v", w.since, w.running)
	}
}
