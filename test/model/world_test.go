package model

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"
	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	clienttesting "k8s.io/client-go/testing"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/controller/constants"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/store"
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
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, api.AddToScheme, jobset.AddToScheme,
		kueue.AddToScheme} {
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

	// left is how many writes the manager has before it crashes; negative means unlimited. lost is the number of the
	// write, from 1, whose response is lost; 0 means none.
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
	runtime := &api.ClusterTrainingRuntime{
		ObjectMeta: metav1.ObjectMeta{Name: "torch", UID: "runtime",
			Labels: map[string]string{"trainer.kubeflow.org/framework": "torch"}}}
	runtime.Spec.MLPolicy = &trainerapi.MLPolicy{NumNodes: ptr.To[int32](1)}
	runtime.Spec.Template.Spec.ReplicatedJobs = []jobset.ReplicatedJob{rj}
	objects := []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace,
			Labels: map[string]string{"kubernetes.io/metadata.name": namespace}}},
		runtime,
	}
	for _, f := range flavors {
		objects = append(objects, &kueue.ResourceFlavor{ObjectMeta: metav1.ObjectMeta{Name: string(f)},
			Spec: kueue.ResourceFlavorSpec{NodeLabels: map[string]string{pool: string(f)}}})
	}
	return objects
}

func trainJob(name string) *api.TrainJob {
	one := corev1.ResourceList{gpu: resource.MustParse("1")}
	return &api.TrainJob{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name,
			Labels: map[string]string{constants.QueueLabel: "queue"}},
		Spec: api.TrainJobSpec{TrainJobSpec: trainerapi.TrainJobSpec{
			RuntimeRef: trainerapi.RuntimeRef{APIGroup: ptr.To(trainerapi.GroupVersion.Group),
				Kind: ptr.To(trainerapi.ClusterTrainingRuntimeKind), Name: "torch"},
			ManagedBy: ptr.To("trainer.kubeflow.org/trainjob-controller"),
			Trainer: &trainerapi.Trainer{NumNodes: ptr.To[int32](1),
				ResourcesPerNode: &corev1.ResourceRequirements{Requests: one, Limits: one}},
			Suspend: ptr.To(true),
		}},
	}
}

// serve replaces the API server by one with the objects. Its tracker knows no field managers: nothing here depends on
// them, and building their schemas for each tracker takes two thirds of the time.
func (w *world) serve(objects []client.Object) {
	w.store = fake.NewClientBuilder().WithScheme(scheme).
		WithObjectTracker(clienttesting.NewObjectTracker(scheme, serializer.NewCodecFactory(scheme).UniversalDecoder())).
		WithObjects(objects...).
		WithStatusSubresource(&api.TrainJob{}, &kueue.Workload{}, &jobset.JobSet{}, &batchv1.Job{}, &corev1.Pod{}).Build()
}

// api is the API server as its clients see it. Unlike the fake client it assigns UIDs and creation times, and
// implements foreground deletion.
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
				if p := asked.Preconditions; p != nil &&
					(p.UID != nil && *p.UID != there.GetUID() || p.ResourceVersion != nil &&
						*p.ResourceVersion != there.GetResourceVersion()) {
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

// unchanged hides resource versions that changed nothing from the manager: the fake client bumps the version on a no-op
// write, and an API server doesn't.
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
		"TrainJob": &api.TrainJobList{}, "Workload": &kueue.WorkloadList{}, "JobSet": &jobset.JobSetList{},
		"Pod": &corev1.PodList{}, "Job": &batchv1.JobList{},
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

// clone returns a copy of the state.
func (w *world) clone() *world {
	c := &world{
		clock: clocktesting.NewFakeClock(w.clock.Now()), uids: w.uids, cache: maps.Clone(w.cache), queue: maps.Clone(w.queue),
		again: maps.Clone(w.again),
		left:  -1, budget: w.budget,
		ledger: ledger{maps.Clone(w.ledger.Admissions), maps.Clone(w.ledger.Starts), maps.Clone(w.ledger.Flavor),
			maps.Clone(w.ledger.Owner)},
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
