package integration_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/controller/constants"
	"sigs.k8s.io/kueue/pkg/workload"

	"github.com/signalbox-dev/signalbox/admission/boost"
	configapi "github.com/signalbox-dev/signalbox/api/config/v1alpha1"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/integration"
	"github.com/signalbox-dev/signalbox/overrides"
)

func tenMinutes(c *configapi.Configuration) {
	c.Preemption.MinimumRuntime.Default.Duration = 10 * time.Minute
}

func cheapestVictim(c *configapi.Configuration) { c.Preemption.CheapestVictim = true }

// boosted returns the boost of the only Workload, and what it remembers of it.
func (h *harness) boosted() (value, mark string) {
	h.t.Helper()
	annotations := h.workload().Annotations
	return annotations[boost.Annotation], annotations[boost.MarkAnnotation]
}

func (h *harness) wantBoost(want string) {
	h.t.Helper()
	if got, mark := h.boosted(); got != want || want != "" && !strings.HasPrefix(mark, want+" ") {
		h.t.Errorf("got boost %q, marked %q; want %q", got, mark, want)
	}
}

// sets is another's write of an annotation of the only Workload; "" removes it.
func (h *harness) sets(key, value string) {
	h.t.Helper()
	wl := h.workload()
	metav1.SetMetaDataAnnotation(&wl.ObjectMeta, key, value)
	if value == "" {
		delete(wl.Annotations, key)
	}
	h.update(wl)
}

// TestBoostsAtStart holds that a TrainJob is within its minimum runtime before it runs, by one write, and until that is
// over.
func TestBoostsAtStart(t *testing.T) {
	forEach(t, func(t *testing.T, h *harness, d *overrides.Dialect) {
		h.start(d, tenMinutes)
		h.queue()
		h.wantBoost("")
		h.admit()
		h.clock.Step(31 * time.Second)
		for h.suspended("job") {
			if _, err := h.reconcile("job"); err != nil {
				t.Fatal(err)
			}
		}
		boosts := slices.IndexFunc(h.sent, func(s string) bool { return strings.HasPrefix(s, "patch Workload ") })
		starts := slices.Index(h.sent, "patch TrainJob job")
		if boosts < 0 || boosts > starts || h.wrote("patch Workload ") != 1 {
			t.Errorf("it is boosted, and then started: got %v", h.sent)
		}
		h.wantBoost("4")
		h.pod(h.build("job"))
		h.settle("job")
		h.clock.Step(5 * time.Minute)
		h.settle("job") // Kueue waits for its pods by now
		if result, err := h.reconcile("job"); err != nil || len(h.sent) > 0 || result.RequeueAfter <= 0 ||
			result.RequeueAfter > 5*time.Minute {
			t.Errorf("it is looked at again: got %v, %v, requests %v", result, err, h.sent)
		}
		h.clock.Step(5 * time.Minute)
		h.settle("job")
		if value, mark := h.boosted(); value+mark != "" || h.suspended("job") {
			t.Errorf("its minimum runtime is over, and it runs on: got %q, %q", value, mark)
		}
	})
}

// TestBoostOff holds that a TrainJob has no boost if nothing is set, that one which a manager with other settings has
// written is removed, and that nothing is asked for.
func TestBoostOff(t *testing.T) {
	h := newHarness(t, overrides.Bundled)
	h.did = map[string]bool{}
	h.run()
	if value, mark := h.boosted(); value+mark != "" || h.did["list WorkloadPriorityClass"] {
		t.Errorf("got %q, %q, %v", value, mark, h.did)
	}
	h = newHarness(t, overrides.Bundled, tenMinutes)
	h.run()
	h.wantBoost("4")
	h.start(overrides.Bundled)
	h.settle("job")
	if value, mark := h.boosted(); value+mark != "" {
		t.Errorf("the admin has turned it off: got %q, %q", value, mark)
	}
}

// running is a harness with a TrainJob that runs within its minimum runtime, and has a pod.
func runningBoosted(t *testing.T) (*harness, *jobset.JobSet) {
	h := newHarness(t, overrides.Bundled, tenMinutes)
	h.run()
	js := h.build("job")
	h.pod(js)
	h.settle("job")
	h.wantBoost("4")
	h.clock.Step(time.Minute)
	return h, js
}

