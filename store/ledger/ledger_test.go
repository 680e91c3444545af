package ledger

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/signalbox-dev/signalbox/admission/usage"
	configapi "github.com/signalbox-dev/signalbox/api/config/v1alpha1"
	usageapi "github.com/signalbox-dev/signalbox/api/usage/v1alpha1"
)

var noon = time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)

// runOf is a run of one GPU that was idle for so many seconds.
func runOf(key string, seconds int) *usage.Run {
	until := noon.Add(time.Duration(seconds) * time.Second)
	r := &usage.Run{Namespace: "team", Queue: "queue", ClusterQueue: "cq", Key: key, From: noon, Until: until,
		Amounts: []usage.Amount{{Flavor: "a100", Resource: "nvidia.com/gpu", Quantity: resource.MustParse("1")}}}
	r.Running, r.Saved, r.Ended = until, until, until
	r.Team, r.User = "vision", "ann"
	return r
}

// faults has requests fail: verb is "get", "create" or "update".
type faults struct {
	mu    sync.Mutex
	fail  func(verb string) error
	lose  func(verb string) error // the response, after it is carried out
	wrote int
}

func (f *faults) before(verb string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fail != nil {
		return f.fail(verb)
	}
	return nil
}

func (f *faults) after(verb string, err error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err == nil && verb != "get" {
		f.wrote++
	}
	if err == nil && f.lose != nil {
		return f.lose(verb)
	}
	return err
}

func newLedger(t *testing.T) (*Ledger, *faults, client.Client, *clocktesting.FakeClock) {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := usageapi.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	f := &faults{}
	inner := fake.NewClientBuilder().WithScheme(scheme).Build()
	c := interceptor.NewClient(inner, interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, l client.ObjectList, o ...client.ListOption) error {
			if _, whole := l.(*usageapi.QuotaUsageList); whole {
				t.Error("each record may have a megabyte: only their names are to be listed")
			}
			return c.List(ctx, l, o...)
		},
		Get: func(ctx context.Context, c client.WithWatch, k client.ObjectKey, o client.Object, _ ...client.GetOption) error {
			if err := f.before("get"); err != nil {
				return err
			}
			return c.Get(ctx, k, o)
		},
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, _ ...client.CreateOption) error {
			if err := f.before("create"); err != nil {
				return err
			}
			return f.after("create", c.Create(ctx, o))
		},
		Update: func(ctx context.Context, c client.WithWatch, o client.Object, _ ...client.UpdateOption) error {
			if err := f.before("update"); err != nil {
				return err
			}
			return f.after("update", c.Update(ctx, o))
		},
	})
	clk := clocktesting.NewFakeClock(noon.Add(time.Hour))
	config := configapi.Usage{Enabled: true, Retention: metav1.Duration{Duration: 90 * 24 * time.Hour}}
	return New(c, config, clk), f, inner, clk
}

func none() sets.Set[string] { return sets.New[string]() }

// idle returns how many runs and idle seconds a queue's record of the day has.
func idle(t *testing.T, c client.Client) (runs, seconds int64) {
	t.Helper()
	var list usageapi.QuotaUsageList
	if err := c.List(t.Context(), &list); err != nil {
		t.Fatal(err)
	}
	for _, record := range list.Items {
		runs += record.Runs
		for _, row := range record.Rows {
			seconds += row.Idle / 1000
		}
	}
	return runs, seconds
}

// TestAdd holds that a run is recorded once, however often it is added, and whatever the API server answers meanwhile.
func TestAdd(t *testing.T) {
	broken := errors.New("no connection")
	conflict := apierrors.NewConflict(schema.GroupResource{Resource: "quotausages"}, "queue", broken)
	once := func(verb string, err error) func(string) error {
		done := false
		return func(v string) error {
			if v != verb || done {
				return nil
			}
			done = true
			return err
		}
	}
	for name, c := range map[string]struct {
		fault  func(*faults)
		failed bool // the first attempt
	}{
		"nothing fails":         {func(*faults) {}, false},
		"a read fails":          {func(f *faults) { f.fail = once("get", broken) }, true},
		"a creation fails":      {func(f *faults) { f.fail = once("create", broken) }, true},
		"a creation conflicts":  {func(f *faults) { f.fail = once("create", conflict) }, false},
		"its response is lost":  {func(f *faults) { f.lose = once("create", broken) }, true},
		"an update fails":       {func(f *faults) { f.fail = once("update", broken) }, false},
		"an update conflicts":   {func(f *faults) { f.fail = once("update", conflict) }, false},
		"an update without end": {func(f *faults) { f.lose = once("update", broken) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			l, f, inner, _ := newLedger(t)
			before := testutil.ToFloat64(resourceSeconds.WithLabelValues("cq", "a100", "nvidia.com/gpu", "idle"))
			c.fault(f)
			if err := l.Add(t.Context(), runOf("a", 10), none); (err != nil) != c.failed {
				t.Fatalf("got %v", err)
			}
			for i, r := range []*usage.Run{runOf("a", 10), runOf("a", 10), runOf("a", 12), runOf("b", 3)} {
				for attempt := 0; l.Add(t.Context(), r, none) != nil; attempt++ {
					if attempt > 2 {
						t.Fatalf("run %d is never added", i)
					}
				}
			}
			if runs, seconds := idle(t, inner); runs != 2 || seconds != 15 {
				t.Errorf("got %d runs of %d s, want two of 12 s and 3 s", runs, seconds)
			}
			after := testutil.ToFloat64(resourceSeconds.WithLabelValues("cq", "a100", "nvidia.com/gpu", "idle"))
			if after-before > 15 {
				t.Errorf("the counter has counted %v s", after-before)
			}
		})
	}
}

