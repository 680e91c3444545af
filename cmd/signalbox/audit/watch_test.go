package audit

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
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
	client   client.WithWatch
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

func (f *fakeCache) WaitForCacheSync(ctx context.Context) bool {
	if f.unsynced {
		<-ctx.Done()
	}
	return !f.unsynced
}

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
	return &Watcher{reader: c, live: c.client, ofJobSets: labels.Everything(), answersWithin: time.Minute}, c
}

func TestNewWatcher(t *testing.T) {
	_, err := NewWatcher(&rest.Config{Host: "http://127.0.0.1:1"}, newScheme(t))
	if err == nil || !strings.Contains(err.Error(), "creating the watches: ") {
		t.Errorf("an API server that doesn't answer is an error: got %v", err)
	}
}

// thrice is a done for Run.
func thrice(audits int, _ map[Finding]time.Time) bool { return audits == 3 }

func TestRun(t *testing.T) {
	w, _ := newFakeWatcher(t)
	var reported []Finding
	audits := 0
	err := w.Run(t.Context(), time.Millisecond, &Lasting{}, func(f Finding) { reported = append(reported, f) },
		func(n int, pending map[Finding]time.Time) bool {
			audits = n
			return n == 3 && len(pending) == 0
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
		if err := w.Run(t.Context(), time.Millisecond, lasting, report, thrice); err != nil {
			t.Error(err)
		}
		reported := 0
		again := &Watcher{reader: f, live: f.client, ofJobSets: w.ofJobSets, answersWithin: time.Minute}
		err := again.Run(t.Context(), time.Millisecond, lasting, func(Finding) { reported++ },
			thrice)
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
		"no list":      {func(f *fakeCache) { f.listErr = broken }, "listing pods: broken"},
		"no start":     {func(f *fakeCache) { f.startErr, f.listErr = broken, nil }, "broken"},
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
			if c.want == "" && err != nil || c.want != "" && (err == nil || err.Error() != c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

// hanging answers no list before its context ends.
func hanging(c client.WithWatch) client.WithWatch {
	return interceptor.NewClient(c, interceptor.Funcs{
		List: func(ctx context.Context, _ client.WithWatch, _ client.ObjectList, _ ...client.ListOption) error {
			<-ctx.Done()
			return context.Cause(ctx)
		},
	})
}

// TestRunOnce holds that an audit that isn't continuous ends, whatever the API server does.
func TestRunOnce(t *testing.T) {
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "nodes"}, "", errors.New("no role"))
	cases := map[string]struct {
		reason   string
		change   func(*Watcher, *fakeCache)
		reported int
		pending  bool
		want     string
	}{
		"churn": {reason: "there is always a new finding", change: func(_ *Watcher, f *fakeCache) {
			n := 0
			f.client = interceptor.NewClient(f.client, interceptor.Funcs{
				List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, o ...client.ListOption) error {
					err := c.List(ctx, list, o...)
					if pods, ok := list.(*corev1.PodList); ok {
						n++
						again := pods.Items[0].DeepCopy()
						again.Name = fmt.Sprintf("pod-%d", n)
						pods.Items = append(pods.Items, *again)
					}
					return err
				},
			})
		}, reported: 1, pending: true},
		"no confirmation": {reason: "each request ends", change: func(w *Watcher, f *fakeCache) {
			w.live, w.answersWithin = hanging(f.client), 10*time.Millisecond
		}, pending: true},
		"no sync": {reason: "a watch that never answers is an error", change: func(w *Watcher, f *fakeCache) {
			f.unsynced, w.answersWithin = true, 10*time.Millisecond
		}, want: "the API server has not listed all that the audit compares within 10ms"},
		"no right": {reason: "its watch never answers", change: func(w *Watcher, f *fakeCache) {
			f.unsynced = true
			w.live = interceptor.NewClient(f.client, interceptor.Funcs{
				List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, o ...client.ListOption) error {
					if _, nodes := list.(*metav1.PartialObjectMetadataList); nodes {
						return forbidden
					}
					return c.List(ctx, list, o...)
				},
			})
		}, want: "the audit needs rights to list and watch what it compares: listing nodes: nodes is forbidden: no role"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			w, f := newFakeWatcher(t)
			live := f.client
			c.change(w, f)
			if name == "churn" {
				w.live = live
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			lasting, reported := &Lasting{Other: 20 * time.Millisecond, Idle: 20 * time.Millisecond}, 0
			err := w.Run(ctx, time.Millisecond, lasting, func(Finding) { reported++ }, Once())
			if ctx.Err() != nil {
				t.Fatalf("%s: it has not ended by itself", c.reason)
			}
			if c.want == "" && err != nil || c.want != "" && (err == nil || err.Error() != c.want) {
				t.Errorf("%s: got %v, want %q", c.reason, err, c.want)
			}
			if reported != c.reported || c.pending != (len(lasting.Pending()) > 0) {
				t.Errorf("%s: got %d reported, pending %v", c.reason, reported, lasting.Pending())
			}
		})
	}
}

// TestObjects holds what is read of nodes: their labels, from the cache and from the API server.
func TestObjects(t *testing.T) {
	o := healthy(t)
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n0", Labels: map[string]string{"gpu": "h100"}}}
	c := &fakeCache{client: fake.NewClientBuilder().WithScheme(newScheme(t)).WithObjects(&o.TrainJobs[0], &o.JobSets[0],
		&o.Jobs[0], &o.Pods[0], &o.Workloads[0], &o.Flavors[0], node).Build()}
	w := &Watcher{reader: c, live: c.client, ofJobSets: labels.Everything(), answersWithin: time.Minute}
	var reported []Finding
	err := w.Run(t.Context(), time.Millisecond, &Lasting{}, func(f Finding) { reported = append(reported, f) }, thrice)
	if err != nil || len(reported) != 1 || reported[0].Rule != OtherFlavor {
		t.Errorf("the node is of another flavor: got %v, %v", reported, err)
	}
	kept, err := onlyLabels(&metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: "n", ResourceVersion: "1",
		Labels: node.Labels, Annotations: map[string]string{"a": "b"}}})
	n, ok := kept.(*metav1.PartialObjectMetadata)
	if err != nil || !ok || n.Annotations != nil || n.Labels["gpu"] != "h100" || n.Name != "n" ||
		n.ResourceVersion != "1" {
		t.Errorf("got %+v, %v", kept, err)
	}
	if kept, err := onlyLabels("a mark"); err != nil || kept != "a mark" {
		t.Errorf("what is no node is passed on: got %v, %v", kept, err)
	}
}