// losesRight are the ways by which a TrainJob loses its right to a boost.
func losesRight() map[string]func(*harness) {
	ways := map[string]func(*harness){
		"its user stops it": func(h *harness) {
			job := h.trainJob("job")
			metav1.SetMetaDataAnnotation(&job.ObjectMeta, api.StopAnnotation, "")
			h.update(job)
		},
		"an admin deactivates it": func(h *harness) { h.sets(integration.DeactivateAnnotation, "admin") },
		"it is deactivated at once": func(h *harness) {
			wl := h.workload()
			wl.Spec.Active = ptr.To(false)
			h.update(wl)
		},
		"it succeeds": func(h *harness) { h.end("job", trainerapi.TrainJobComplete) },
		"it fails":    func(h *harness) { h.end("job", trainerapi.TrainJobFailed) },
		"Kueue takes its quota": func(h *harness) {
			wl := h.workload()
			workload.UnsetQuotaReservationWithCondition(wl, "Pending", "gone", h.clock.Now())
			h.updateStatus(wl)
		},
	}
	for _, reason := range []string{kueue.WorkloadEvictedByPreemption, kueue.WorkloadEvictedByPodsReadyTimeout,
		kueue.WorkloadDeactivated, kueue.WorkloadEvictedByClusterQueueStopped} {
		ways["it is evicted as "+reason] = func(h *harness) { h.evict(reason) }
	}
	return ways
}

// gone is the end of a JobSet with its pods.
func (h *harness) gone(js *jobset.JobSet) {
	h.t.Helper()
	h.must(h.store.DeleteAllOf(h.t.Context(), &corev1.Pod{}, client.InNamespace(team)))
	h.collect(js)
}

// settleUnboosted reconciles a TrainJob until nothing follows, while its pods end. Whatever has just been written, a
// Workload that waits has no boost.
func (h *harness) settleUnboosted(js *jobset.JobSet) {
	h.t.Helper()
	for range 6 {
		for range 6 {
			_, _ = h.reconcile("job") // a write that conflicts is tried again
			for _, wl := range h.workloads() {
				if mark, ours := boost.Of(&wl); ours && mark.Value != 0 && !workload.HasQuotaReservation(&wl) {
					h.t.Fatalf("it has boost %d and no quota; the last requests are %v", mark.Value, h.sent)
				}
			}
		}
		if js != nil {
			h.gone(js)
			js = nil
		}
		h.clock.Step(time.Minute)
	}
}

// TestUnboosted holds that a boost goes with the right to it, before the quota does, also if the manager starts again.
func TestUnboosted(t *testing.T) {
	for name, lose := range losesRight() {
		for _, restarts := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				h, js := runningBoosted(t)
				lose(h)
				if restarts {
					h.start(overrides.Bundled, tenMinutes)
				}
				if name == "Kueue takes its quota" {
					_, _ = h.reconcile("job") // it is the first that may have a look
				}
				h.settleUnboosted(js)
				if value, mark := h.boosted(); value+mark != "" {
					t.Errorf("got %q, %q", value, mark)
				}
			})
		}
	}
}

// TestUnboostedLate holds the same where the removal has failed, or was rejected, or the manager was killed before it:
// it delays no stop, and what is only rejected delays no release.
func TestUnboostedLate(t *testing.T) {
	down := errors.New("the webhook is down")
	h, js := runningBoosted(t)
	h.evict(kueue.WorkloadEvictedByPreemption)
	h.fail["patch Workload"] = down
	if _, err := h.reconcile("job"); err != nil || !h.suspended("job") {
		t.Fatalf("it is stopped: got %v, %v", h.sent, err)
	}
	h.gone(js)
	if _, err := h.reconcile("job"); !errors.Is(err, down) || !workload.HasQuotaReservation(h.workload()) {
		t.Errorf("it keeps its quota until the boost is gone: got %v, %v", h.sent, err)
	}
	h.wantBoost("4")
	delete(h.fail, "patch Workload")
	h.settleUnboosted(nil)
	if value, mark := h.boosted(); value+mark != "" || workload.HasQuotaReservation(h.workload()) {
		t.Errorf("got %q, %q", value, mark)
	}

	h, js = runningBoosted(t)
	h.evict(kueue.WorkloadEvictedByPreemption)
	h.fail["patch Workload"] = invalid
	h.settleN(3)
	h.gone(js)
	h.settleN(3)
	if !h.suspended("job") || workload.HasQuotaReservation(h.workload()) {
		t.Error("who rejects the removal doesn't keep the quota")
	}
	delete(h.fail, "patch Workload")
	h.settleN(3)
	if value, mark := h.boosted(); value+mark != "" {
		t.Errorf("it is removed when that isn't rejected any more: got %q, %q", value, mark)
	}
}

