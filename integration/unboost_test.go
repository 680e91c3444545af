package integration_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/workload"

	"github.com/signalbox-dev/signalbox/admission/boost"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides/dialect"
)

// losesRight are the ways by which a TrainJob loses its right to a boost.
func losesRight() map[string]func(*harness) {
	ways := map[string]func(*harness){
		"its user stops it": func(h *harness) {
			job := h.trainJob("job")
			metav1.SetMetaDataAnnotation(&job.ObjectMeta, api.StopAnnotation, "")
			h.update(job)
		},
		"an admin deactivates it": func(h *harness) { h.sets(api.DeactivateAnnotation, "admin") },
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

// settleUnboosted reconciles a TrainJob until nothing follows, while its pods end. After each, a Workload that waits
// has no boost.
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
					h.start(dialect.Bundled, tenMinutes)
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
	if _, err := h.reconcile("job"); !errors.Is(err, down) || !h.suspended("job") {
		t.Fatalf("it is stopped, and the failure is told: got %v, %v", h.sent, err)
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
	if again, err := h.reconcile("job"); err != nil || again.RequeueAfter < time.Minute {
		t.Errorf("what is rejected would be again: tried after %s, %v", again.RequeueAfter, err)
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
		t.Fatalf("it is started again: %v, %v, %v", h.workload().Status, h.trainJob("job").Status.Conditions,
			h.workload().Spec)
	}
	h.wantBoost("4")
}

// TestStopsBeforeUnboost holds that a stop waits for no other write.
func TestStopsBeforeUnboost(t *testing.T) {
	for _, name := range []string{"its user stops it", "an admin deactivates it", "it is evicted as Preempted"} {
		t.Run(name, func(t *testing.T) {
			h, _ := runningBoosted(t)
			losesRight()[name](h)
			if _, err := h.reconcile("job"); err != nil {
				t.Fatal(err)
			}
			stops := slices.Index(h.sent, "patch TrainJob job")
			unboosts := slices.IndexFunc(h.sent, func(s string) bool { return strings.HasPrefix(s, "patch Workload ") })
			if stops < 0 || unboosts < stops {
				t.Errorf("got %v", h.sent)
			}
		})
	}
}

// TestUnboostsOnce holds that one reconcile takes a boost away by one request: the next would be rejected, because what
// it removes isn't there any more.
func TestUnboostsOnce(t *testing.T) {
	finished := func(h *harness) {
		wl := h.workload()
		wl.Finalizers = nil
		h.update(wl)
		wl = h.workload()
		apimeta.SetStatusCondition(&wl.Status.Conditions, metav1.Condition{Type: kueue.WorkloadFinished,
			Status: metav1.ConditionTrue, Reason: kueue.WorkloadFinishedReasonSucceeded,
			LastTransitionTime: metav1.NewTime(h.clock.Now())})
		h.updateStatus(wl)
	}
	for name, lose := range map[string]func(*harness, *jobset.JobSet){
		"its JobSet has ended, and its pods run": func(h *harness, js *jobset.JobSet) {
			js.Status.Conditions = []metav1.Condition{{Type: string(jobset.JobSetCompleted), Status: metav1.ConditionTrue,
				Reason: "Over", LastTransitionTime: metav1.NewTime(h.clock.Now())}}
			h.updateStatus(js)
			_, _ = h.reconcile("job")
			h.clock.Step(2 * time.Minute)
		},
		"its Workload has finished, and it is suspended": func(h *harness, _ *jobset.JobSet) {
			finished(h)
			job := h.trainJob("job")
			job.Spec.Suspend = ptr.To(true)
			h.update(job)
		},
	} {
		t.Run(name, func(t *testing.T) {
			h, js := runningBoosted(t)
			lose(h, js)
			removed := 0
			for range 3 {
				_, _ = h.reconcile("job")
				for _, body := range h.bodies {
					if strings.Contains(body, `"remove"`) && strings.Contains(body, "~1priority-boost") {
						removed++
					}
				}
			}
			if value, mark := h.boosted(); removed != 1 || value+mark != "" {
				t.Errorf("it is removed by %d requests; got %q, %q", removed, value, mark)
			}
		})
	}
}
