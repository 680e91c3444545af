package model

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"
	trainerconfig "github.com/kubeflow/trainer/v2/pkg/apis/config/v1alpha1"
	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/controller/constants"
	"sigs.k8s.io/kueue/pkg/controller/jobframework"

	configapi "github.com/signalbox-dev/signalbox/api/config/v1alpha1"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/integration"
	"github.com/signalbox-dev/signalbox/overrides"
	"github.com/signalbox-dev/signalbox/store"
	"github.com/signalbox-dev/signalbox/trainer"
	"github.com/signalbox-dev/signalbox/trainer/gang"
)

const (
	namespace = "team"
	gpu       = corev1.ResourceName("nvidia.com/gpu")
	pool      = "pool" // the label of nodes by which flavors differ
)

// names are the TrainJobs; consecutive admissions of one alternate between the flavors.
var (
	names   = []string{"first", "second"}
	flavors = []kueue.ResourceFlavorReference{"a", "b"}
)

// watched are the kinds that the manager reads from its cache. Each may be stale by any number of events.
var watched = []string{"TrainJob", "Workload", "JobSet", "Pod"}

var scheme = func() *runtime.Scheme {
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, api.AddToScheme, jobset.AddToScheme, kueue.AddToScheme} {
		if err := add(s); err != nil {
			panic(err)
		}
	}
	return s
}()

// world is one state of the cluster and of the manager.
type world struct {
	store client.WithWatch // the API server
	clock *clocktesting.FakeClock
	uids  int

	manager *manager
	cache   map[string][]client.Object // by kind; never changed in place
	queue   map[string]bool            // TrainJobs in the manager's workqueue
	again   map[string]time.Time       // TrainJobs with a RequeueAfter, and when it is due

	// left is how many writes the manager has before it crashes; negative means unlimited. lost is the number of the write, from
	// 1, whose response is lost; 0 means none.
	left, lost, writes int
	failed             error // of the last reconcile

	budget budget
	ledger ledger
}

// budget bounds the events that don't have to happen.
type budget struct{ Faults, Preemptions, Deletions, Deactivations, Creations int }

// ledger records what no single state shows.
type ledger struct {
	Admissions map[types.UID]int       // by the UID of the TrainJob
	Starts     map[types.UID]int       //
	Flavor     map[types.UID]string    // of the last admission
	Owner      map[types.UID]types.UID // of a JobSet: its TrainJob
}

func newWorld() *world {
	w := &world{
		clock: clocktesting.NewFakeClock(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)),
		cache: map[string][]client.Object{}, queue: map[string]bool{}, again: map[string]time.Time{}, left: -1,
		ledger: ledger{map[types.UID]int{}, map[types.UID]int{}, map[types.UID]string{}, map[types.UID]types.UID{}},
	}
	w.serve(fixed())
	for _, name := range names {
		must(w.api().Create(context.Background(), trainJob(name)))
	}
	w.restart()
	return w
}

func init() { ctrl.SetLogger(logr.Discard()) }

func must(err error) {
	if err != nil {
		panic(err)
	}
}

// fixed are the objects that never change.
func fixed() []client.Object {
	rj := jobset.ReplicatedJob{Name: "node", Replicas: 1}
	rj.Template.Labels = map[string]string{"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
	rj.Template.Spec.Template.Spec.Containers = []corev1.Container{{Name: "node", Image: "example.com/train:1"}}
	runtime := &api.ClusterTrainingRuntime{ObjectMeta: metav1.ObjectMeta{Name: "torch", UID: "runtime", Labels: map[string]string{"trainer.kubeflow.org/framework": "torch"}}}
	runtime.Spec.MLPolicy = &trainerapi.MLPolicy{NumNodes: ptr.To[int32](1)}
	runtime.Spec.Template.Spec.ReplicatedJobs = []jobset.ReplicatedJob{rj}
	objects := []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace, Labels: map[string]string{"kubernetes.io/metadata.name": namespace}}},
		runtime,
	}
	for _, f := range flavors {
		objects = append(objects, &kueue.ResourceFlavor{ObjectMeta: metav1.ObjectMeta{Name: string(f)}, Spec: kueue.ResourceFlavorSpec{NodeLabels: map[string]string{pool: string(f)}}})
	}
	return objects
}

