package integration_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/controller/constants"
	"sigs.k8s.io/kueue/pkg/workload"

	"github.com/signalbox-dev/signalbox/admission/boost"
	configapi "github.com/signalbox-dev/signalbox/api/config/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides/dialect"
)

// TestBoostRoom holds that a boost leaves room to the next priority in use, whatever becomes of the classes.
func TestBoostRoom(t *testing.T) {
	h, _ := runningBoosted(t)
	class := func(value int32) *kueue.WorkloadPriorityClass {
		return &kueue.WorkloadPriorityClass{ObjectMeta: metav1.ObjectMeta{Name: "high"}, Value: value}
	}
	h.create(class(3))
	events := h.settle("job")
	h.wantBoost("")
	if !slices.Equal(events, []string{"NoBoost"}) {
		t.Errorf("its user reads why, once: got %v", events)
	}
	if result, err := h.reconcile("job"); err != nil || result.RequeueAfter == 0 || result.RequeueAfter > 5*time.Minute {
		t.Errorf("it is looked at again: got %v, %v", result, err)
	}
	h.remove(class(3))
	h.create(class(5))
	if events = h.settle("job"); len(events) > 0 {
		t.Errorf("got events %v", events)
	}
	h.wantBoost("4")
	h.create(&schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: "pods"}, Value: 1})
	h.settle("job")
	h.wantBoost("4")
	wl := h.workload()
	wl.Spec.PriorityClassRef, wl.Spec.Priority = kueue.NewPodPriorityClassRef("pods"), ptr.To[int32](0)
	h.update(wl)
	h.settle("job")
	h.wantBoost("")
	h.fail["list WorkloadPriorityClass"] = errors.New("no answer")
	if _, err := h.reconcile("job"); err != nil || len(h.sent) > 0 {
		t.Errorf("what isn't known changes nothing: got %v, %v", h.sent, err)
	}

	h = newHarness(t, dialect.Bundled, tenMinutes)
	h.create(class(2))
	h.queue()
	h.admit()
	h.clock.Step(11 * time.Second)
	if events = h.settle("job"); !slices.Contains(events, "NoBoost") || h.suspended("job") {
		t.Errorf("it starts without: got %v", events)
	}
	h.wantBoost("")
}

// TestBoostRoomOfWorkloads holds that a boost leaves room to the priority of any other TrainJob, too: its class may be
// gone, or in the cluster that has dispatched it.
func TestBoostRoomOfWorkloads(t *testing.T) {
	for name, c := range map[string]struct {
		priority *int32
		finished bool
		want     string
	}{
		"just above":        {priority: ptr.To[int32](1)},
		"the boost's":       {priority: ptr.To(boost.Highest)},
		"above the boost's": {priority: ptr.To(boost.Highest + 1), want: "4"},
		"lower":             {priority: ptr.To[int32](-1), want: "4"},
		"none":              {want: "4"},
		"finished":          {priority: ptr.To[int32](2), finished: true, want: "4"},
	} {
		t.Run(name, func(t *testing.T) {
			h, _ := runningBoosted(t)
			other := &kueue.Workload{ObjectMeta: metav1.ObjectMeta{Namespace: "other", Name: "other"}}
			other.Spec.Priority, other.Spec.PriorityClassRef = c.priority, kueue.NewWorkloadPriorityClassRef("gone")
			h.create(other)
			if c.finished {
				other.Status.Conditions = []metav1.Condition{{Type: kueue.WorkloadFinished, Status: metav1.ConditionTrue}}
				h.updateStatus(other)
			}
			h.settle("job")
			h.remove(other)
			h.wantBoost(c.want)
		})
	}
}

// queueIs changes the ClusterQueue.
func (h *harness) queueIs(change func(*kueue.ClusterQueue)) {
	h.t.Helper()
	cq := &kueue.ClusterQueue{ObjectMeta: metav1.ObjectMeta{Name: "queue"}}
	h.must(h.store.Get(h.t.Context(), client.ObjectKeyFromObject(cq), cq))
	change(cq)
	h.update(cq)
}

// TestCheapestVictim holds that what a TrainJob would lose protects it while others wait who may preempt it, and that
// neither writes nor reads are more than one in five minutes, also if the manager starts again.
func TestCheapestVictim(t *testing.T) {
	h := newHarness(t, dialect.Bundled, cheapestVictim)
	h.run()
	js := h.build("job")
	h.pod(js)
	h.saves("100")
	h.settle("job")
	h.clock.Step(20 * time.Minute)
	h.settle("job")
	h.wantBoost("")
	waits := func(n int32) {
		h.queueIs(func(cq *kueue.ClusterQueue) {
			cq.Spec.Preemption = &kueue.ClusterQueuePreemption{
				WithinClusterQueue: kueue.PreemptionPolicyLowerOrNewerEqualPriority}
			cq.Status.PendingWorkloads = n
		})
	}
	waits(1)
	h.did = map[string]bool{}
	if h.settle("job"); h.did["get ClusterQueue"] {
		t.Error("it was read a moment ago")
	}
	h.wantBoost("")
	h.clock.Step(5 * time.Minute)
	h.settle("job")
	h.wantBoost("1")
	h.clock.Step(4 * time.Minute)
	h.saves("200")
	h.start(dialect.Bundled, cheapestVictim)
	h.settle("job")
	h.wantBoost("1")
	h.clock.Step(time.Minute)
	h.settle("job")
	h.wantBoost("") // it has saved its work
	h.clock.Step(5 * time.Minute)
	h.settle("job")
	h.wantBoost("1")
	h.clock.Step(5 * time.Minute)
	h.fail["get ClusterQueue"] = errors.New("no answer")
	h.settle("job")
	h.wantBoost("1")
	delete(h.fail, "get ClusterQueue")
	waits(0)
	h.clock.Step(5 * time.Minute)
	h.settle("job")
	h.wantBoost("")
	h.evict(kueue.WorkloadEvictedByPreemption)
	h.settleUnboosted(js)
	if value, mark := h.boosted(); value+mark != "" {
		t.Errorf("got %q, %q", value, mark)
	}
}

