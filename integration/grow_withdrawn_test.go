package integration_test

import (
	"errors"
	"testing"
	"time"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/workload"

	"github.com/signalbox-dev/signalbox/admission/usage"
	configapi "github.com/signalbox-dev/signalbox/api/config/v1alpha1"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides/dialect"
	"github.com/signalbox-dev/signalbox/podsets"
)

// TestSliceIsWithdrawn holds that a slice doesn't wait for long, nor when its TrainJob doesn't run on its quota any
// more: then Kueue would take it for a Workload of its own.
func TestSliceIsWithdrawn(t *testing.T) {
	for name, c := range map[string]struct {
		then  func(h *harness)
		stays bool
	}{
		"nothing happens": {func(*harness) {}, true},
		"Kueue has no room": {func(h *harness) {
			wl := h.slice()
			workload.UnsetQuotaReservationWithCondition(wl, "Pending", "insufficient quota", h.clock.Now())
			h.updateStatus(wl)
		}, false},
		"Kueue doesn't decide":      {func(h *harness) { h.clock.Step(time.Minute) }, false},
		"its TrainJob is preempted": {func(h *harness) { h.preempt(h.old()) }, false},
		"its user stops it":         {func(h *harness) { stopped(h, nil) }, false},
		"its user wants no more": {func(h *harness) {
			job := h.trainJob("job")
			delete(job.Annotations, api.GrowAnnotation)
			h.update(job)
		}, false},
		"its TrainJob is deleted": {func(h *harness) { h.remove(h.trainJob("job")) }, false},
		"its TrainJob ends":       {func(h *harness) { h.end("job", "Complete") }, false},
		"the manager starts again": {func(h *harness) {
			h.start(dialect.Bundled, grows)
		}, true},
		"what it replaces is gone": {func(h *harness) {
			wl := h.old()
			wl.Finalizers = nil
			h.update(wl)
			h.remove(wl)
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			h := growing(t, grows)
			h.settle("job")
			if h.slice() == nil {
				t.Fatal("it has no slice")
			}
			c.then(h)
			h.room = 0
			if h.settle("job"); (h.slice() != nil) != c.stays {
				t.Errorf("the slice stays: got %t, want %t", h.slice() != nil, c.stays)
			}
			if h.old() == nil && name != "what it replaces is gone" {
				t.Error("the other doesn't")
			}
		})
	}
}

func (h *harness) preempt(wl *kueue.Workload) {
	h.t.Helper()
	apimeta.SetStatusCondition(&wl.Status.Conditions, metav1.Condition{Type: kueue.WorkloadEvicted,
		Status: metav1.ConditionTrue, Reason: kueue.WorkloadEvictedByPreemption, Message: "evicted",
		LastTransitionTime: metav1.NewTime(h.clock.Now())})
	h.updateStatus(wl)
}

// TestWithdrawnMeanwhile holds that a slice that Kueue admits while it is withdrawn stands for its TrainJob, and keeps
// its quota.
func TestWithdrawnMeanwhile(t *testing.T) {
	h := growing(t, grows)
	h.settle("job")
	h.freeze("Workload", &kueue.WorkloadList{})
	h.admitSlice()
	h.clock.Step(time.Minute) // the cache has a slice that waits for too long
	if _, err := h.reconcile("job"); err != nil || h.slice() == nil {
		t.Fatalf("an admitted slice is deleted: %v, %v", err, h.sent)
	}
	h.thaw("Workload")
	wl := h.slice()
	wl.Finalizers = nil // as if the first of the two writes had been before the admission
	h.update(wl)
	h.settle("job")
	if wl := h.slice(); !podsets.Finalized(wl) || !podsets.HoldsQuota(wl) {
		t.Error("it could be deleted with the TrainJob's pods running")
	}
}

