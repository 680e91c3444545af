package main

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	kueuemetrics "sigs.k8s.io/kueue/pkg/metrics"
	"sigs.k8s.io/kueue/pkg/workload"

	"github.com/signalbox-dev/signalbox/admission/grow"
	"github.com/signalbox-dev/signalbox/integration"
)

const gpu = corev1.ResourceName("nvidia.com/gpu")

var noon = time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)

// roomCluster is a ClusterQueue of ten GPUs, three of which a TrainJob has that may grow to eight.
type roomCluster struct {
	t       *testing.T
	objects []client.Object
	slice   *kueue.Workload
	lists   []string // of what was asked of the API server
	fails   bool
	clock   *clocktesting.FakePassiveClock
}

func newRoomCluster(t *testing.T, others ...client.Object) *roomCluster {
	cq := &kueue.ClusterQueue{ObjectMeta: metav1.ObjectMeta{Name: "cluster"}}
	cq.Spec.NamespaceSelector = &metav1.LabelSelector{}
	cq.Spec.ResourceGroups = []kueue.ResourceGroup{{CoveredResources: []corev1.ResourceName{gpu},
		Flavors: []kueue.FlavorQuotas{{Name: "a", Resources: []kueue.ResourceQuota{
			{Name: gpu, NominalQuota: resource.MustParse("10")}}}}}}
	grows := holding("team", "grows", 3)
	slice := grow.Want{PodSet: "node", Have: 3, Least: 4, Most: 8}.Slice(grows, 8, 3)
	slice.Name = "slice"
	c := &roomCluster{t: t, slice: slice, clock: clocktesting.NewFakePassiveClock(noon)}
	c.objects = append([]client.Object{cq, grows, localQueue("team", "cluster"),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team"}},
		&kueue.ResourceFlavor{ObjectMeta: metav1.ObjectMeta{Name: "a"}},
		&nodev1.RuntimeClass{ObjectMeta: metav1.ObjectMeta{Name: "kata"}, Handler: "kata"}}, others...)
	return c
}

// room returns what answers by this cluster.
func (c *roomCluster) room() *room {
	scheme, err := newScheme(nodev1.AddToScheme)
	if err != nil {
		c.t.Fatal(err)
	}
	cached := fake.NewClientBuilder().WithScheme(scheme).WithObjects(c.objects...).Build()
	live := interceptor.NewClient(cached, interceptor.Funcs{
		List: func(
			ctx context.Context, below client.WithWatch, list client.ObjectList, options ...client.ListOption,
		) error {
			if c.fails {
				return errors.New("no answer")
			}
			c.lists = append(c.lists, (&client.ListOptions{}).ApplyOptions(options).Namespace)
			return below.List(ctx, list, options...)
		},
	})
	return &room{cached: cached, live: live, clock: c.clock, within: time.Minute}
}

func localQueue(namespace, clusterQueue string) *kueue.LocalQueue {
	lq := &kueue.LocalQueue{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "queue"}}
	lq.Spec.ClusterQueue = kueue.ClusterQueueReference(clusterQueue)
	return lq
}