func trainJob(name string) *api.TrainJob {
	one := corev1.ResourceList{gpu: resource.MustParse("1")}
	return &api.TrainJob{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{constants.QueueLabel: "queue"}},
		Spec: api.TrainJobSpec{TrainJobSpec: trainerapi.TrainJobSpec{
			RuntimeRef: trainerapi.RuntimeRef{APIGroup: ptr.To(trainerapi.GroupVersion.Group), Kind: ptr.To(trainerapi.ClusterTrainingRuntimeKind), Name: "torch"},
			ManagedBy:  ptr.To("trainer.kubeflow.org/trainjob-controller"),
			Trainer:    &trainerapi.Trainer{NumNodes: ptr.To[int32](1), ResourcesPerNode: &corev1.ResourceRequirements{Requests: one, Limits: one}},
			Suspend:    ptr.To(true),
		}},
	}
}

// serve replaces the API server by one with the objects.
func (w *world) serve(objects []client.Object) {
	w.store = fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).
		WithStatusSubresource(&api.TrainJob{}, &kueue.Workload{}, &jobset.JobSet{}, &batchv1.Job{}, &corev1.Pod{}).Build()
}

// api is the API server as its clients see it. Unlike the fake client it assigns UIDs and creation times, and implements
// foreground deletion.
func (w *world) api() client.WithWatch {
	return interceptor.NewClient(w.store, interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.CreateOption) error {
			var asked client.CreateOptions
			if asked.ApplyOptions(options); len(asked.DryRun) == 0 {
				w.uids++
			}
			o.SetUID(types.UID(fmt.Sprintf("uid-%d", w.uids)))
			o.SetCreationTimestamp(metav1.NewTime(w.clock.Now()))
			return c.Create(ctx, o, options...)
		},
		Delete: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.DeleteOption) error {
			var asked client.DeleteOptions
			asked.ApplyOptions(options)
			if ptr.Deref(asked.PropagationPolicy, "") == metav1.DeletePropagationForeground {
				there := o.DeepCopyObject().(client.Object)
				if err := c.Get(ctx, client.ObjectKeyFromObject(o), there); err != nil {
					return err
				}
				if p := asked.Preconditions; p != nil && (p.UID != nil && *p.UID != there.GetUID() || p.ResourceVersion != nil && *p.ResourceVersion != there.GetResourceVersion()) {
					return apierrors.NewConflict(schema.GroupResource{}, o.GetName(), errors.New("the precondition doesn't hold"))
				}
				if !slices.Contains(there.GetFinalizers(), metav1.FinalizerDeleteDependents) {
					there.SetFinalizers(append(there.GetFinalizers(), metav1.FinalizerDeleteDependents))
					if err := c.Update(ctx, there); err != nil {
						return err
					}
				}
				return c.Delete(ctx, there)
			}
			return c.Delete(ctx, o, options...)
		},
	})
}

// unchanged hides resource versions that changed nothing from the manager: the fake client bumps the version on a no-op write,
// and an API server doesn't.
func (w *world) unchanged() {
	for _, kind := range watched {
		now := map[types.UID]client.Object{}
		for _, o := range w.all(kind) {
			now[o.GetUID()] = o
		}
		shown := slices.Clone(w.cache[kind])
		for i, o := range shown {
			if n := now[o.GetUID()]; n != nil && n.GetResourceVersion() != o.GetResourceVersion() && describe(n) == describe(o) {
				shown[i] = n
			}
		}
		w.cache[kind] = shown
	}
}

// manager is Signalbox with the bundled Trainer, wired like cmd/signalbox.
type manager struct {
	writer      *store.Writer
	jobSets     *store.JobSets
	integration *integration.Reconciler
	trainer     *trainer.Reconciler
	indexes     indexes
}

// indexes are the cache's field indexes.
type indexes map[string]client.IndexerFunc