// settleN reconciles a TrainJob a few times, whatever comes of it.
func (h *harness) settleN(times int) {
	for range times {
		_, _ = h.reconcile("job")
		h.clock.Step(2 * time.Second)
	}
}

// TestBoostedAgain holds that a TrainJob that is admitted again has its minimum runtime again.
func TestBoostedAgain(t *testing.T) {
	h, js := runningBoosted(t)
	h.evict(kueue.WorkloadEvictedByPreemption)
	h.settleUnboosted(js)
	h.wantBoost("")
	wl := h.workload()
	wl.Status.Conditions = slices.DeleteFunc(wl.Status.Conditions, func(c metav1.Condition) bool {
		return c.Type == kueue.WorkloadEvicted // as Kueue's admission does
	})
	h.updateStatus(wl)
	h.admit()
	h.clock.Step(11 * time.Second)
	h.settle("job")
	if h.suspended("job") {
		t.Fatalf("it is started again: %v, %v, %v", h.workload().Status, h.trainJob("job").Status.Conditions, h.workload().Spec)
	}
	h.wantBoost("4")
}

// TestAnothersBoost holds that what others write of a boost is left alone, in whatever stage the TrainJob is.
func TestAnothersBoost(t *testing.T) {
	for name, theirs := range map[string]string{"higher": "7", "lower": "-2", "removed": ""} {
		t.Run(name, func(t *testing.T) {
			h, js := runningBoosted(t)
			h.sets(boost.Annotation, theirs)
			h.settle("job")
			h.clock.Step(20 * time.Minute)
			h.settle("job")
			if got, _ := h.boosted(); got != theirs {
				t.Errorf("while it runs: got %q, want %q", got, theirs)
			}
			h.evict(kueue.WorkloadEvictedByPreemption)
			h.settleN(6)
			h.gone(js)
			h.settleN(6)
			if got, mark := h.boosted(); got != theirs || mark != "" {
				t.Errorf("when it has stopped: got %q, %q", got, mark)
			}
		})
	}
	h := newHarness(t, overrides.Bundled, tenMinutes)
	h.queue()
	h.sets(boost.Annotation, "7")
	h.admit()
	h.clock.Step(11 * time.Second)
	h.settle("job")
	if got, mark := h.boosted(); got != "7" || mark != "" || h.suspended("job") {
		t.Errorf("one that had it before it was admitted: got %q, %q", got, mark)
	}
}

// TestBoostOfAnotherVersion holds that a boost is written to the version that was decided on: an eviction, or another's
// boost, that the cache doesn't have keeps it from being written, and delays no start.
func TestBoostOfAnotherVersion(t *testing.T) {
	for name, meanwhile := range map[string]func(*harness){
		"it is evicted":  func(h *harness) { h.evict(kueue.WorkloadEvictedByPreemption) },
		"others boosted": func(h *harness) { h.sets(boost.Annotation, "2") },
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, overrides.Bundled, tenMinutes)
			h.queue()
			h.admit()
			h.clock.Step(11 * time.Second)
			h.freeze("Workload", &kueue.WorkloadList{})
			meanwhile(h)
			before, _ := h.boosted()
			if _, err := h.reconcile("job"); err != nil || h.suspended("job") {
				t.Errorf("it starts: got %v, %v", h.sent, err)
			}
			if got, mark := h.boosted(); got != before || mark != "" {
				t.Errorf("got %q, %q", got, mark)
			}
			h.thaw("Workload")
			h.settleUnboosted(nil)
		})
	}
	h, _ := runningBoosted(t)
	h.freeze("Workload", &kueue.WorkloadList{})
	h.sets("example.com/any", "1")
	h.clock.Step(10 * time.Minute)
	for range 3 {
		if _, err := h.reconcile("job"); err != nil {
			t.Errorf("a stale cache is no error: %v", err)
		}
	}
	h.wantBoost("4")
	h.thaw("Workload")
	h.settle("job")
	h.wantBoost("")
}

