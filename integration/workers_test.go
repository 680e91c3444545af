package integration

import (
	"context"
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

// TestOthersDontWait holds that TrainJobs for which the API server doesn't answer take the workers of others for a
// moment only, that their namespace has few of them then, and that it has all again when that is over.
func TestOthersDontWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const all = 4
		w := newWorkers(clock.RealClock{}, all)
		hangs, began := true, map[reconcile.Request]int{}
		var mu sync.Mutex
		reconciles := w.bounded(func(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
			mu.Lock()
			began[request]++
			mu.Unlock()
			if request.Namespace == "bad" && hangs {
				<-ctx.Done()
				return reconcile.Result{}, ctx.Err()
			}
			return reconcile.Result{}, nil
		})
		expect := func(request reconcile.Request, again time.Duration, why string) {
			t.Helper()
			if result, err := reconciles(t.Context(), request); err != nil || result.RequeueAfter != again {
				t.Errorf("%s: got %v, %v", why, result, err)
			}
		}
		start := time.Now()
		var first sync.WaitGroup
		for i := range all {
			first.Go(func() { expect(requestIn("bad", fmt.Sprint(i)), againAfter, "it is looked at again") })
		}
		first.Wait()
		if took := time.Since(start); took != workerTime {
			t.Errorf("they have left their workers: after %s", took)
		}
		expect(requestIn("bad", "0"), againAfter, "it runs on, and not twice at a time")
		expect(requestIn("bad", "one more"), againAfter, "a namespace has so many that run on alone")
		expect(requestIn("good", "1"), 0, "others have theirs")
		if began[requestIn("bad", "0")] != 1 || began[requestIn("bad", "one more")] != 0 {
			t.Errorf("got %v", began)
		}
		time.Sleep(reconcileTime)
		var second sync.WaitGroup
		second.Go(func() { expect(requestIn("bad", "0"), againAfter, "it is looked at again") })
		synctest.Wait()
		expect(requestIn("bad", "1"), againAfter, "a late namespace has one")
		expect(requestIn("good", "1"), 0, "others have theirs")
		second.Wait()
		hangs = false
		time.Sleep(reconcileTime + lateFor + time.Second)
		for i := range all {
			expect(requestIn("bad", fmt.Sprint(i)), 0, "it is over")
		}
		if len(w.runs)+len(w.late) != 0 {
			t.Errorf("nothing is kept: got %v, %v", w.runs, w.late)
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

// TestPanics holds that a reconcile that panics leaves no worker taken, and that the controller learns of it.
func TestPanics(t *testing.T) {
	w := newWorkers(clock.RealClock{}, 1)
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the panic is lost")
			}
		}()
		_, _ = w.bounded(func(context.Context, reconcile.Request) (reconcile.Result, error) { panic("!") })(
			t.Context(), requestIn("a", "1"))
	}()
	synctest.Test(t, func(t *testing.T) {
		late := w.bounded(func(context.Context, reconcile.Request) (reconcile.Result, error) {
			time.Sleep(2 * workerTime)
			panic("!")
		})
		if result, err := late(t.Context(), requestIn("a", "1")); err != nil || result.RequeueAfter != againAfter {
			t.Errorf("got %v, %v", result, err)
		}
		time.Sleep(2 * workerTime)
		synctest.Wait()
	})
	if len(w.runs) != 0 {
		t.Errorf("got %v", w.runs)
	}
}
