package workqueue

import (
	"context"
	"fmt"
	"testing"
	"time"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// await waits until something holds.
func await(t *testing.T, holds func() bool) {
	t.Helper()
	err := wait.PollUntilContextTimeout(t.Context(), time.Millisecond, time.Minute, true,
		func(context.Context) (bool, error) { return holds(), nil })
	if err != nil {
		t.Fatal(err)
	}
}

func is(condition string) metav1.Condition {
	return metav1.Condition{Type: condition, Status: metav1.ConditionTrue}
}

// What holds quota is looked at before what only waits, whenever it came, and what came first among equals.
func TestOrder(t *testing.T) {
	queue := priorityqueue.New[reconcile.Request]("test")
	defer queue.ShutDown()
	h := Order{&handler.EnqueueRequestForObject{}, NewNamespaces()}
	trainJob := func(name string, suspend bool) *api.TrainJob {
		job := &api.TrainJob{ObjectMeta: metav1.ObjectMeta{Name: name}}
		job.Spec.Suspend = ptr.To(suspend)
		return job
	}
	reserved := &kueue.Workload{ObjectMeta: metav1.ObjectMeta{Name: "has quota"}}
	reserved.Status.Conditions = []metav1.Condition{is(kueue.WorkloadQuotaReserved)}
	admitted := reserved.DeepCopy()
	admitted.Name = "admitted"
	admitted.Status.Conditions = append(admitted.Status.Conditions, is(kueue.WorkloadAdmitted))
	runs := admitted.DeepCopy()
	runs.Name = "was admitted before"
	ended := trainJob("ended before the restart", false)
	ended.Status.Conditions = []metav1.Condition{is(trainerapi.TrainJobComplete)}
	ends := ended.DeepCopy()
	ends.Name = "ends"
	ctx := context.Background()
	h.Create(ctx, event.CreateEvent{Object: ended, IsInInitialList: true}, queue)
	h.Create(ctx, event.CreateEvent{Object: trainJob("waited before the restart", true), IsInInitialList: true}, queue)
	h.Create(ctx, event.CreateEvent{Object: trainJob("waits", true)}, queue)
	h.Create(ctx, event.CreateEvent{Object: trainJob("ran before the restart", false), IsInInitialList: true}, queue)
	h.Update(ctx, event.UpdateEvent{ObjectOld: trainJob("runs", true), ObjectNew: trainJob("runs", false)}, queue)
	h.Update(ctx, event.UpdateEvent{ObjectOld: &kueue.Workload{}, ObjectNew: reserved}, queue)
	h.Update(ctx, event.UpdateEvent{ObjectOld: reserved, ObjectNew: admitted}, queue)
	h.Update(ctx, event.UpdateEvent{ObjectOld: runs, ObjectNew: runs}, queue)
	h.Update(ctx, event.UpdateEvent{ObjectOld: trainJob("ends", false), ObjectNew: ends}, queue)
	await(t, func() bool { return queue.Len() == 9 })
	for _, want := range []string{"admitted", "ran before the restart", "runs", "has quota", "was admitted before", "ends",
		"waits", "ended before the restart", "waited before the restart"} {
		item, _ := queue.Get()
		if item.Name != want {
			t.Errorf("got %q, want %q", item.Name, want)
		}
		queue.Done(item)
	}
}

// What shows that quota is held raises its TrainJob, whatever happens to it; other objects don't.
func TestOrderOfObjects(t *testing.T) {
	queue := priorityqueue.New[reconcile.Request]("test")
	defer queue.ShutDown()
	h := Order{&handler.EnqueueRequestForObject{}, NewNamespaces()}
	named := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Name: name} }
	ended := &jobset.JobSet{ObjectMeta: named("3: a JobSet that has ended")}
	ended.Status.TerminalState = string(jobset.JobSetCompleted)
	for _, o := range []client.Object{
		&corev1.Namespace{ObjectMeta: named("2: a namespace")}, ended,
		&jobset.JobSet{ObjectMeta: named("0: a JobSet that runs")}, &corev1.Pod{ObjectMeta: named("1: a pod")},
	} {
		h.Delete(t.Context(), event.DeleteEvent{Object: o}, queue)
	}
	await(t, func() bool { return queue.Len() == 4 })
	for i := range 4 {
		item, priority, _ := queue.GetWithPriority()
		if want := []int{holder, holder, 0, 0}[i]; item.Name[0] != byte('0'+i) || priority != want {
			t.Errorf("%d: got %s with priority %d, want %d", i, item.Name, priority, want)
		}
		queue.Done(item)
	}
	plain := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
	defer plain.ShutDown()
	h.Delete(t.Context(), event.DeleteEvent{Object: &corev1.Pod{ObjectMeta: named("a pod")}}, plain)
	if plain.Len() != 1 {
		t.Error("a queue without priorities gets it, too")
	}
}

// A namespace with many waiting TrainJobs doesn't delay another, and keeps its own order.
func TestNamespaces(t *testing.T) {
	queue := priorityqueue.New[reconcile.Request]("test")
	defer queue.ShutDown()
	namespaces := NewNamespaces()
	h := Order{&handler.EnqueueRequestForObject{}, namespaces}
	add := func(namespace string, n int) {
		job := &api.TrainJob{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprintf("%05d", n)}}
		job.Spec.Suspend = ptr.To(true)
		h.Create(context.Background(), event.CreateEvent{Object: job}, queue)
	}
	const many = 10_000
	for n := range many {
		add("many", n)
	}
	add("few", 0)
	await(t, func() bool { return queue.Len() == many+1 })
	next, last := 0, -1
	for n := range many + 1 {
		item, _ := queue.Get()
		namespaces.Took(item)
		queue.Done(item)
		if item.Namespace == "few" {
			last = n
			continue
		}
		if want := fmt.Sprintf("%05d", next); item.Name != want {
			t.Fatalf("first in, first out: got %s after %d, want %s", item.Name, n, want)
		}
		next++
		if n == many/2 {
			add("many", many) // comes after those that wait, however few they are now
		}
	}
	if last < 0 || last > levelSize {
		t.Errorf("the other namespace's TrainJob comes after %d of the many, want at most %d", last, levelSize)
	}
	if item, _ := queue.Get(); item.Name != fmt.Sprintf("%05d", many) {
		t.Errorf("the last is %s", item.Name)
	} else if namespaces.Took(item); len(namespaces.queued) != 0 {
		t.Errorf("an empty queue has no namespaces: %v", namespaces.queued)
	}
}

func TestPlaced(t *testing.T) {
	later := reconcile.Result{RequeueAfter: time.Second, Priority: ptr.To(Later)}
	first := ptr.To(holder)
	cases := map[string]struct {
		reason string
		result reconcile.Result
		err    error
		want   reconcile.Result
	}{
		"done": {"nothing brings it back", reconcile.Result{}, nil, reconcile.Result{}},
		"a time": {"a deadline doesn't inherit the place of a status", reconcile.Result{RequeueAfter: time.Second}, nil,
			reconcile.Result{RequeueAfter: time.Second, Priority: first}},
		"later":  {"nobody waits for it", later, nil, later},
		"failed": {"it keeps the place that it had", reconcile.Result{}, context.DeadlineExceeded, reconcile.Result{}},
		"failed, status": {"a failed start doesn't take the place of a status", later, context.DeadlineExceeded,
			reconcile.Result{}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			got := Placed(c.result, c.err)
			if got.RequeueAfter != c.want.RequeueAfter || !ptr.Equal(got.Priority, c.want.Priority) {
				t.Errorf("%s: got %+v, want %+v", c.reason, got, c.want)
			}
		})
	}
}
