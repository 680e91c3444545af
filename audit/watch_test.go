package audit

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache/informertest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

func newScheme(t *testing.T) *runtime.Scheme {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		clientgoscheme.AddToScheme, jobset.AddToScheme, kueue.AddToScheme, api.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	return scheme
}

// fakeCache reads from a fake client.
type fakeCache struct {
	*informertest.FakeInformers
	client   client.Client
	unsynced bool
	// informerErr, listErr and startErr are returned; nil for success.
	informerErr, listErr, startErr error
}

func (f *fakeCache) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	if f.listErr != nil {
		return f.listErr
	}
	return f.client.List(ctx, list, options...)
}

func (f *fakeCache) GetInformer(context.Context, client.Object, ...cache.InformerGetOption) (cache.Informer, error) {
	return nil, f.informerErr
}

func (f *fakeCache) WaitForCacheSync(context.Context) bool { return !f.unsynced }

func (f *fakeCache) Start(ctx context.Context) error {
	if f.startErr != nil {
		return f.startErr
	}
	<-ctx.Done()
	return nil
}

// newFakeWatcher returns a Watcher of a TrainJob that runs without quota.
func newFakeWatcher(t *testing.T) (*Watcher, *fakeCache) {
	t.Helper()
	o := healthy(t)
	builder := fake.NewClientBuilder().WithScheme(newScheme(t)).
		WithObjects(&o.TrainJobs[0], &o.JobSets[0], &o.Jobs[0], &o.Pods[0])
	c := &fakeCache{client: builder.Build()}
	return &Watcher{reader: c, live: c.client, ofJobSets: labels.Everything()}, c
}

func TestNewWatcher(t *testing.T) {
	_, err := NewWatcher(&rest.Config{Host: "http://127.0.0.1:1"}, newScheme(t))
	if err == nil || !strings.Contains(err.Error(), "making the watches: ") {
		t.Errorf("an API server that doesn't answer is an error: got %v", err)
	}
}

func TestRun(t *testing.T) {
	w, _ := newFakeWatcher(t)
	var reported []Finding
	audits := 0
	err := w.Run(t.Context(), time.Millisecond, &Lasting{}, func(f Finding) { reported = append(reported, f) },
		func(n, pending int) bool {
			audits = n
			return n == 3 && pending == 0
		})
	if err != nil || audits != 3 || len(reported) != 1 || reported[0].Rule != Unquoted {
		t.Errorf("a finding is reported once: got %v after %d audits, %v", reported, audits, err)
	}
}

// TestRunConfirms holds that what only a stale watch shows is not reported.
func TestRunConfirms(t *testing.T) {
	empty := fake.NewClientBuilder().WithScheme(newScheme(t)).Build()
	down := interceptor.NewClient(empty, interceptor.Funcs{
		List: func(context.Context, client.WithWatch, client.ObjectList, ...client.ListOption) error {
			return errors.New("down")
		},
	})
	for reason, live := range map[string]client.Reader{"all of it is gone": empty, "nothing is known": down} {
		w, f := newFakeWatcher(t)
		w.live = live
		lasting := &Lasting{}
		report := func(f Finding) { t.Errorf("%s: got %v", reason, f) }
		if err := w.Run(t.Context(), time.Millisecond, lasting, report, func(n, _ int) bool { return n == 3 }); err != nil {
			t.Error(err)
		}
		reported := 0
		again := &Watcher{reader: f, live: f.client, ofJobSets: w.ofJobSets}
		err := again.Run(t.Context(), time.Millisecond, lasting, func(Finding) { reported++ },
			func(n, _ int) bool { return n == 3 })
		if err != nil || reported != 1 {
			t.Errorf("%s: it is reported once it is confirmed: got %d times, %v", reason, reported, err)
		}
	}
}

func TestRunEnds(t *testing.T) {
	broken := errors.New("broken")
	cases := map[string]struct {
		change func(*fakeCache)
		want   string
	}{
		"no informer":  {func(f *fakeCache) { f.informerErr = broken }, "watching *v1.Pod: broken"},
		"no list":      {func(f *fakeCache) { f.listErr = broken }, "listing *v1.PodList: broken"},
		"no start":     {func(f *fakeCache) { f.startErr, f.listErr = broken, nil }, "broken"},
		"not synced":   {func(f *fakeCache) { f.unsynced = true }, ""},
		"context ends": {func(*fakeCache) {}, ""},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			w, f := newFakeWatcher(t)
			c.change(f)
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			interval := 10 * time.Millisecond
			if f.startErr != nil {
				interval = time.Hour
			}
			err := w.Run(ctx, interval, &Lasting{}, func(Finding) {}, nil)
			switch {
			case f.unsynced:
				if err != nil && !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("got %v", err)
				}
			case c.want == "" && err != nil, c.want != "" && (err == nil || err.Error() != c.want):
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}