// TestReplacedDelaysNothing holds that a TrainJob which has grown is stopped for a preemption although what its first
// Workload has held can't be recorded.
func TestReplacedDelaysNothing(t *testing.T) {
	h := growing(t, func(config *configapi.Configuration) {
		growsAtCheckpoint(config)
		recording(config)
	})
	h.settle("job")
	h.admitSlice()
	h.finishOld()
	h.fail["create QuotaUsage"] = errors.New("no answer")
	h.preempt(h.slice())
	if _, err := h.reconcile("job"); err != nil {
		t.Fatal(err)
	}
	if !h.suspended("job") || h.old() == nil {
		t.Errorf("suspended: %t, and %v is kept until it is recorded", h.suspended("job"), h.old())
	}
	delete(h.fail, "create QuotaUsage")
	if h.settle("job"); h.old() != nil {
		t.Error("it is recorded, and deleted")
	}
}

// TestDeactivatedMeanwhile holds that a TrainJob is deactivated whose first Workload an admin has deactivated before it
// was replaced.
func TestDeactivatedMeanwhile(t *testing.T) {
	for name, kueueDies := range map[string]bool{"Kueue finishes the old one": false, "Kueue dies in between": true} {
		t.Run(name, func(t *testing.T) {
			h := growing(t, grows)
			h.settle("job")
			h.admitSlice()
			old := h.old()
			metav1.SetMetaDataAnnotation(&old.ObjectMeta, "signalbox.dev/deactivate", "admin") // as the webhook does
			h.update(old)
			if !kueueDies {
				h.finishOld()
			}
			for range 2 {
				h.clock.Step(3 * time.Second)
				h.settle("job")
			}
			if !h.suspended("job") {
				t.Fatal("it is stopped")
			}
			h.stopsPods()
			h.clock.Step(11 * time.Second)
			h.settle("job")
			if wl := h.slice(); !h.suspended("job") || wl == nil || workload.IsActive(wl) || h.old() != nil {
				t.Errorf("it is deactivated: got %v", wl)
			}
		})
	}
}

// TestGrowthIsRecorded holds that what both Workloads of a TrainJob that grows have held is recorded once, whoever
// finishes the first, and although the manager dies before it sees that. What it saves before it is started again isn't
// lost.
func TestGrowthIsRecorded(t *testing.T) {
	for name, c := range map[string]struct {
		then func(h *harness) // when Kueue has admitted the slice
		more int64            // seconds for which both hold quota
	}{
		"Kueue finishes it": {then: (*harness).finishOld},
		"the manager dies": {then: func(h *harness) {
			h.finishOld()
			h.start(dialect.Bundled, growsAtCheckpoint, recording)
		}},
		"Kueue dies": {then: func(h *harness) { h.clock.Step(3 * time.Second) }, more: 3},
	} {
		t.Run(name, func(t *testing.T) {
			h := growing(t, func(config *configapi.Configuration) {
				growsAtCheckpoint(config)
				recording(config)
			}, func(job *api.TrainJob) {
				job.Labels["team"] = "vision"
				metav1.SetMetaDataAnnotation(&job.ObjectMeta, api.UserAnnotation, "ann")
			})
			reserved := h.old().Status.Conditions[0].LastTransitionTime.Time
			h.settle("job")
			h.clock.Step(time.Minute)
			h.admitSlice()
			grown := h.clock.Now()
			c.then(h)
			h.settle("job")
			h.clock.Step(time.Minute)
			h.saves("200")
			h.settle("job")
			if !h.suspended("job") {
				t.Fatal("it saves, and is started again")
			}
			h.stopsPods()
			h.clock.Step(11 * time.Second)
			h.settle("job")
			h.runsPods()
			h.settle("job")
			h.clock.Step(time.Minute)
			h.end("job", "Complete")
			h.stopsPods()
			h.settle("job")
			sum, runs := h.recorded()
			held := int64(grown.Sub(reserved).Seconds())*3 + c.more*3 + int64(h.clock.Now().Sub(grown).Seconds())*8
			if got := usage.Total(sum); got != held || runs != 2 || sum.Unknown > 0 {
				t.Errorf("got %d of %d runs: %+v; want %d", got, runs, sum, held)
			}
			// It saves a minute after its growth, and no pod runs for 11 s.
			if sum.Lost > 11*8 {
				t.Errorf("what was saved is lost: %+v", sum)
			}
			h.told(sum, 2)
		})
	}
}

