package integration

import (
	"context"
	"errors"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/workqueue"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/event"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/controller/jobframework"

	"github.com/signalbox-dev/signalbox/admission/avoid"
	configapi "github.com/signalbox-dev/signalbox/api/config/v1alpha1"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/integration/managed"
	"github.com/signalbox-dev/signalbox/overrides/dialect"
	"github.com/signalbox-dev/signalbox/store"
)

var errDown = errors.New("the API server doesn't answer")

func kinds(t *testing.T) *runtime.Scheme {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		clientgoscheme.AddToScheme, api.AddToScheme, jobset.AddToScheme, kueue.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	return scheme
}

// cluster returns a cache of objects; reads of the kind "down" fail.
func cluster(t *testing.T, down string, objects ...client.Object) client.WithWatch {
	t.Helper()
	fails := func(o any) error {
		if name := reflect.TypeOf(o).Elem().Name(); down != "" && strings.TrimSuffix(name, "List") == down {
			return errDown
		}
		return nil
	}
	return fake.NewClientBuilder().WithScheme(kinds(t)).WithObjects(objects...).
		WithIndex(&kueue.Workload{}, jobframework.OwnerReferenceIndexKey(managed.Kind), func(o client.Object) []string {
			return []string{o.GetOwnerReferences()[0].Name}
		}).
		WithIndex(&api.TrainJob{}, runtimeIndex, func(o client.Object) []string {
			ref := o.(*api.TrainJob).Spec.RuntimeRef
			return []string{runtimeKey(ptr.Deref(ref.Kind, ""), ref.Name)}
		}).
		WithInterceptorFuncs(interceptor.Funcs{
			Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object,
				opts ...client.GetOption) error {
				if err := fails(o); err != nil {
					return err
				}
				return c.Get(ctx, key, o, opts...)
			},
			List: func(ctx context.Context, c client.WithWatch, l client.ObjectList, opts ...client.ListOption) error {
				if err := fails(l); err != nil {
					return err
				}
				return c.List(ctx, l, opts...)
			},
		}).Build()
}

// trainJobIn returns a TrainJob that refers to ClusterTrainingRuntime torch.
func trainJobIn(namespace, name string, change ...func(*api.TrainJob)) *api.TrainJob {
	job := &api.TrainJob{}
	job.Namespace, job.Name, job.UID, job.Spec.Suspend = namespace, name, "uid", ptr.To(true)
	job.Spec.RuntimeRef = trainerapi.RuntimeRef{Kind: ptr.To(trainerapi.ClusterTrainingRuntimeKind), Name: "torch"}
	for _, c := range change {
		c(job)
	}
	return job
}

func runningJob(job *api.TrainJob) { job.Spec.Suspend = ptr.To(false) }

func endedJob(job *api.TrainJob) {
	runningJob(job)
	job.Status.Conditions = []metav1.Condition{is(trainerapi.TrainJobComplete, 0)}
}

func TestJobOf(t *testing.T) {
	holds := observation(dialect.Bundled, isAdmitted(0)).workloads.own[0]
	waits := observation(dialect.Bundled).workloads.own[0]
	cases := map[string]struct {
		reason  string
		objects []client.Object
		down    string
		gang    bool
		phase   corev1.PodPhase
		want    bool
	}{
		"stops": {reason: "its quota is held for its pods", want: true,
			objects: []client.Object{trainJobIn("ns", "job")}},
		"runs":          {reason: "nothing waits for the end", objects: []client.Object{trainJobIn("ns", "job", runningJob)}},
		"runs, gang":    {reason: "the pod may have to be replaced", gang: true, phase: corev1.PodFailed, want: true},
		"succeeds":      {reason: "it won't be replaced", gang: true, phase: corev1.PodSucceeded},
		"gone":          {reason: "it holds no quota"},
		"gone, waits":   {reason: "it holds no quota", objects: []client.Object{waits}},
		"gone, quota":   {reason: "its quota is held for its pods", objects: []client.Object{holds}, want: true},
		"ended, quota":  {reason: "the same", objects: []client.Object{trainJobIn("ns", "job", endedJob), holds}, want: true},
		"unreadable":    {reason: "it may matter", down: "TrainJob", want: true},
		"quota unknown": {reason: "it may matter", down: "Workload", want: true},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "pod",
				Labels: map[string]string{jobset.JobSetNameKey: "job"}}}
			pod.Status.Phase = c.phase
			if c.gang {
				pod.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{}
			}
			r := &Reconciler{observer: observer{reads: reads{client: cluster(t, c.down, c.objects...)}}}
			got := r.jobOf(t.Context(), pod)
			key := types.NamespacedName{Namespace: "ns", Name: "job"}
			if len(got) > 0 != c.want || c.want && got[0].NamespacedName != key {
				t.Errorf("%s: got %v", c.reason, got)
			}
		})
	}
}