func (i indexes) IndexField(_ context.Context, _ client.Object, field string, extract client.IndexerFunc) error {
	i[field] = extract
	return nil
}

// start creates a manager with empty memory.
func (w *world) start() {
	ctx := context.Background()
	config := configapi.Default()
	cached, live := &cachedClient{Client: w.counted(), w: w}, w.api()
	m := &manager{indexes: indexes{}}
	must(jobframework.SetupWorkloadOwnerIndex(ctx, m.indexes, trainerapi.GroupVersion.WithKind(trainerapi.TrainJobKind)))
	must(m.indexes.IndexField(ctx, nil, store.PodIndex, store.PodIndexOf))
	kept, recorder := store.New(cached, live, w.clock, true), &events.FakeRecorder{}
	m.writer, m.jobSets = kept.Writer, kept.JobSets
	builder, err := trainer.NewBuilder(ctx, live, &trainerconfig.Configuration{})
	must(err)
	gangs := gang.NewGangs(ctx, gang.Config{
		Client: cached, Reader: live, Discovery: unserved(), Recorder: recorder, Clock: w.clock,
		Mode: config.Trainer.GangScheduling.Mode, Policy: config.Trainer.GangScheduling.Policy,
	})
	m.integration, err = integration.NewReconciler(integration.Config{
		Client: cached, Reader: live, Store: kept, Recorder: recorder, Kueue: &config.Kueue, Limits: limits(),
		PodsWithin: config.Limits.PodsWithin.Duration, Installed: integration.NewInstalled(overrides.Bundled, w.clock),
		Placement: trainer.NewStartable(trainer.StartableConfig{Client: cached, Builder: builder, Gangs: gangs, Clock: w.clock}),
		Clock:     w.clock,
	})
	must(err)
	m.trainer = trainer.NewReconciler(trainer.Config{
		Client: cached, Reader: live, Store: kept, Builder: builder, Gangs: gangs, Recorder: recorder, Clock: w.clock,
	})
	must(m.trainer.Setup(ctx, m.indexes))
	w.manager = m
}

// limits are the configuration's defaults.
func limits() overrides.Limits {
	l := configapi.Default().Limits
	return overrides.Limits{Pods: l.Pods, SpecBytes: l.SpecBytes, Elements: l.Elements, GracePeriodSeconds: l.TerminationGracePeriodSeconds}
}

// restart restarts the manager: its cache is current, and its queue has every TrainJob.
func (w *world) restart() {
	w.start()
	w.cache, w.queue, w.again = map[string][]client.Object{}, map[string]bool{}, map[string]time.Time{}
	for _, kind := range watched {
		w.sync(kind)
	}
}

// sync makes the manager's cache of one kind current, and enqueues what the watch events would.
func (w *world) sync(kind string) {
	before := map[types.UID]client.Object{}
	for _, o := range w.cache[kind] {
		before[o.GetUID()] = o
	}
	w.cache[kind] = w.all(kind)
	for _, o := range w.cache[kind] {
		was := before[o.GetUID()]
		delete(before, o.GetUID())
		if was == nil || was.GetResourceVersion() != o.GetResourceVersion() {
			w.wake(kind, was, o)
		}
	}
	for _, o := range before {
		w.wake(kind, o, nil)
	}
}

// wake enqueues the TrainJob of a changed object; either version may be nil.
func (w *world) wake(kind string, before, after client.Object) {
	o := after
	if o == nil {
		o = before
	}
	if kind == "TrainJob" {
		w.queue[o.GetName()] = true
		return
	}
	if pod, ok := o.(*corev1.Pod); ok {
		// integration.podEnds passes only these.
		if after == nil || before != nil && store.PodEnded(pod) && !store.PodEnded(before.(*corev1.Pod)) {
			w.queue[pod.Labels[jobset.JobSetNameKey]] = true
		}
		return
	}
	if owner := metav1.GetControllerOfNoCopy(o); owner != nil && owner.Kind == trainerapi.TrainJobKind {
		w.queue[owner.Name] = true
	}
}

