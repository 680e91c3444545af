package model

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/go-logr/logr"
	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	kueueconstants "sigs.k8s.io/kueue/pkg/constants"
	"sigs.k8s.io/kueue/pkg/controller/constants"
	"sigs.k8s.io/kueue/pkg/workload"

	"github.com/signalbox-dev/signalbox/admission/after"
	"github.com/signalbox-dev/signalbox/admission/avoid"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	usageapi "github.com/signalbox-dev/signalbox/api/usage/v1alpha1"
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
		kueue.AddToScheme, usageapi.AddToScheme} {
		if err := add(s); err != nil {
			panic(err)
		}
	}
	return s
}()

// world is one state of the cluster and of the manager.
type world struct {
	store *apiServer // the API server
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
	features
	// rejects is which writes of the first TrainJob the API server rejects.
	rejects rejects
	ledger  ledger
}

// features are what the manager is asked for.
type features struct {
	minimum time.Duration // TrainJobs' minimum runtime; 0 for none
	records bool          // what quota was held for
	avoids  bool          // nodes are avoided, and the first TrainJob remembers one
	after   bool          // the second TrainJob runs after the first
}

// budget bounds the events that don't have to happen.
type budget struct {
	Faults, Preemptions, Deletions, Deactivations, Creations, Hostile, Checkpoints, Slices, Expiries int
}

// ledger records what no single state shows. UIDs identify: names and labels may be anybody's.
type ledger struct {
	Admissions map[types.UID]int       // by the UID of the TrainJob
	Starts     map[types.UID]int       //
	Owner      map[types.UID]types.UID // of a JobSet: its TrainJob
	Pods       map[types.UID]types.UID // of a pod that a JobSet's Job was given: its TrainJob
	Runs       map[string]bool         // the runs that have held quota, by their keys
	// Hostile is set if a hostile step was taken, and Harmed if it concerns TrainJobs of all names.
	Hostile, Harmed bool
}

func (l ledger) clone() ledger {
	return ledger{maps.Clone(l.Admissions), maps.Clone(l.Starts), maps.Clone(l.Owner), maps.Clone(l.Pods),
		maps.Clone(l.Runs), l.Hostile, l.Harmed}
}

func newWorld() *world { return newWorldOf(features{}) }

// newWorldOf returns a world whose manager has the features.
func newWorldOf(f features) *world {
	w := &world{
		features: f,
		clock:    clocktesting.NewFakeClock(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)),
		cache:    map[string][]client.Object{}, queue: map[string]bool{}, again: map[string]time.Time{}, left: -1,
		ledger: ledger{Admissions: map[types.UID]int{}, Starts: map[types.UID]int{}, Owner: map[types.UID]types.UID{},
			Pods: map[types.UID]types.UID{}, Runs: map[string]bool{}},
	}
	w.store = newAPIServer(fixed())
	for _, name := range names {
		must(w.api().Create(context.Background(), trainJob(name)))
	}
	if f.avoids {
		w.avoided()
	}
	if f.after {
		w.runsAfter()
	}
	w.restart()
	return w
}

// runsAfter has the second TrainJob run after the first, as the webhook leaves it.
func (w *world) runsAfter() {
	tj := list[*api.TrainJob](w, "TrainJob")[1].DeepCopy()
	tj.Annotations[api.AfterAnnotation] = names[0] + "=any"
	tj.Annotations[kueueconstants.AdmissionGatedByAnnotation] = after.Gate
	w.update(tj)
}

// early describes a TrainJob that holds quota before the one has ended that it runs after; "" if there is none.
func (w *world) early() string {
	if !w.after {
		return ""
	}
	jobs := list[*api.TrainJob](w, "TrainJob")
	if len(jobs) < len(names) || jobs[0].Name != names[0] || after.EndOf(jobs[0]) != "" {
		return ""
	}
	for _, wl := range list[*kueue.Workload](w, "Workload") {
		if workload.HasQuotaReservation(wl) && metav1.IsControlledBy(wl, jobs[1]) {
			return "TrainJob " + jobs[1].Name + " holds quota, and the one that it runs after hasn't ended"
		}
	}
	return ""
}

// avoidFor is for how long a node is avoided, and remains what is left of that when the world begins.
const (
	avoidFor = time.Hour
	remains  = time.Minute
)

// avoided has the first TrainJob remember a node that is gone: it is kept off whatever the others are.
func (w *world) avoided() {
	tj := list[*api.TrainJob](w, "TrainJob")[0].DeepCopy()
	tj.Status.Avoided = []api.AvoidedNode{{Name: "gone", Reason: avoid.Lost, Pod: "p",
		Time: metav1.NewTime(w.clock.Now().Add(remains - avoidFor))}}
	w.updateStatus(tj)
}