// TestAsItIs holds that a pod of a gang that succeeds has its TrainJob reconciled for none of its versions: a TrainJob
// may have thousands.
func TestAsItIs(t *testing.T) {
	stored := cluster(t, "", trainJobIn("ns", "job", runningJob))
	r := &Reconciler{observer: observer{reads: reads{client: stored}}}
	pods := asItIs(r.jobOf)
	in := func(phase corev1.PodPhase) *corev1.Pod {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "pod",
			Labels: map[string]string{jobset.JobSetNameKey: "job"}}}
		pod.Spec.SchedulingGroup, pod.Status.Phase = &corev1.PodSchedulingGroup{}, phase
		return pod
	}
	for phase, want := range map[corev1.PodPhase]int{corev1.PodSucceeded: 0, corev1.PodFailed: 1} {
		q := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
		pods.Update(t.Context(), event.UpdateEvent{ObjectOld: in(corev1.PodRunning), ObjectNew: in(phase)}, q)
		if q.Len() != want {
			t.Errorf("%s: %d are in the queue, want %d", phase, q.Len(), want)
		}
		q.ShutDown()
	}
}

func TestWaitingJobsOf(t *testing.T) {
	other := func(job *api.TrainJob) { job.Spec.RuntimeRef.Name = "other" }
	stored := cluster(t, "", trainJobIn("a", "waits"), trainJobIn("b", "waits"), trainJobIn("a", "runs", runningJob),
		trainJobIn("a", "other", other))
	r := &Reconciler{observer: observer{reads: reads{client: stored}}}
	torch := &api.ClusterTrainingRuntime{ObjectMeta: metav1.ObjectMeta{Name: "torch"}}
	got := r.waitingJobsOf(trainerapi.ClusterTrainingRuntimeKind)(t.Context(), torch)
	want := []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: "a", Name: "waits"}},
		{NamespacedName: types.NamespacedName{Namespace: "b", Name: "waits"}}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("those that wait follow their runtime: got %v", got)
	}
	namespaced := &api.TrainingRuntime{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "torch"}}
	if got := r.waitingJobsOf(trainerapi.TrainingRuntimeKind)(t.Context(), namespaced); got != nil {
		t.Errorf("nobody refers to it: got %v", got)
	}
	r.client = cluster(t, "TrainJob", trainJobIn("a", "waits"))
	if got := r.waitingJobsOf(trainerapi.ClusterTrainingRuntimeKind)(t.Context(), torch); got != nil {
		t.Errorf("they can't be listed: got %v", got)
	}
}

func TestPodEnds(t *testing.T) {
	p := podEnds()
	alive, ended := &corev1.Pod{}, &corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodFailed}}
	if p.Create(event.CreateEvent{Object: ended}) || p.Generic(event.GenericEvent{Object: ended}) {
		t.Error("a new pod ends nothing")
	}
	if !p.Delete(event.DeleteEvent{Object: alive}) {
		t.Error("a pod that is gone does")
	}
	if !p.Update(event.UpdateEvent{ObjectOld: alive, ObjectNew: ended}) ||
		p.Update(event.UpdateEvent{ObjectOld: ended, ObjectNew: ended}) ||
		p.Update(event.UpdateEvent{ObjectOld: alive, ObjectNew: alive}) {
		t.Error("so does one that ends, once")
	}
	waits := &corev1.Pod{Status: corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: avoid.Condition, Reason: "x"}}}}
	if !p.Create(event.CreateEvent{Object: waits}) || !p.Update(event.UpdateEvent{ObjectOld: alive, ObjectNew: waits}) ||
		p.Update(event.UpdateEvent{ObjectOld: waits, ObjectNew: waits}) {
		t.Error("so does one that shows a broken node, once")
	}
}

// TestReadWatched holds that nobody watches nodes who doesn't avoid any.
func TestReadWatched(t *testing.T) {
	for avoidFor, want := range map[time.Duration]bool{0: false, time.Hour: true} {
		p := policy{Patience: Patience{Avoid: avoid.Policy{For: avoidFor}}}
		watched := slices.ContainsFunc(p.readWatched(), func(o client.Object) bool {
			_, node := o.(*corev1.Node)
			return node
		})
		if watched != want {
			t.Errorf("%s: nodes are watched: %t, want %t", avoidFor, watched, want)
		}
	}
}