// late reports whether the manager's cache of a kind is stale.
func (w *world) late(kind string) bool {
	now := w.all(kind)
	return len(now) != len(w.cache[kind]) || slices.ContainsFunc(now, func(o client.Object) bool {
		return !slices.ContainsFunc(w.cache[kind], func(c client.Object) bool {
			return c.GetUID() == o.GetUID() && c.GetResourceVersion() == o.GetResourceVersion()
		})
	})
}

// all returns the objects of a kind, sorted by name.
func (w *world) all(kind string) []client.Object {
	list := map[string]client.ObjectList{
		"TrainJob": &api.TrainJobList{}, "Workload": &kueue.WorkloadList{}, "JobSet": &jobset.JobSetList{}, "Pod": &corev1.PodList{}, "Job": &batchv1.JobList{},
	}[kind]
	must(w.store.List(context.Background(), list))
	var all []client.Object
	must(apimeta.EachListItem(list, func(o runtime.Object) error {
		all = append(all, o.(client.Object))
		return nil
	}))
	slices.SortFunc(all, func(a, b client.Object) int { return strings.Compare(a.GetName(), b.GetName()) })
	return all
}

func list[T client.Object](w *world, kind string) []T {
	var all []T
	for _, o := range w.all(kind) {
		all = append(all, o.(T))
	}
	return all
}

// errCrashed fails every write of a manager that has crashed.
var errCrashed = errors.New("the manager has crashed")

// counted is the API server for the manager's writes: it injects crashes and lost responses, and fills the ledger.
func (w *world) counted() client.Client {
	write := func(dryRun bool, do func() error) error {
		if dryRun {
			return do()
		}
		if w.left == 0 {
			return errCrashed
		}
		w.left--
		w.writes++
		err := do()
		if err == nil && w.writes == w.lost {
			return apierrors.NewTimeoutError("the response is lost", 1)
		}
		return err
	}
	return interceptor.NewClient(w.api(), interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.CreateOption) error {
			var asked client.CreateOptions
			asked.ApplyOptions(options)
			return write(len(asked.DryRun) > 0, func() error {
				err := c.Create(ctx, o, options...)
				if owner := metav1.GetControllerOfNoCopy(o); err == nil && len(asked.DryRun) == 0 && o.GetObjectKind().GroupVersionKind().Kind == "JobSet" {
					w.ledger.Owner[o.GetUID()] = owner.UID
				}
				return err
			})
		},
		Update: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.UpdateOption) error {
			return write(false, func() error { return c.Update(ctx, o, options...) })
		},
		Delete: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.DeleteOption) error {
			return write(false, func() error { return c.Delete(ctx, o, options...) })
		},
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, patch client.Patch, options ...client.PatchOption) error {
			return write(false, func() error {
				suspended := w.suspended(o)
				err := c.Patch(ctx, o, patch, options...)
				if err == nil && suspended != "" && w.suspended(o) == "" {
					w.ledger.Starts[suspended]++
				}
				return err
			})
		},
		SubResourcePatch: func(ctx context.Context, c client.Client, sub string, o client.Object, patch client.Patch, options ...client.SubResourcePatchOption) error {
			return write(false, func() error { return c.SubResource(sub).Patch(ctx, o, patch, options...) })
		},
		SubResourceUpdate: func(ctx context.Context, c client.Client, sub string, o client.Object, options ...client.SubResourceUpdateOption) error {
			return write(false, func() error { return c.SubResource(sub).Update(ctx, o, options...) })
		},
	})
}

// suspended returns the UID of a TrainJob that is suspended in the API server; "" otherwise.
func (w *world) suspended(o client.Object) types.UID {
	if _, ok := o.(*api.TrainJob); !ok {
		return ""
	}
	var tj api.TrainJob
	if w.store.Get(context.Background(), client.ObjectKeyFromObject(o), &tj) != nil || !ptr.Deref(tj.Spec.Suspend, false) {
		return ""
	}
	return tj.UID
}

// cachedClient reads watched kinds from the manager's cache.
type cachedClient struct {
	client.Client
	w *world
}

