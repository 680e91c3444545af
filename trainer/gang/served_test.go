package gang

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	schedulingv1alpha2 "k8s.io/api/scheduling/v1alpha2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache/informertest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

func TestSelector(t *testing.T) {
	if !Selector().Matches(labels.Set{partLabel: partLater}) || Selector().Matches(labels.Set{"other": "label"}) {
		t.Errorf("the selector matches what this package creates: got %s", Selector())
	}
}

// ownedPodGroup returns a PodGroup that TrainJob train controls. status is that of its condition; "" for none.
func ownedPodGroup(t *testing.T, name string, status metav1.ConditionStatus) *unstructured.Unstructured {
	t.Helper()
	pg := &schedulingv1alpha2.PodGroup{ObjectMeta: metav1.ObjectMeta{
		Namespace: "team", Name: name, UID: types.UID(name), Labels: map[string]string{partLabel: partFirst},
		OwnerReferences: []metav1.OwnerReference{{
			APIVersion: "trainer.kubeflow.org/v1alpha1", Kind: "TrainJob", Name: "train", Controller: new(true),
		}},
	}}
	if status != "" {
		pg.Status.Conditions = []metav1.Condition{{
			Type: schedulingv1alpha2.PodGroupScheduled, Status: status, LastTransitionTime: metav1.Now(),
		}}
	}
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(pg)
	if err != nil {
		t.Fatal(err)
	}
	return &unstructured.Unstructured{Object: content}
}

// received returns the TrainJobs that were sent to Changed, as "namespace/name"s.
func received(g *Gangs) string {
	var all []string
	for {
		select {
		case e := <-g.Changed():
			all = append(all, client.ObjectKeyFromObject(e.Object).String())
		case <-time.After(20 * time.Millisecond):
			return strings.Join(all, " ")
		}
	}
}

func TestPodGroupHandler(t *testing.T) {
	c := newCluster(t, api.GangRequired)
	c.changed = make(chan event.GenericEvent, 10)
	h := c.podGroupHandler(t.Context(), v1alpha2)
	key := types.NamespacedName{Namespace: "team", Name: "a"}
	refused, placed := ownedPodGroup(t, "a", metav1.ConditionFalse), ownedPodGroup(t, "a", metav1.ConditionTrue)
	stranger := ownedPodGroup(t, "b", "")
	stranger.SetOwnerReferences(nil)

	c.created.Store(key, nil)
	h.OnAdd(refused, false)
	if _, created := c.created.Load(key); created || received(c.Gangs) != "team/train" {
		t.Error("a new PodGroup is in the cache, and its TrainJob has changed")
	}
	c.unplaced.set(key, true)
	if got := testutil.ToFloat64(gangsUnschedulable); got != 1 {
		t.Errorf("a refused PodGroup is counted: got %v", got)
	}
	h.OnUpdate(refused, refused.DeepCopy())
	h.OnAdd(stranger, false)
	if got := received(c.Gangs); got != "" {
		t.Errorf("no change, and no PodGroup of others, matters: got %s", got)
	}
	h.OnUpdate(refused, placed)
	if got := received(c.Gangs); got != "team/train" {
		t.Errorf("a placed PodGroup is a change: got %q", got)
	}
	h.OnUpdate(placed, refused)
	c.deleted.Store(types.UID("a"), nil)
	h.OnDelete(toolscache.DeletedFinalStateUnknown{Obj: refused})
	if _, deleted := c.deleted.Load(types.UID("a")); deleted || received(c.Gangs) != "team/train team/train" {
		t.Error("a deleted PodGroup is not in the cache, and its TrainJob has changed")
	}
	c.unplaced.set(key, true) // by a reconcile that has read it before
	if got := testutil.ToFloat64(gangsUnschedulable); got != 0 {
		t.Errorf("a deleted PodGroup is not counted: got %v", got)
	}
	h.OnDelete(toolscache.DeletedFinalStateUnknown{})
	if got := received(c.Gangs); got != "" {
		t.Errorf("an unknown state is ignored: got %s", got)
	}
}