func TestSooner(t *testing.T) {
	after := func(d time.Duration) reconcile.Result { return reconcile.Result{RequeueAfter: d} }
	for _, c := range [][3]time.Duration{{0, 0, 0}, {0, 5, 5}, {5, 0, 5}, {5, 3, 3}, {3, 5, 3}} {
		if got := sooner(after(c[0]), after(c[1])); got.RequeueAfter != c[2] {
			t.Errorf("of %d and %d: got %d", c[0], c[1], got.RequeueAfter)
		}
	}
}

// nobody is run after each reconcile.
type nobody struct{}

func (nobody) ReconcileAfter(context.Context, reconcile.Request, bool) (reconcile.Result, error) {
	return reconcile.Result{}, nil
}

func (nobody) Changed() <-chan event.GenericEvent { return make(chan event.GenericEvent) }

func TestSetupWithManager(t *testing.T) {
	scheme := kinds(t)
	mapper := meta.NewDefaultRESTMapper(nil)
	for kind := range scheme.AllKnownTypes() {
		mapper.Add(kind, meta.RESTScopeNamespace)
	}
	for _, d := range []*dialect.Dialect{dialect.Bundled, dialect.Kubeflow23} {
		mgr, err := ctrl.NewManager(&rest.Config{Host: "http://127.0.0.1:1"}, ctrl.Options{
			Scheme: scheme, Metrics: metricsserver.Options{BindAddress: "0"},
			Controller:     config.Controller{SkipNameValidation: ptr.To(true)},
			MapperProvider: func(*rest.Config, *http.Client) (meta.RESTMapper, error) { return mapper, nil },
		})
		if err != nil {
			t.Fatal(err)
		}
		r, err := reconcilerOf(t, d, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := r.SetupWithManager(t.Context(), mgr, 1, nobody{}); err != nil {
			t.Errorf("%s: got %v", d.Name, err)
		}
	}
}

// reconcilerOf returns a Reconciler on an empty cluster.
func reconcilerOf(t *testing.T, d *dialect.Dialect, change func(*configapi.Kueue)) (*Reconciler, error) {
	c, clk := cluster(t, ""), clocktesting.NewFakeClock(now)
	kueueConfig := &configapi.Default().Kueue
	if change != nil {
		change(kueueConfig)
	}
	return NewReconciler(Config{Client: c, Reader: c, Store: store.New(c, c, clk, d == dialect.Bundled),
		Kueue: kueueConfig, Trainer: d, Clock: clk})
}

func TestNewReconciler(t *testing.T) {
	for want, change := range map[string]func(*configapi.Kueue){
		"": func(k *configapi.Kueue) {
			k.WaitForPodsReady, k.AfterDeactivated = new(true), &metav1.Duration{Duration: time.Hour}
			k.OwnerKinds = []string{"Job.v1.batch"}
		},
		`kueue.ownerKinds[0] is "Job"; write Kind.version.group`: func(k *configapi.Kueue) { k.OwnerKinds = []string{"Job"} },
		"kueue.managedJobsNamespaceSelector: ": func(k *configapi.Kueue) {
			k.ManagedJobsNamespaceSelector = &metav1.LabelSelector{
				MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Like"}}}
		},
	} {
		r, err := reconcilerOf(t, dialect.Bundled, change)
		if (err != nil) != (want != "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
		if err == nil && !reflect.DeepEqual(r.policy.managed.OwnerKinds, []schema.GroupVersionKind{
			{Group: "batch", Version: "v1", Kind: "Job"}}) {
			t.Errorf("got %v", r.policy.managed.OwnerKinds)
		}
	}
}

func TestPrepareProcess(t *testing.T) {
	config := &configapi.Default().Kueue
	config.OwnerKinds = []string{"Thing.v1.example.com"}
	if err := Prepare(config); err != nil {
		t.Errorf("the defaults are valid: got %v", err)
	}
	config.OwnerKinds = []string{"Thing"}
	if err := Prepare(config); err == nil || !strings.Contains(err.Error(), "kueue.ownerKinds[0]: ") {
		t.Errorf("the kind has no group: got %v", err)
	}
	config.FeatureGates = map[string]bool{"NoSuchGate": true}
	if err := Prepare(config); err == nil || !strings.Contains(err.Error(), "kueue.featureGates: ") {
		t.Errorf("Kueue doesn't have the gate: got %v", err)
	}
}