// TestBoostBeforeRestart holds that a manager that was killed between the boost and the start doesn't write it twice,
// and that a start which the API server rejects leaves no boost without quota.
func TestBoostBeforeRestart(t *testing.T) {
	h := newHarness(t, overrides.Bundled, tenMinutes)
	h.queue()
	h.admit()
	h.clock.Step(11 * time.Second)
	h.fail["patch TrainJob"] = errors.New("killed")
	if _, err := h.reconcile("job"); err == nil {
		t.Fatal("it isn't started")
	}
	h.wantBoost("4")
	delete(h.fail, "patch TrainJob")
	h.start(overrides.Bundled, tenMinutes)
	if _, err := h.reconcile("job"); err != nil || h.suspended("job") || h.wrote("patch Workload ") != 0 {
		t.Errorf("got %v, %v", h.sent, err)
	}
	h.wantBoost("4")

	h = newHarness(t, overrides.Bundled, tenMinutes)
	h.queue()
	h.admit()
	h.clock.Step(11 * time.Second)
	h.fail["patch TrainJob"] = invalid
	h.settleUnboosted(nil)
	if value, mark := h.boosted(); value+mark != "" || workload.HasQuotaReservation(h.workload()) {
		t.Errorf("it can't start: got %q, %q", value, mark)
	}
}

// TestBoostRejected holds that a boost that can't be written keeps nothing from starting, and is tried again.
func TestBoostRejected(t *testing.T) {
	h := newHarness(t, overrides.Bundled, tenMinutes)
	h.fail["patch Workload"] = invalid
	h.queue()
	h.admit()
	h.clock.Step(11 * time.Second)
	h.settleN(2)
	if h.suspended("job") {
		t.Error("it starts")
	}
	if result, err := h.reconcile("job"); err != nil || result.RequeueAfter == 0 || result.RequeueAfter > time.Minute {
		t.Errorf("it is tried again: got %v, %v", result, err)
	}
	delete(h.fail, "patch Workload")
	h.settle("job")
	h.wantBoost("4")
}

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

	h = newHarness(t, overrides.Bundled, tenMinutes)
	h.create(class(2))
	h.queue()
	h.admit()
	h.clock.Step(11 * time.Second)
	if events = h.settle("job"); !slices.Contains(events, "NoBoost") || h.suspended("job") {
		t.Errorf("it starts without: got %v", events)
	}
	h.wantBoost("")
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
	h := newHarness(t, overrides.Bundled, cheapestVictim)
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
			cq.Spec.Preemption = &kueue.ClusterQueuePreemption{WithinClusterQueue: kueue.PreemptionPolicyLowerOrNewerEqualPriority}
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
	h.start(overrides.Bundled, cheapestVictim)
	h.settle("job")
	h.wantBoost("1")
	h.clock.Step(time.Minute)
	h.settle("job")
	h.wantBoost("") // it has just saved its work
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

// TestOthersWait holds who counts as somebody that waits.
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
			h := newHarness(t, overrides.Bundled, cheapestVictim)
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
	h.start(overrides.Bundled, tenMinutes, func(c *configapi.Configuration) { c.Kueue.MultiKueue = ptr.To(true) })
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
	worker := newHarness(t, overrides.Bundled, tenMinutes)
	job = newTrainJob("job")
	job.Labels[kueue.MultiKueueOriginLabel] = "origin"
	worker.create(job)
	worker.settle("job")
	worker.admit()
	worker.clock.Step(11 * time.Second)
	worker.settle("job")
	worker.wantBoost("4")
}
