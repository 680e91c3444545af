package integration_test

import (
	"testing"
	"time"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/workload"

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
		"its TrainJob is preempted": {func(h *harness) { h.evictOld() }, false},
		"its user stops it":         {func(h *harness) { stopped(h, nil) }, false},
		"its user wants no more": {func(h *harness) {
			job := h.trainJob("job")
			delete(job.Annotations, api.GrowAnnotation)
			h.update(job)
		}, false},
		"its TrainJob ends": {func(h *harness) { h.end("job", "Complete") }, false},
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

func (h *harness) evictOld() {
	h.t.Helper()
	wl := h.old()
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
