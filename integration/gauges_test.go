package integration

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/signalbox-dev/signalbox/admission"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// gauges returns what a collector counts, by label value; an error is under "error".
func gauges(t *testing.T, c prometheus.Collector) map[string]float64 {
	t.Helper()
	out, descriptions := make(chan prometheus.Metric, 100), make(chan *prometheus.Desc, 10)
	c.Describe(descriptions)
	close(descriptions)
	described := sets.New[*prometheus.Desc]()
	for d := range descriptions {
		described.Insert(d)
	}
	c.Collect(out)
	close(out)
	counted := map[string]float64{}
	for m := range out {
		if !described.Has(m.Desc()) {
			t.Errorf("it doesn't describe %s", m.Desc())
		}
		var data dto.Metric
		if err := m.Write(&data); err != nil {
			counted["error"]++
			continue
		}
		name := ""
		for _, label := range data.Label {
			name = label.GetValue()
		}
		counted[name] = data.GetGauge().GetValue()
	}
	return counted
}

// Each TrainJob is counted once, in its present state, until it is gone.
func TestStates(t *testing.T) {
	waits, again, ended := trainJobIn("a", "1"), trainJobIn("a", "2"), trainJobIn("a", "2", endedJob)
	waiting, complete := api.StateOf(&waits.Status.TrainJobStatus), api.StateOf(&ended.Status.TrainJobStatus)
	if waiting == complete {
		t.Fatalf("both are %s", waiting)
	}
	for _, step := range []struct {
		what            string
		cached          []client.Object
		waiting, others float64
	}{
		{"two are submitted", []client.Object{waits, again}, 2, 0},
		{"one ends", []client.Object{waits, ended}, 1, 1},
		{"the other is deleted", []client.Object{ended}, 0, 1},
		{"both are gone", nil, 0, 0},
	} {
		cached := cluster(t, "", step.cached...)
		got, reasons := gauges(t, countedJobs{cached, api.States}), gauges(t, countedJobs{cached, nil})
		if got[string(waiting)] != step.waiting || got[string(complete)] != step.others ||
			len(got) != len(reasons)+len(api.States) {
			t.Errorf("%s: got %v, want %v and %v", step.what, got, step.waiting, step.others)
		}
	}
}

func TestPodsOverdue(t *testing.T) {
	pod := func(name string, end time.Duration, phase corev1.PodPhase) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, Finalizers: []string{"example.com/a"}}}
		if end != 0 {
			p.DeletionTimestamp = ptr.To(ago(end))
		}
		p.Status.Phase, p.Spec.NodeName = phase, "node"
		return p
	}
	clk := clocktesting.NewFakeClock(now)
	got := gauges(t, overduePods{cluster(t, "", pod("late", time.Minute, corev1.PodRunning),
		pod("in time", 29*time.Second, corev1.PodRunning), pod("ended", time.Minute, corev1.PodFailed),
		pod("runs", 0, corev1.PodRunning)), clk})
	if got[""] != 1 || len(got) != 1 {
		t.Errorf("only one runs 30 seconds after its grace period: got %v", got)
	}
	if got := gauges(t, overduePods{cluster(t, "Pod"), clk}); got["error"] != 1 {
		t.Errorf("they can't be listed: got %v", got)
	}
}

func TestJobsBlocked(t *testing.T) {
	blocked := func(status metav1.ConditionStatus, reason string) func(*api.TrainJob) {
		return func(job *api.TrainJob) {
			job.Status.Conditions = []metav1.Condition{{Type: api.ConditionBlocked, Status: status, Reason: reason}}
		}
	}
	got := gauges(t, countedJobs{client: cluster(t, "", trainJobIn("a", "1"),
		trainJobIn("a", "2", blocked(metav1.ConditionTrue, ReasonStopRejected)),
		trainJobIn("b", "1", blocked(metav1.ConditionTrue, ReasonStopRejected)),
		trainJobIn("b", "2", blocked(metav1.ConditionTrue, admission.ReasonNoPods)),
		trainJobIn("b", "3", blocked(metav1.ConditionFalse, admission.ReasonNoPods)))})
	want := map[string]float64{
		ReasonStopRejected: 2, admission.ReasonNoPods: 1, ReasonStartRejected: 0, ReasonLastRunKept: 0, ReasonWorkloadKept: 0,
	}
	if !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if got := gauges(t, countedJobs{client: cluster(t, "TrainJob")}); got["error"] != 1 {
		t.Errorf("they can't be listed: got %v", got)
	}
}

// adder is a manager that keeps what is added.
type adder struct {
	ctrl.Manager
	added manager.Runnable
}

func (a *adder) Add(r manager.Runnable) error {
	a.added = r
	return nil
}

func TestCollect(t *testing.T) {
	mgr, collector := &adder{}, prometheus.NewGauge(prometheus.GaugeOpts{Name: "signalbox_test_collect"})
	if err := collect(mgr, collector); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	served := func() bool {
		families, err := metrics.Registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			if f.GetName() == "signalbox_test_collect" {
				return true
			}
		}
		return false
	}
	go func() { ended <- mgr.added.Start(ctx) }()
	await(t, served)
	if err := mgr.added.Start(ctx); err == nil {
		t.Error("it is served once")
	}
	cancel()
	if err := <-ended; err != nil || served() {
		t.Errorf("it is served while this process leads: got %v", err)
	}
}

// await waits until something holds.
func await(t *testing.T, holds func() bool) {
	t.Helper()
	err := wait.PollUntilContextTimeout(t.Context(), time.Millisecond, time.Minute, true,
		func(context.Context) (bool, error) { return holds(), nil })
	if err != nil {
		t.Fatal(err)
	}
}

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
