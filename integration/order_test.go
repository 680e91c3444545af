package integration

import (
	"context"
	"fmt"
	"testing"
	"time"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/controller/jobframework"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// What holds quota is looked at before what only waits, whenever it came, and what came first among equals.
func TestHoldersFirst(t *testing.T) {
	queue := priorityqueue.New[reconcile.Request]("test")
	defer queue.ShutDown()
	h := holdersFirst{&handler.EnqueueRequestForObject{}, newCrowds()}
	trainJob := func(name string, suspend bool) *api.TrainJob {
		job := &api.TrainJob{ObjectMeta: metav1.ObjectMeta{Name: name}}
		job.Spec.Suspend = ptr.To(suspend)
		return job
	}
	reserved := &kueue.Workload{ObjectMeta: metav1.ObjectMeta{Name: "has quota"}}
	apimeta.SetStatusCondition(&reserved.Status.Conditions, metav1.Condition{Type: kueue.WorkloadQuotaReserved, Status: metav1.ConditionTrue, Reason: "QuotaReserved"})
	admitted := reserved.DeepCopy()
	admitted.Name = "admitted"
	apimeta.SetStatusCondition(&admitted.Status.Conditions, metav1.Condition{Type: kueue.WorkloadAdmitted, Status: metav1.ConditionTrue, Reason: "Admitted"})
	runs := admitted.DeepCopy()
	runs.Name = "was admitted before"
	ended := trainJob("ended before the restart", false)
	apimeta.SetStatusCondition(&ended.Status.Conditions, metav1.Condition{Type: trainerapi.TrainJobComplete, Status: metav1.ConditionTrue, Reason: "JobsCompleted"})
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
	if err := wait.PollUntilContextTimeout(ctx, time.Millisecond, time.Minute, true, func(context.Context) (bool, error) { return queue.Len() == 9, nil }); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"admitted", "ran before the restart", "runs", "has quota", "was admitted before", "ends", "waits", "ended before the restart", "waited before the restart"} {
		item, _ := queue.Get()
		if item.Name != want {
			t.Errorf("got %q, want %q", item.Name, want)
		}
		queue.Done(item)
	}
}

// A namespace with many waiting TrainJobs doesn't delay another, and keeps its own order.
func TestCrowds(t *testing.T) {
	queue := priorityqueue.New[reconcile.Request]("test")
	defer queue.ShutDown()
	crowds := newCrowds()
	h := holdersFirst{&handler.EnqueueRequestForObject{}, crowds}
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
	if err := wait.PollUntilContextTimeout(t.Context(), time.Millisecond, time.Minute, true, func(context.Context) (bool, error) { return queue.Len() == many+1, nil }); err != nil {
		t.Fatal(err)
	}
	next, last := 0, -1
	for n := range many + 1 {
		item, _ := queue.Get()
		crowds.took(item)
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
	if last < 0 || last > crowdSize {
		t.Errorf("the other namespace's TrainJob comes after %d of the crowd, want at most %d", last, crowdSize)
	}
	if item, _ := queue.Get(); item.Name != fmt.Sprintf("%05d", many) {
		t.Errorf("the last is %s", item.Name)
	} else if crowds.took(item); len(crowds.queued) != 0 {
		t.Errorf("an empty queue has no crowds: %v", crowds.queued)
	}
}

func TestPlaced(t *testing.T) {
	later, first := reconcile.Result{RequeueAfter: time.Second, Priority: ptr.To(laterPriority)}, ptr.To(holderPriority)
	cases := map[string]struct {
		reason string
		result reconcile.Result
		err    error
		want   reconcile.Result
	}{
		"done":           {"nothing brings it back", reconcile.Result{}, nil, reconcile.Result{}},
		"a time":         {"a deadline doesn't inherit the place of a status", reconcile.Result{RequeueAfter: time.Second}, nil, reconcile.Result{RequeueAfter: time.Second, Priority: first}},
		"later":          {"nobody waits for it", later, nil, later},
		"failed":         {"it keeps the place that it had", reconcile.Result{}, context.DeadlineExceeded, reconcile.Result{}},
		"failed, status": {"a failed start doesn't take the place of a status", later, context.DeadlineExceeded, reconcile.Result{}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			if got := placed(c.result, c.err); got.RequeueAfter != c.want.RequeueAfter || !ptr.Equal(got.Priority, c.want.Priority) {
				t.Errorf("%s: got %+v, want %+v", c.reason, got, c.want)
			}
		})
	}
}

