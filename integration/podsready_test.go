package integration_test

import (
	"testing"
	"time"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	configapi "github.com/signalbox-dev/signalbox/api/config/v1alpha1"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides/dialect"
)

// runReady starts a TrainJob, all of whose pods are ready.
func (h *harness) runReady() *jobset.JobSet {
	h.t.Helper()
	h.run()
	js := h.build("job")
	h.setReady(js, 1)
	return js
}

func (h *harness) setReady(js *jobset.JobSet, ready int32) {
	h.t.Helper()
	js.Status.ReplicatedJobsStatus = []jobset.ReplicatedJobStatus{{Name: "node", Ready: ready, Active: 1}}
	h.updateStatus(js)
}

// podsReady returns status and reason of the Workload's condition PodsReady; "" if it has none.
func (h *harness) podsReady() string {
	h.t.Helper()
	c := apimeta.FindStatusCondition(h.workload().Status.Conditions, kueue.WorkloadPodsReady)
	if c == nil {
		return ""
	}
	return string(c.Status) + " " + c.Reason
}

// TestPodsReadyByDefault holds that no TrainJob that runs is evicted by Kueue 0.19, which by default evicts what has no
// condition PodsReady half an hour after its admission; and that a short one costs no write for it.
func TestPodsReadyByDefault(t *testing.T) {
	forEach(t, func(t *testing.T, h *harness, _ *dialect.Dialect) {
		js := h.runReady()
		h.settle("job")
		admitted := apimeta.FindStatusCondition(h.workload().Status.Conditions, kueue.WorkloadAdmitted).LastTransitionTime
		again, err := h.reconcile("job")
		if left := admitted.Add(5 * time.Minute).Sub(h.clock.Now()); err != nil || h.podsReady() != "" ||
			again.RequeueAfter <= 0 || again.RequeueAfter > left {
			t.Fatalf("it is looked at again in time: got %v, %v, %q; %s are left", again, err, h.podsReady(), left)
		}
		h.clock.SetTime(admitted.Add(5*time.Minute - time.Second))
		if h.settle("job"); h.podsReady() != "" {
			t.Errorf("a short TrainJob costs no write: got %q", h.podsReady())
		}
		h.clock.Step(time.Second)
		if h.settle("job"); h.podsReady() != "True Started" {
			t.Errorf("after five minutes: got %q", h.podsReady())
		}
		h.setReady(js, 0)
		if h.settle("job"); h.podsReady() != "False WaitForRecovery" {
			t.Errorf("a pod has failed: got %q", h.podsReady())
		}
		h.setReady(js, 1)
		if h.settle("job"); h.podsReady() != "True Recovered" {
			t.Errorf("it was replaced: got %q", h.podsReady())
		}
		h.clock.Step(time.Second)
		h.evict(kueue.WorkloadEvictedByPreemption)
		wl := h.workload()
		apimeta.SetStatusCondition(&wl.Status.Conditions, metav1.Condition{Type: kueue.WorkloadAdmitted,
			Status: metav1.ConditionFalse, Reason: "NoReservation", LastTransitionTime: metav1.NewTime(h.clock.Now())})
		h.updateStatus(wl)
		h.reconcile("job")
		h.reconcile("job")
		if h.podsReady() != "False WaitForStart" {
			t.Errorf("the next run must not count as ready: got %q", h.podsReady())
		}
	})
}

// TestPodsReadyUnready holds that Kueue can evict by default what never gets ready.
func TestPodsReadyUnready(t *testing.T) {
	h := newHarness(t, dialect.Bundled)
	h.setReady(h.runReady(), 0)
	h.clock.Step(5 * time.Minute)
	if h.settle("job"); h.podsReady() != "False WaitForStart" {
		t.Errorf("got %q", h.podsReady())
	}
}

// TestPodsReadyEvicted holds that a TrainJob which Kueue has evicted because of its pods isn't evicted forever, if
// Kueue's timeout is shorter than is known here.
func TestPodsReadyEvicted(t *testing.T) {
	h := newHarness(t, dialect.Bundled)
	h.queue()
	wl := h.workload()
	wl.Status.RequeueState = &kueue.RequeueState{Count: new(int32(1))}
	h.updateStatus(wl)
	h.admit()
	h.clock.Step(11 * time.Second)
	h.settle("job")
	h.setReady(h.build("job"), 1)
	if h.settle("job"); h.podsReady() != "True Started" {
		t.Errorf("got %q", h.podsReady())
	}
}

// TestPodsReadyElsewhere holds that a TrainJob that runs in another cluster isn't evicted because this one's runtime
// has changed since.
func TestPodsReadyElsewhere(t *testing.T) {
	for change, by := range map[string]func(*harness, *api.ClusterTrainingRuntime){
		"none":    func(*harness, *api.ClusterTrainingRuntime) {},
		"deleted": func(h *harness, r *api.ClusterTrainingRuntime) { h.remove(r) },
		"another ReplicatedJob": func(h *harness, r *api.ClusterTrainingRuntime) {
			jobs := &r.Spec.Template.Spec.ReplicatedJobs
			*jobs = append(*jobs, *(*jobs)[0].DeepCopy())
			(*jobs)[len(*jobs)-1].Name = "another"
			h.update(r)
		},
		"more pods": func(h *harness, r *api.ClusterTrainingRuntime) {
			r.Spec.Template.Spec.ReplicatedJobs[0].Replicas = 2
			h.update(r)
		},
	} {
		t.Run(change, func(t *testing.T) {
			h := withMultiKueue(t, true)
			h.create(away("away"))
			h.settle("job")
			h.admit()
			h.runsAway(1)
			h.clock.Step(6 * time.Minute)
			if h.settle("job"); h.podsReady() != "True Started" {
				t.Fatalf("it runs: got %q", h.podsReady())
			}
			runtime := &api.ClusterTrainingRuntime{}
			h.must(h.store.Get(t.Context(), client.ObjectKey{Name: h.trainJob("job").Spec.RuntimeRef.Name}, runtime))
			by(h, runtime)
			if h.settle("job"); h.podsReady() != "True Started" {
				t.Errorf("it still runs: got %q", h.podsReady())
			}
			job := h.trainJob("job")
			job.Status.JobsStatus[0].Ready = new(int32)
			h.updateStatus(job)
			if h.settle("job"); h.podsReady() != "False WaitForRecovery" {
				t.Errorf("its pods aren't ready any more: got %q", h.podsReady())
			}
		})
	}
}

// TestPodsReadyConfigured holds what a setting says, at once and after an hour.
func TestPodsReadyConfigured(t *testing.T) {
	for want, waits := range map[string]bool{"True Started": true, "": false} {
		t.Run(want, func(t *testing.T) {
			h := newHarness(t, dialect.Bundled, func(c *configapi.Configuration) { c.Kueue.WaitForPodsReady = &waits })
			h.runReady()
			for range 2 {
				if h.settle("job"); h.podsReady() != want {
					t.Errorf("got %q", h.podsReady())
				}
				h.clock.Step(time.Hour)
			}
		})
	}
}