func kindOf(o runtime.Object) string {
	switch o.(type) {
	case *api.TrainJob, *api.TrainJobList:
		return "TrainJob"
	case *kueue.Workload, *kueue.WorkloadList:
		return "Workload"
	case *jobset.JobSet, *jobset.JobSetList:
		return "JobSet"
	case *corev1.Pod, *corev1.PodList:
		return "Pod"
	}
	return ""
}

// kept returns a copy of an object as the manager's cache stores it.
func kept(o client.Object) client.Object {
	if pod, ok := o.(*corev1.Pod); ok {
		return store.RetainPod(pod).DeepCopy()
	}
	return o.DeepCopyObject().(client.Object)
}

func (c *cachedClient) Get(ctx context.Context, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
	kind := kindOf(o)
	if kind == "" {
		return c.Client.Get(ctx, key, o, options...)
	}
	for _, there := range c.w.cache[kind] {
		if client.ObjectKeyFromObject(there) == key {
			reflect.ValueOf(o).Elem().Set(reflect.ValueOf(kept(there)).Elem())
			return nil
		}
	}
	return apierrors.NewNotFound(schema.GroupResource{Resource: kind}, key.Name)
}

func (c *cachedClient) List(ctx context.Context, into client.ObjectList, options ...client.ListOption) error {
	kind := kindOf(into)
	if kind == "" {
		return c.Client.List(ctx, into, options...)
	}
	var asked client.ListOptions
	asked.ApplyOptions(options)
	var found []runtime.Object
	for _, o := range c.w.cache[kind] {
		if asked.Namespace != "" && o.GetNamespace() != asked.Namespace || !c.w.matches(o, asked.FieldSelector) {
			continue
		}
		found = append(found, kept(o))
	}
	return apimeta.SetList(into, found)
}

func (w *world) matches(o client.Object, selector fields.Selector) bool {
	if selector == nil {
		return true
	}
	for _, r := range selector.Requirements() {
		extract := w.manager.indexes[r.Field]
		if extract == nil {
			panic("no index " + r.Field)
		}
		if !slices.Contains(extract(o), r.Value) {
			return false
		}
	}
	return true
}

// reconcile runs both reconcilers for a TrainJob, like the controller does.
func (w *world) reconcile(name string) {
	if at, due := w.again[name]; due && !w.queue[name] {
		w.clock.SetTime(maxTime(at, w.clock.Now()))
	}
	delete(w.queue, name)
	delete(w.again, name)
	ctx := context.Background()
	defer w.unchanged()
	request := reconcile.Request{NamespacedName: types.NamespacedName{Namespace: namespace, Name: name}}
	result, err := w.manager.integration.Reconcile(ctx, request)
	theirs, nextErr := w.manager.trainer.ReconcileAfter(ctx, request, err != nil)
	if w.failed = errors.Join(err, nextErr); w.failed != nil {
		w.again[name] = w.clock.Now().Add(time.Second)
		return
	}
	for _, r := range []reconcile.Result{result, theirs} {
		at := w.clock.Now().Add(r.RequeueAfter)
		if before, has := w.again[name]; r.RequeueAfter > 0 && (!has || at.Before(before)) {
			w.again[name] = at
		}
	}
}

func maxTime(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// clone returns a copy of the state.
func (w *world) clone() *world {
	c := &world{
		clock: clocktesting.NewFakeClock(w.clock.Now()), uids: w.uids, cache: maps.Clone(w.cache), queue: maps.Clone(w.queue), again: maps.Clone(w.again),
		left: -1, budget: w.budget,
		ledger: ledger{maps.Clone(w.ledger.Admissions), maps.Clone(w.ledger.Starts), maps.Clone(w.ledger.Flavor), maps.Clone(w.ledger.Owner)},
	}
	objects := fixed()
	for _, kind := range append(slices.Clone(watched), "Job") {
		objects = append(objects, w.all(kind)...)
	}
	c.serve(objects)
	c.start()
	remember(w.manager, c.manager)
	return c
}