// holding is a Workload that holds quota for so many of its eight pods.
func holding(namespace, name string, count int32) *kueue.Workload {
	wl := &kueue.Workload{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	wl.Spec.QueueName, wl.Spec.Active = "queue", ptr.To(true)
	wl.Spec.PodSets = []kueue.PodSet{{Name: "node", Count: 8, MinCount: ptr.To[int32](2)}}
	wl.Spec.PodSets[0].Template.Spec.RuntimeClassName = ptr.To("kata")
	one := corev1.ResourceRequirements{Requests: corev1.ResourceList{gpu: resource.MustParse("1")}}
	wl.Spec.PodSets[0].Template.Spec.Containers = []corev1.Container{{Name: "node", Resources: one}}
	workload.SetQuotaReservation(wl, &kueue.Admission{ClusterQueue: "cluster",
		PodSetAssignments: []kueue.PodSetAssignment{{Name: "node", Count: &count,
			Flavors:       map[corev1.ResourceName]kueue.ResourceFlavorReference{gpu: "a"},
			ResourceUsage: corev1.ResourceList{gpu: *resource.NewQuantity(int64(count), resource.DecimalSI)}}},
	}, clocktesting.NewFakeClock(noon))
	workload.SyncAdmittedCondition(wl, noon)
	return wl
}

// TestRoom holds how many pods a slice would be admitted with, by all that the API server has of its ClusterQueue, and
// by nothing else: what other namespaces have isn't read.
func TestRoom(t *testing.T) {
	for name, c := range map[string]struct {
		others []client.Object
		fails  bool
		most   int32
		lists  []string
	}{
		"alone":        {nil, false, 8, []string{"team"}},
		"with another": {[]client.Object{holding("team", "other", 4)}, false, 6, []string{"team"}},
		"no room":      {[]client.Object{holding("team", "other", 7)}, false, 0, []string{"team"}},
		"no answer":    {nil, true, 0, nil},
		"of another namespace": {[]client.Object{localQueue("guests", "cluster"), holding("guests", "other", 4),
			&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "guests"}}}, false, 6, []string{"guests", "team"}},
		"in another ClusterQueue": {[]client.Object{localQueue("others", "else")}, false, 8, []string{"team"}},
	} {
		t.Run(name, func(t *testing.T) {
			cluster := newRoomCluster(t, c.others...)
			cluster.fails = c.fails
			got, err := cluster.room().Most(t.Context(), cluster.slice, "node", 4)
			if got != c.most || (err != nil) != c.fails {
				t.Errorf("got %d, %v; want %d", got, err, c.most)
			}
			if slices.Sort(cluster.lists); !slices.Equal(cluster.lists, c.lists) {
				t.Errorf("lists Workloads of %v, want %v", cluster.lists, c.lists)
			}
		})
	}
}

// TestSimulationIsNotMeasured holds that the manager's metrics have what Kueue's library says of TrainJobs, and nothing
// of Workloads that Kueue's scheduler has admitted in a simulation only.
func TestSimulationIsNotMeasured(t *testing.T) {
	registry := prometheus.NewRegistry()
	registerKueueMetrics(registry)
	c := newRoomCluster(t)
	if most, err := c.room().Most(t.Context(), c.slice, "node", 4); err != nil || most != 8 {
		t.Fatalf("got %d, %v", most, err)
	}
	kueuemetrics.ReadyWaitTime("cluster", "", time.Second, nil, nil)
	kueuemetrics.ReportAdmittedUntilReadyWaitTime("cluster", "", time.Second, nil, nil)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, family := range families {
		names = append(names, family.GetName())
	}
	want := []string{"kueue_admitted_until_ready_wait_time_seconds", "kueue_ready_wait_time_seconds"}
	if !slices.Equal(names, want) {
		t.Errorf("got %v, want %v", names, want)
	}
}

// TestRoomIsBounded holds that one question at a time is answered, that nobody waits for that, and that a ClusterQueue
// of which it takes too long isn't asked about for a while.
func TestRoomIsBounded(t *testing.T) {
	c := newRoomCluster(t)
	r := c.room()
	ask := func() error {
		c.lists = nil
		_, err := r.Most(t.Context(), c.slice, "node", 4)
		return err
	}
	r.mu.Lock()
	if err := ask(); !errors.Is(err, integration.ErrRoomBusy) || c.lists != nil {
		t.Errorf("got %v, lists %v", err, c.lists)
	}
	r.mu.Unlock()
	r.within = time.Nanosecond
	if err := ask(); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("it takes too long: got %v", err)
	}
	r.within = time.Minute
	if err := ask(); err == nil || c.lists != nil {
		t.Errorf("it isn't tried again at once: got %v, lists %v", err, c.lists)
	}
	c.clock.SetTime(noon.Add(slowFor))
	if err := ask(); err != nil || c.lists == nil {
		t.Errorf("it is tried again: got %v", err)
	}
}
