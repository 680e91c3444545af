package trainer

import (
	"fmt"
	"testing"
	"time"

	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
)

// waitsFor is the status of a Workload that waits for quota since a time.
func waitsFor(message, since string) string {
	return "status: {conditions: [{type: QuotaReserved, status: 'False', reason: Pending, message: " + message +
		", lastTransitionTime: '2026-11-23T" + since + "Z'}]}"
}

// A TrainJob that waits gets one event for each time that it waits.
func TestWaiting(t *testing.T) {
	h := newHarness(t)
	job := h.pinned(h.trainJob("torch", stopped))
	h.put(job, workloadOf(t, job, waitsFor("no room", "12:00:00")))
	h.reconcile("job")
	h.clock.Step(29 * time.Second)
	if result := h.reconcile("job"); result.RequeueAfter != time.Second {
		t.Errorf("it has waited for 29 s: got %+v", result)
	}
	h.wantEvents("most are decided by then")
	h.clock.Step(time.Second)
	h.reconcile("job")
	h.wantEvents("it has waited for 30 s", "Normal Waiting no room")
	h.clock.Step(time.Hour)
	h.reconcile("job")
	h.wantEvents("it has been told")
	set := func(status string) {
		wl := &kueue.Workload{}
		h.get(wl, "wl")
		wl.Status.Conditions = workloadOf(t, job, status).Status.Conditions
		if err := h.store.Status().Update(t.Context(), wl); err != nil {
			t.Fatal(err)
		}
		h.reconcile("job")
		h.clock.Step(time.Minute)
		h.reconcile("job")
	}
	set("status: {conditions: [{type: QuotaReserved, status: 'True', reason: QuotaReserved}]}")
	set(waitsFor("preempted", "13:00:00"))
	h.wantEvents("it waits again", "Normal Waiting preempted")
}

// A long queue doesn't flood the API server with events that nobody reads.
func TestWaitingLimit(t *testing.T) {
	h := newHarness(t)
	for i := range 50 {
		job := h.pinned(h.trainJob("torch", stopped))
		job.Name, job.UID = fmt.Sprintf("job-%d", i), "uid-"+job.UID
		wl := workloadOf(t, job, waitsFor("no room", "11:00:00"))
		wl.Name = job.Name
		h.put(job, wl)
		h.reconcile(job.Name)
	}
	if got := len(h.events()); got < 20 || got > 25 {
		t.Errorf("got %d events for 50 TrainJobs, want about 20", got)
	}
}