// The finalizer of a finished job's Workload goes after a while, or when the Workload is deleted.
func TestLetGo(t *testing.T) {
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	cases := map[string]struct {
		reason     string
		finished   bool
		ended      time.Duration // ago; 0 is not
		noFinal    bool
		deleted    bool
		declared   time.Duration // ago; 0 is not
		done, gone bool
		again      time.Duration
		others     int
		looks      time.Duration // since the manager has begun to look
	}{
		"just now":                  {"nobody waits for it", true, 10 * time.Second, false, false, 3 * time.Second, true, false, 50 * time.Second, 0, time.Hour},
		"a while ago":               {"it is let go", true, 2 * time.Minute, false, false, 0, true, true, 0, 0, time.Hour},
		"others have not ended":     {"the burst is not over", true, 2 * time.Minute, false, false, 0, true, false, 40 * time.Second, 500, time.Hour},
		"very many have not":        {"it keeps it for ten minutes", true, 10 * time.Minute, false, false, 0, true, true, 0, 10000, time.Hour},
		"after a restart":           {"what was admitted meanwhile comes first", true, 2 * time.Minute, false, false, 0, true, false, 45 * time.Second, 0, 15 * time.Second},
		"deleted after it":          {"whoever deletes it waits", true, 2 * time.Minute, false, true, 0, true, true, 0, 0, 15 * time.Second},
		"deleted":                   {"whoever deletes it waits", true, 10 * time.Second, false, true, 0, true, true, 0, 0, time.Hour},
		"let go before":             {"nothing is left to do", true, 2 * time.Minute, true, false, 0, true, true, 0, 0, time.Hour},
		"declared, not seen yet":    {"a late cache doesn't declare it twice", true, 0, false, false, 3 * time.Second, true, false, 7 * time.Second, 0, time.Hour},
		"declared, and overwritten": {"Kueue's patch from a stale cache drops the condition", true, 0, false, false, 11 * time.Second, false, false, 0, 0, time.Hour},
		"not declared":              {"jobframework declares it", true, 0, false, false, 0, false, false, 0, 0, time.Hour},
		"ended by somebody":         {"jobframework lets go what was never finished", false, 10 * time.Second, false, false, 0, false, false, 0, 0, time.Hour},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			j := &job{}
			j.Namespace, j.Name, j.UID = "ns", "job", "uid"
			j.Spec.Suspend = ptr.To(!c.finished)
			if c.finished {
				apimeta.SetStatusCondition(&j.Status.Conditions, metav1.Condition{Type: trainerapi.TrainJobComplete, Status: metav1.ConditionTrue, Reason: "JobsCompleted"})
			}
			wl := &kueue.Workload{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "wl", Finalizers: []string{"other.example.com/a"}}}
			wl.OwnerReferences = []metav1.OwnerReference{{APIVersion: trainerapi.GroupVersion.String(), Kind: trainerapi.TrainJobKind, Name: "job", UID: "uid", Controller: ptr.To(true)}}
			if !c.noFinal {
				wl.Finalizers = append(wl.Finalizers, kueue.ResourceInUseFinalizerName)
			}
			if c.ended > 0 {
				apimeta.SetStatusCondition(&wl.Status.Conditions, metav1.Condition{
					Type: kueue.WorkloadFinished, Status: metav1.ConditionTrue, Reason: kueue.WorkloadFinishedReasonSucceeded, LastTransitionTime: metav1.NewTime(now.Add(-c.ended))})
			}
			scheme := runtime.NewScheme()
			if err := kueue.AddToScheme(scheme); err != nil {
				t.Fatal(err)
			}
			fakes := fake.NewClientBuilder().WithScheme(scheme).WithObjects(wl).WithIndex(&kueue.Workload{}, jobframework.OwnerReferenceIndexKey(gvk), func(o client.Object) []string { return []string{o.GetOwnerReferences()[0].Name} }).Build()
			ctx := context.Background()
			if c.deleted {
				if err := fakes.Delete(ctx, wl); err != nil {
					t.Fatal(err)
				}
			}
			j.r = &Reconciler{clock: clocktesting.NewFakeClock(now), memory: newMemory()}
			j.r.memory.look(j.key(), j.UID, c.finished, now.Add(-c.looks))
			if c.declared > 0 {
				j.r.memory.keep(j.key(), j.UID, func(r *record) { r.finished = now.Add(-c.declared) })
			}
			for i := range c.others {
				j.r.memory.look(types.NamespacedName{Name: fmt.Sprint(i)}, "uid", false, now)
			}
			done, err := j.done(ctx, fakes)
			if err != nil || done != c.done || j.again != c.again {
				t.Errorf("%s: got done %v, again after %v, error %v; want %v, %v", c.reason, done, j.again, err, c.done, c.again)
			}
			if err := fakes.Get(ctx, client.ObjectKeyFromObject(wl), wl); err != nil {
				t.Fatal(err)
			}
			if gone := len(wl.Finalizers) == 1; gone != c.gone {
				t.Errorf("%s: got finalizers %v", c.reason, wl.Finalizers)
			}
		})
	}
}

func TestLoadLooks(t *testing.T) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{api.AddToScheme, kueue.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	ended, deleted := &api.TrainJob{}, metav1.Now()
	ended.Namespace, ended.Name, ended.UID = "ns", "ended", "uid"
	ended.DeletionTimestamp, ended.Finalizers = &deleted, []string{"other.example.com/a"} // it reads no more of it
	other := ended.DeepCopy()
	other.Name = "other"
	apimeta.SetStatusCondition(&ended.Status.Conditions, metav1.Condition{Type: trainerapi.TrainJobComplete, Status: metav1.ConditionTrue, Reason: "JobsCompleted"})
	fakes, now := fake.NewClientBuilder().WithScheme(scheme).WithObjects(ended, other).WithIndex(&kueue.Workload{}, jobframework.OwnerReferenceIndexKey(gvk), func(client.Object) []string { return nil }).Build(), time.Now()
	r := &Reconciler{client: fakes, clock: clocktesting.NewFakeClock(now), memory: newMemory()}
	for _, o := range []*api.TrainJob{ended, other} {
		key := client.ObjectKeyFromObject(o)
		if _, err := (&job{r: r}).Load(context.Background(), fakes, &key); err != nil {
			t.Fatal(err)
		}
	}
	if others, since := r.memory.unfinished(); others != 1 || !since.Equal(now) {
		t.Errorf("of two that were looked at, one has ended: got %d that have not, since %v", others, since)
	}
}