// TestAddAtOnce holds that many runs that end at once are written together, by one process and by two.
func TestAddAtOnce(t *testing.T) {
	l, f, inner, _ := newLedger(t)
	other := New(l.client, configapi.Usage{Enabled: true, Retention: metav1.Duration{Duration: l.keep}}, l.clock)
	var adding sync.WaitGroup
	for i := range 100 {
		to := l
		if i%10 == 0 {
			to = other // a manager that doesn't know yet that it has lost its lead
		}
		adding.Go(func() {
			for to.Add(t.Context(), runOf(fmt.Sprint(i), 2), none) != nil {
				continue
			}
		})
	}
	adding.Wait()
	if runs, seconds := idle(t, inner); runs != 100 || seconds != 200 {
		t.Errorf("got %d runs of %d s", runs, seconds)
	}
	if f.wrote > 100 {
		t.Errorf("%d writes", f.wrote)
	}
}

// TestDays holds that each day has what was held on it, and that a run counts on its first.
func TestDays(t *testing.T) {
	l, _, inner, clk := newLedger(t)
	clk.SetTime(noon.Add(100 * time.Hour))
	r := runOf("a", 36*3600)
	if err := l.Add(t.Context(), r, none); err != nil {
		t.Fatal(err)
	}
	for day, want := range map[string]struct{ runs, seconds int64 }{
		"2026-11-28": {1, 12 * 3600}, "2026-11-29": {0, 24 * 3600},
	} {
		var record usageapi.QuotaUsage
		if err := inner.Get(t.Context(), client.ObjectKey{Namespace: "team", Name: "queue-" + day}, &record); err != nil {
			t.Fatal(err)
		}
		if record.Runs != want.runs || record.Rows[0].Idle != want.seconds*1000 || record.Queue != "queue" ||
			record.Day != day || record.Rows[0].Team != "vision" || record.Rows[0].User != "ann" {
			t.Errorf("%s: got %+v", day, record)
		}
	}
	l.keep = 24 * time.Hour
	if err := l.Prune(t.Context()); err != nil {
		t.Fatal(err)
	}
	if runs, _ := idle(t, inner); runs != 0 {
		t.Error("an old record is deleted")
	}
	if err := l.Add(t.Context(), runOf("b", 36*3600), none); err != nil {
		t.Fatal(err)
	}
	if runs, seconds := idle(t, inner); runs != 0 || seconds != 0 {
		t.Error("what would be deleted at once isn't written")
	}
}

// TestOwes holds that quota doesn't wait for a record for longer than a minute, nor in a namespace that is deleted, and
// that what was released before is recorded later.
func TestOwes(t *testing.T) {
	l, f, inner, clk := newLedger(t)
	f.fail = func(string) error { return errors.New("no connection") }
	before := testutil.ToFloat64(unrecorded)
	for _, c := range []struct {
		step time.Duration
		want bool
	}{{0, true}, {30 * time.Second, true}, {29 * time.Second, true}, {2 * time.Second, false}, {time.Second, false},
		{time.Hour, true}} {
		clk.Step(c.step)
		if err := l.Add(t.Context(), runOf("a", 1), none); (err != nil) != c.want {
			t.Errorf("after %v: got %v", c.step, err)
		}
	}
	terminating := apierrors.NewForbidden(schema.GroupResource{}, "queue", errors.New("being terminated"))
	terminating.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: corev1.NamespaceTerminatingCause}}
	f.fail = func(verb string) error {
		if verb == "create" {
			return terminating
		}
		return nil
	}
	if err := l.Add(t.Context(), runOf("a", 1), none); err != nil {
		t.Errorf("the namespace goes: got %v", err)
	}
	if got := testutil.ToFloat64(unrecorded) - before; got != 1 {
		t.Errorf("%v are unrecorded, want 1", got)
	}
	terminating = apierrors.NewNotFound(schema.GroupResource{Resource: "namespaces"}, "team")
	if err := l.Add(t.Context(), runOf("a", 1), none); err != nil {
		t.Errorf("the namespace is gone: got %v", err)
	}
	f.fail = func(string) error { return errors.New("no connection") }
	if err := l.Settle(t.Context()); err == nil || len(l.owed) != 1 {
		t.Errorf("it is owed: got %v, %d", err, len(l.owed))
	}
	f.fail = nil
	if err := errors.Join(l.Settle(t.Context()), l.Add(t.Context(), runOf("a", 1), none)); err != nil {
		t.Error(err)
	}
	if runs, seconds := idle(t, inner); runs != 1 || seconds != 1 || len(l.owed) > 0 {
		t.Errorf("it is recorded once: got %d runs of %d s", runs, seconds)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	f.fail = func(string) error { return ctx.Err() }
	clk.Step(2 * patience)
	if err := errors.Join(l.Add(ctx, runOf("c", 1), none), l.Add(ctx, runOf("c", 1), none)); err == nil {
		t.Error("a reconcile that is over gives nothing up")
	}
}
