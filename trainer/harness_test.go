package trainer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	trainerconfig "github.com/kubeflow/trainer/v2/pkg/apis/config/v1alpha1"
	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	schedulingv1alpha2 "k8s.io/api/scheduling/v1alpha2"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	kueueindexer "sigs.k8s.io/kueue/pkg/controller/core/indexer"

	"github.com/signalbox-dev/signalbox/admission/avoid"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides"
	"github.com/signalbox-dev/signalbox/overrides/dialect"
	"github.com/signalbox-dev/signalbox/store"
	"github.com/signalbox-dev/signalbox/trainer/gang"
	"github.com/signalbox-dev/signalbox/trainer/trial"
)

func init() { ctrl.SetLogger(logr.Discard()) }

// allKinds are the kinds that the API server serves. They are few: the fake client goes over all on each create.
var allKinds = sync.OnceValue(func() *runtime.Scheme {
	scheme := runtime.NewScheme()
	if err := errors.Join(corev1.AddToScheme(scheme), batchv1.AddToScheme(scheme), schedulingv1.AddToScheme(scheme),
		schedulingv1alpha2.AddToScheme(scheme), admissionregistrationv1.AddToScheme(scheme), api.AddToScheme(scheme),
		jobset.AddToScheme(scheme), kueue.AddToScheme(scheme), apiextensionsv1.AddToScheme(scheme)); err != nil {
		panic(err)
	}
	return scheme
})

// noon is when every harness starts.
var noon = time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)

// harness is the bundled Trainer on a fake API server. Tests construct the reconciler and Startable only here. They
// assert by the objects in the API server, by the requests to it, and by events.
type harness struct {
	t     testing.TB
	clock *clocktesting.FakeClock

	options options
	parts   parts
	// store is the API server's storage. Tests read and write it directly, which is no request.
	store client.WithWatch
	// indexes are the cache's field indexes, by the field's name.
	indexes map[string]client.IndexerFunc
	// stale are the objects that the cache doesn't show as they are: nil hides one.
	stale map[string]client.Object

	mu   sync.Mutex
	sent []string
	// created are the objects that were created, as they were sent.
	created []*unstructured.Unstructured
	uids    int
	// fail is asked before a request, lost after it has succeeded. An error is the API server's answer.
	fail, lost faults
	recorder   *events.FakeRecorder
}

// faults are errors by request, such as "create JobSet job"; a prefix is enough.
type faults map[string]error

func (f faults) of(request string) error {
	for prefix, err := range f {
		if strings.HasPrefix(request, prefix) {
			return err
		}
	}
	return nil
}

// parts are what is tested.
type parts struct {
	reconciler *Reconciler
	startable  *trial.Trial
}

// options are what differs from one harness to another.
type options struct {
	gangMode    api.GangMode // the manager's configuration; "" is off
	gangsServed bool         // the API server serves PodGroups
	limits      overrides.Limits
	plugins     trainerconfig.Configuration // what Trainer's plugins take of its configuration
	reports     bool                        // training processes can report
	nodes       avoid.Policy                // which nodes are remembered
}

func newHarness(t testing.TB, change ...func(*options)) *harness {
	t.Helper()
	o := options{gangMode: api.GangOff, limits: overrides.Limits{
		Pods: 5000, SpecBytes: 1 << 20, Elements: 1 << 20, GracePeriodSeconds: 3600,
	}}
	for _, c := range change {
		c(&o)
	}
	h := &harness{
		t: t, clock: clocktesting.NewFakeClock(noon), indexes: map[string]client.IndexerFunc{},
		stale: map[string]client.Object{}, fail: faults{}, lost: faults{}, recorder: events.NewFakeRecorder(1000),
	}
	h.store = fake.NewClientBuilder().WithScheme(allKinds()).
		WithStatusSubresource(&api.TrainJob{}, &jobset.JobSet{}, &kueue.Workload{}, &schedulingv1alpha2.PodGroup{}).Build()
	h.put(jobSetCRD(), h.runtime("torch", "{numNodes: 2, torch: {}}"), h.runtime("mpi", "{numNodes: 2, mpi: {}}"),
		h.runtime("flux", "{numNodes: 2, flux: {numProcPerNode: 1}}"))
	h.options = o
	h.construct(o)
	return h
}

// restart ends the manager, and starts another, with nothing in memory.
func (h *harness) restart() { h.construct(h.options) }

// construct makes the parts like cmd/signalbox does. It and the fields of parts are all that knows their constructors.
func (h *harness) construct(o options) {
	h.t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	h.t.Cleanup(stop)
	cached, live := h.cached(), h.api()
	builder, err := NewBuilder(ctx, live, &o.plugins)
	if err != nil {
		h.t.Fatal(err)
	}
	newCache := func() (cache.Cache, error) { return &gangCache{Reader: h.cached(), indexes: h.indexes}, nil }
	kept := store.New(cached, live, h.clock, true)
	gangs := gang.NewGangs(ctx, gang.Config{
		Client: cached, Reader: live, JobsOf: kept.Pods.JobsOf, Discovery: discoveryOf(o.gangsServed), NewCache: newCache,
		Recorder: h.recorder, Clock: h.clock, Mode: o.gangMode, Policy: api.GangPolicyGang,
	})
	reconciler := NewReconciler(Config{
		Client: cached, Reader: live, Store: kept, Builder: builder, Gangs: gangs,
		Recorder: h.recorder, Clock: h.clock, Limits: o.limits, Reports: o.reports, Avoid: o.nodes,
	})
	indexer := indexerFunc(func(field string, of client.IndexerFunc) { h.indexes[field] = of })
	err = errors.Join(
		kueueindexer.SetupWorkloadOwnerIndex(ctx, indexer, trainJobKind),
		indexer.IndexField(ctx, &corev1.Pod{}, store.PodIndex, store.PodIndexOf))
	if err != nil {
		h.t.Fatal(err)
	}
	startable := &Startable{
		Client: cached, Reader: live, Builder: builder, Gangs: gangs,
	}
	h.parts = parts{reconciler: reconciler, startable: trial.New(cached, live, h.clock, startable)}
}