// TestCheapestVictimInTime holds that what a TrainJob would lose is looked at every five minutes, whenever in a second
// that was and whatever happens between.
func TestCheapestVictimInTime(t *testing.T) {
	for name, between := range map[string]time.Duration{"nothing happens": 0, "it is looked at": 299 * time.Second} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, dialect.Bundled, cheapestVictim)
			h.queueIs(pending(kueue.PreemptionPolicyLowerPriority))
			h.run()
			h.pod(h.build("job"))
			h.saves("100")
			h.settle("job")
			h.clock.Step(5*time.Minute + 700*time.Millisecond)
			h.settle("job")
			h.wantBoost("1")
			h.clock.Step(between)
			h.did = map[string]bool{}
			waited := between
			for range 3 { // the time of a write counts in seconds
				result, err := h.reconcile("job")
				if err != nil {
					t.Fatal(err)
				}
				if h.did["get ClusterQueue"] {
					break
				}
				h.clock.Step(result.RequeueAfter)
				waited += result.RequeueAfter
			}
			if waited < 5*time.Minute-time.Second || waited > 5*time.Minute+time.Second {
				t.Errorf("it was looked at after %s", waited)
			}
		})
	}
}

// TestOthersWait holds who counts as one that waits.
func TestOthersWait(t *testing.T) {
	borrowed := func(n int64) func(*kueue.ClusterQueue) {
		return func(cq *kueue.ClusterQueue) {
			cq.Status.FlavorsUsage = []kueue.FlavorUsage{{Name: "a", Resources: []kueue.ResourceUsage{
				{Name: gpu, Borrowed: *resource.NewQuantity(n, resource.DecimalSI)},
			}}}
		}
	}
	for name, c := range map[string]struct {
		queue func(*kueue.ClusterQueue)
		want  string
	}{
		"nobody":              {func(*kueue.ClusterQueue) {}, ""},
		"one who can't":       {func(cq *kueue.ClusterQueue) { cq.Status.PendingWorkloads = 1 }, ""},
		"one who never can":   {pending(kueue.PreemptionPolicyNever), ""},
		"one who can":         {pending(kueue.PreemptionPolicyLowerPriority), "1"},
		"its cohort, maybe":   {borrowed(1), "1"},
		"its cohort lends it": {borrowed(0), ""},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, dialect.Bundled, cheapestVictim)
			h.queueIs(c.queue)
			h.run()
			h.pod(h.build("job"))
			h.saves("100")
			h.settle("job")
			h.clock.Step(5 * time.Minute)
			h.settle("job")
			h.wantBoost(c.want)
		})
	}
}

func pending(within kueue.PreemptionPolicy) func(*kueue.ClusterQueue) {
	return func(cq *kueue.ClusterQueue) {
		cq.Status.PendingWorkloads = 1
		cq.Spec.Preemption = &kueue.ClusterQueuePreemption{WithinClusterQueue: within}
	}
}

// TestBoostElsewhere holds that of a TrainJob that MultiKueue dispatches the cluster that runs it decides.
func TestBoostElsewhere(t *testing.T) {
	h := withMultiKueue(t, true)
	h.start(dialect.Bundled, tenMinutes, func(c *configapi.Configuration) { c.Kueue.MultiKueue = ptr.To(true) })
	job := newTrainJob("job")
	job.Labels[constants.QueueLabel], job.Spec.ManagedBy = "away", ptr.To(kueue.MultiKueueControllerName)
	h.create(job)
	h.settle("job")
	h.reserve(kueue.CheckStateReady, "admitted")
	wl := h.workload()
	workload.SyncAdmittedCondition(wl, h.clock.Now())
	h.updateStatus(wl)
	h.settle("job")
	if value, mark := h.boosted(); value+mark != "" || !workload.IsAdmitted(h.workload()) {
		t.Errorf("got %q, %q, %v", value, mark, h.workload().Status.Conditions)
	}
	worker := newHarness(t, dialect.Bundled, tenMinutes)
	job = newTrainJob("job")
	job.Labels[kueue.MultiKueueOriginLabel] = "origin"
	worker.create(job)
	worker.settle("job")
	worker.admit()
	worker.clock.Step(11 * time.Second)
	worker.settle("job")
	worker.wantBoost("4")
}