// TestGrownKeepsOff holds that a TrainJob which is started on its slice keeps off the nodes that it has met before: the
// slice has the PodSets of the Workload that it replaces.
func TestGrownKeepsOff(t *testing.T) {
	h := growing(t, func(config *configapi.Configuration) {
		grows(config)
		avoidsForAnHour(config)
	})
	h.remembers("gone")
	h.clock.Step(time.Minute)
	h.settle("job")
	h.admitSlice()
	h.finishOld()
	h.settle("job")
	h.stopsPods()
	h.clock.Step(11 * time.Second)
	if h.settle("job"); h.nodes() != 8 || len(h.workloads()) != 1 {
		t.Fatalf("it runs with %d nodes", h.nodes())
	}
	if got := h.startedOff(); got != "gone" {
		t.Errorf("it runs off %q", got)
	}
}

// TestGrowsKilled has a manager die after each of its writes while a TrainJob grows, and Kueue, or not, between its
// two.
func TestGrowsKilled(t *testing.T) {
	for name, kueueDies := range map[string]bool{"Kueue finishes the old one": false, "Kueue dies in between": true} {
		t.Run(name, func(t *testing.T) {
			h := growing(t, grows)
			for range 60 {
				h.start(dialect.Bundled, grows)
				writes := 0
				h.dies = func() error {
					if writes++; writes > 1 {
						return errDead
					}
					return nil
				}
				_, _ = h.reconcile("job")
				h.dies = nil
				h.wantQuota()
				h.othersAct(kueueDies)
				h.clock.Step(2 * time.Second)
				if h.nodes() == 8 && len(h.workloads()) == 1 {
					return
				}
			}
			t.Fatalf("it has not grown: %d nodes, Workloads %v", h.nodes(), h.workloads())
		})
	}
}

// wantQuota holds that pods run on quota: no more than one Workload that counts was admitted with.
func (h *harness) wantQuota() {
	h.t.Helper()
	var all []*kueue.Workload
	for _, wl := range h.workloads() {
		all = append(all, &wl)
	}
	counts, _ := podsets.Counts(all)
	if len(counts) != 1 || !podsets.HoldsQuota(counts[0]) {
		h.t.Fatalf("%d Workloads count", len(counts))
	}
	if most := *counts[0].Status.Admission.PodSetAssignments[0].Count; h.nodes() > most {
		h.t.Fatalf("%d nodes run on quota for %d", h.nodes(), most)
	}
}

// othersAct is what Kueue, JobSet and the Trainer do next.
func (h *harness) othersAct(kueueDies bool) {
	h.t.Helper()
	slice, old := h.slice(), h.old()
	js := &jobset.JobSet{}
	err := h.store.Get(h.t.Context(), client.ObjectKey{Namespace: team, Name: "job"}, js)
	switch {
	case slice != nil && !podsets.HoldsQuota(slice):
		h.admitSlice()
		if !kueueDies && old != nil {
			h.finishOld()
		}
	case h.suspended("job") && err == nil:
		h.stopsPods()
	case !h.suspended("job") && err != nil:
		h.runsPods()
	}
}

// TestGrowthIsNoSlowStart holds that the time for which a TrainJob that has grown runs on until its checkpoint isn't
// measured as time until its start.
func TestGrowthIsNoSlowStart(t *testing.T) {
	measured := func() float64 {
		families, err := metrics.Registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			if f.GetName() == "signalbox_admission_to_start_seconds" {
				return f.GetMetric()[0].GetHistogram().GetSampleSum()
			}
		}
		return 0
	}
	h := growing(t, growsAtCheckpoint)
	h.settle("job")
	h.admitSlice()
	h.finishOld()
	h.settle("job")
	h.clock.Step(30 * time.Minute)
	h.saves("200")
	h.settle("job")
	before := measured()
	h.stopsPods()
	h.clock.Step(11 * time.Second)
	if h.settle("job"); h.nodes() != 8 {
		t.Fatalf("it runs with %d nodes", h.nodes())
	}
	if got := measured() - before; got < 0 || got > 60 {
		t.Errorf("its start has taken %f s", got)
	}
}