// reconcile reconciles a TrainJob after the integration has, and fails the test on an error.
func (h *harness) reconcile(name string) reconcile.Result {
	h.t.Helper()
	result, err := h.try(name, false)
	if err != nil {
		h.t.Fatal(err)
	}
	return result
}

// reconcileAfterFailure reconciles a TrainJob after the integration has failed.
func (h *harness) reconcileAfterFailure(name string) reconcile.Result {
	h.t.Helper()
	result, err := h.try(name, true)
	if err != nil {
		h.t.Fatal(err)
	}
	return result
}

func (h *harness) try(name string, failed bool) (reconcile.Result, error) {
	request := reconcile.Request{NamespacedName: types.NamespacedName{Namespace: "ns", Name: name}}
	return h.parts.reconciler.ReconcileAfter(context.Background(), request, failed)
}

// startable asks what would keep a TrainJob from having pods.
func (h *harness) startable(job *api.TrainJob, spec *trainerapi.TrainingRuntimeSpec, e *overrides.Effective) error {
	return h.parts.startable.Startable(context.Background(), job, spec, e)
}

// effective computes what a TrainJob runs on a runtime.
func (h *harness) effective(job *api.TrainJob, spec *trainerapi.TrainingRuntimeSpec) *overrides.Effective {
	h.t.Helper()
	e, err := dialect.Bundled.Compute(job, spec, dialect.Bundled.Entries(job))
	if err != nil {
		h.t.Fatal(err)
	}
	return e
}

// put stores objects, with their status, by no request.
func (h *harness) put(objects ...client.Object) {
	h.t.Helper()
	for _, o := range objects {
		o = o.DeepCopyObject().(client.Object)
		if o.GetUID() == "" {
			h.uids++
			o.SetUID(types.UID(fmt.Sprintf("put-%d", h.uids)))
		}
		if created := o.GetCreationTimestamp(); created.IsZero() {
			o.SetCreationTimestamp(metav1.NewTime(h.clock.Now()))
		}
		deleted := !o.GetDeletionTimestamp().IsZero()
		err := h.store.Create(context.Background(), o)
		if err == nil && deleted {
			err = h.store.Delete(context.Background(), o)
		}
		if err != nil {
			h.t.Fatal(err)
		}
	}
}

// get reads an object from the API server, and reports whether it is there.
func (h *harness) get(o client.Object, name string) bool {
	h.t.Helper()
	err := h.store.Get(context.Background(), client.ObjectKey{Namespace: "ns", Name: name}, o)
	if client.IgnoreNotFound(err) != nil {
		h.t.Fatal(err)
	}
	return err == nil
}

// job reads a TrainJob from the API server.
func (h *harness) job(name string) *api.TrainJob {
	h.t.Helper()
	job := &api.TrainJob{}
	if !h.get(job, name) {
		h.t.Fatalf("TrainJob %s is gone", name)
	}
	return job
}

// edit changes a TrainJob by no request, like its user does: a change of the spec raises the generation.
func (h *harness) edit(name string, change func(*api.TrainJob)) {
	h.t.Helper()
	job := h.job(name)
	change(job)
	job.Generation++
	status := job.DeepCopy()
	if err := h.store.Update(context.Background(), job); err != nil {
		h.t.Fatal(err)
	}
	status.ResourceVersion = job.ResourceVersion
	if err := h.store.Status().Update(context.Background(), status); err != nil {
		h.t.Fatal(err)
	}
}

// remove takes an object out of the API server by no request, whatever its finalizers.
func (h *harness) remove(o client.Object, name string) {
	h.t.Helper()
	if !h.get(o, name) {
		h.t.Fatalf("%s is gone already", name)
	}
	o.SetFinalizers(nil)
	if err := h.store.Update(context.Background(), o); client.IgnoreNotFound(err) != nil {
		h.t.Fatal(err)
	}
	if err := h.store.Delete(context.Background(), o); client.IgnoreNotFound(err) != nil {
		h.t.Fatal(err)
	}
}

// requests returns the writes since the last call, in order, as "verb Kind name".
func (h *harness) requests() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	sent := h.sent
	h.sent = nil
	return sent
}

// wantRequests compares the writes since the last call.
func (h *harness) wantRequests(reason string, want ...string) {
	h.t.Helper()
	if got := h.requests(); !slices.Equal(got, want) {
		h.t.Errorf("%s: sent %q, want %q", reason, got, want)
	}
}

// events returns the events since the last call.
func (h *harness) events() []string {
	var all []string
	for {
		select {
		case e := <-h.recorder.Events:
			all = append(all, e)
		default:
			return all
		}
	}
}

// wantEvents compares the events since the last call; each is to contain its part.
func (h *harness) wantEvents(reason string, parts ...string) {
	h.t.Helper()
	got := h.events()
	fits := slices.EqualFunc(got, parts, strings.Contains)
	if !fits {
		h.t.Errorf("%s: events %q, want %q", reason, got, parts)
	}
}