func init() { ctrl.SetLogger(logr.Discard()) }

func must(err error) {
	if err != nil {
		panic(err)
	}
}

// fixed are the objects that never change.
func fixed() []client.Object {
	objects := []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace,
			Labels: map[string]string{"kubernetes.io/metadata.name": namespace}}},
		clusterRuntime(),
	}
	for _, f := range flavors {
		labels := map[string]string{pool: string(f)}
		objects = append(objects, &kueue.ResourceFlavor{ObjectMeta: metav1.ObjectMeta{Name: string(f)},
			Spec: kueue.ResourceFlavorSpec{NodeLabels: labels}},
			&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: string(f), Labels: labels}}) // a node of each flavor
	}
	return objects
}

func clusterRuntime() *api.ClusterTrainingRuntime {
	rj := jobset.ReplicatedJob{Name: "node", Replicas: 1}
	rj.Template.Labels = map[string]string{"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
	rj.Template.Spec.Template.Spec.Containers = []corev1.Container{{Name: "node", Image: "example.com/train:1"}}
	runtime := &api.ClusterTrainingRuntime{
		ObjectMeta: metav1.ObjectMeta{Name: "torch", UID: "runtime",
			Labels: map[string]string{"trainer.kubeflow.org/framework": "torch"}}}
	runtime.Spec.MLPolicy = &trainerapi.MLPolicy{NumNodes: ptr.To[int32](1)}
	runtime.Spec.Template.Spec.ReplicatedJobs = []jobset.ReplicatedJob{rj}
	return runtime
}

func trainJob(name string) *api.TrainJob {
	one := corev1.ResourceList{gpu: resource.MustParse("1")}
	return &api.TrainJob{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name,
			Labels:      map[string]string{constants.QueueLabel: "queue"},
			Annotations: map[string]string{api.CheckpointMetricAnnotation: "saved"}},
		Spec: api.TrainJobSpec{TrainJobSpec: trainerapi.TrainJobSpec{
			RuntimeRef: trainerapi.RuntimeRef{APIGroup: ptr.To(trainerapi.GroupVersion.Group),
				Kind: ptr.To(trainerapi.ClusterTrainingRuntimeKind), Name: "torch"},
			ManagedBy: ptr.To("trainer.kubeflow.org/trainjob-controller"),
			Trainer: &trainerapi.Trainer{NumNodes: ptr.To[int32](1),
				ResourcesPerNode: &corev1.ResourceRequirements{Requests: one, Limits: one}},
			Suspend: ptr.To(true), ActiveDeadlineSeconds: deadlineOf(name),
		}},
	}
}

// deadline is that of the first TrainJob.
const deadline = 24 * time.Hour

func deadlineOf(name string) int64 {
	if name != names[0] {
		return 0
	}
	return int64(deadline.Seconds())
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
func (w *world) wake(kind string, before, now client.Object) {
	o := now
	if o == nil {
		o = before
	}
	if kind == "TrainJob" {
		w.queue[o.GetName()] = true
		for _, tj := range w.cache[kind] {
			if slices.Contains(after.IndexOf(tj), o.GetName()) {
				w.queue[tj.GetName()] = true
			}
		}
		return
	}
	if pod, ok := o.(*corev1.Pod); ok {
		// integration.podEnds passes only these.
		if now == nil || before != nil && store.PodEnded(pod) && !store.PodEnded(before.(*corev1.Pod)) {
			w.wakeOf(pod.Labels[jobset.JobSetNameKey])
		}
		return
	}
	if owner := metav1.GetControllerOfNoCopy(o); owner != nil && owner.Kind == trainerapi.TrainJobKind {
		w.queue[owner.Name] = true
	}
}

// wakeOf enqueues the TrainJob of a pod that has ended, unless it runs (integration.jobOf).
func (w *world) wakeOf(name string) {
	for _, o := range w.cache["TrainJob"] {
		tj := o.(*api.TrainJob)
		if tj.Name == name && tj.DeletionTimestamp.IsZero() && !ended(tj) && !ptr.Deref(tj.Spec.Suspend, false) {
			return
		}
	}
	if slices.Contains(names, name) {
		w.queue[name] = true
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

// all returns the objects of a kind, sorted by name. They must not be changed.
func (w *world) all(kind string) []client.Object { return w.store.all(kind) }

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
		left:  -1, budget: w.budget, features: w.features, rejects: w.rejects, ledger: w.ledger.clone(),
	}
	c.store = newAPIServer(w.store.everything())
	c.start()
	remember(w.manager, c.manager)
	return c
}