func TestNotifyEnds(t *testing.T) {
	c := newCluster(t, api.GangRequired)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	c.notify(ctx, ownedPodGroup(t, "a", "")) // without a receiver
}

func TestWatch(t *testing.T) {
	c := newCluster(t, api.GangRequired)
	informers := newFakeCache(-1)
	c.newCache = func() (cache.Cache, error) { return informers, nil }
	c.created.Store("a", nil)
	c.changed = make(chan event.GenericEvent, 10)
	s, err := c.watch(t.Context(), v1alpha2)
	if err != nil {
		t.Fatal(err)
	}
	defer s.stop()
	if _, created := c.created.Load("a"); created || !s.synced(t.Context()) {
		t.Error("a new cache shows all that exists")
	}
	workloads, err := informers.FakeInformerFor(t.Context(), &schedulingv1alpha2.Workload{})
	if err != nil {
		t.Fatal(err)
	}
	workload := s.emptyWorkload()
	workload.Namespace, workload.UID = "team", "w"
	workload.OwnerReferences = ownedPodGroup(t, "w", "").GetOwnerReferences()
	workloads.Add(workload)
	c.deleted.Store(workload.UID, nil)
	workloads.Delete(workload)
	if _, deleted := c.deleted.Load(workload.UID); deleted || received(c.Gangs) != "team/train" {
		t.Error("a Workload without PodGroups is reconciled, and forgotten after its deletion")
	}
	podGroups, err := informers.FakeInformerFor(t.Context(), v1alpha2.object("PodGroup", types.NamespacedName{}))
	if err != nil {
		t.Fatal(err)
	}
	podGroups.Add(ownedPodGroup(t, "a", ""))
	if got := received(c.Gangs); got != "team/train" {
		t.Errorf("PodGroups are followed: got %q", got)
	}
}

// fakeCache fails at IndexField for 0, at the nth GetInformer for n, and never for -1.
type fakeCache struct {
	*informertest.FakeInformers
	at, asked int
}

func newFakeCache(at int) *fakeCache {
	return &fakeCache{FakeInformers: &informertest.FakeInformers{}, at: at}
}

func (f *fakeCache) IndexField(context.Context, client.Object, string, client.IndexerFunc) error {
	if f.at == 0 {
		return errors.New("broken")
	}
	return nil
}

func (f *fakeCache) GetInformer(ctx context.Context, o client.Object, options ...cache.InformerGetOption) (
	cache.Informer, error) {
	if f.asked++; f.asked == f.at {
		return nil, errors.New("broken")
	}
	if _, ok := o.(*metav1.PartialObjectMetadata); ok {
		o = &schedulingv1alpha2.Workload{} // FakeInformers knows only kinds of the scheme
	}
	return f.FakeInformers.GetInformer(ctx, o, options...)
}

func TestWatchFails(t *testing.T) {
	c := newCluster(t, api.GangRequired)
	for at := range 3 {
		c.newCache = func() (cache.Cache, error) {
			return newFakeCache(at), nil
		}
		_, err := c.watch(t.Context(), v1alpha2)
		if err == nil || err.Error() != "watching PodGroups of scheduling.k8s.io/v1alpha2: broken" {
			t.Errorf("got %v", err)
		}
	}
	c.newCache = func() (cache.Cache, error) { return nil, errors.New("no mapper") }
	if _, err := c.watch(t.Context(), v1alpha2); err == nil ||
		err.Error() != "creating a cache of PodGroups: no mapper" {
		t.Errorf("got %v", err)
	}
}

func TestStates(t *testing.T) {
	if (podGroupState{}).placed() || (podGroupState{}).refused() {
		t.Error("kube-scheduler has not tried it yet")
	}
	if got := byOwner(&corev1.Pod{}); got != nil {
		t.Errorf("an object without a controller is in no index: got %v", got)
	}
}
