package integration_test

import (
	"slices"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/workload"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides/dialect"
)

var trainers = map[string]*dialect.Dialect{
	"bundled": dialect.Bundled, "v2.3": dialect.Kubeflow23, "v2.2": dialect.Kubeflow22,
	"v2.1": dialect.Kubeflow21, "v2.0": dialect.Kubeflow20,
}

// forEach runs a test beside each Trainer.
func forEach(t *testing.T, test func(t *testing.T, h *harness, d *dialect.Dialect)) {
	for name, d := range trainers {
		t.Run(name, func(t *testing.T) { test(t, newHarness(t, d), d) })
	}
}

// queue brings a TrainJob into its queue.
func (h *harness) queue() {
	h.t.Helper()
	h.create(newTrainJob("job"))
	h.settle("job")
}

// run starts a TrainJob that has been queued; after what the Trainer takes to settle.
func (h *harness) run() {
	h.t.Helper()
	h.queue()
	h.admit()
	if h.dialect == dialect.Bundled {
		h.clock.Step(11 * time.Second)
	} else {
		h.clock.Step(31 * time.Second) // Trainer's JobSet has pending writes
	}
	h.settle("job")
	if h.suspended("job") {
		h.t.Fatal("it was not started")
	}
}

func TestQueues(t *testing.T) {
	forEach(t, func(t *testing.T, h *harness, _ *dialect.Dialect) {
		h.create(newTrainJob("job"))
		if _, err := h.reconcile("job"); err != nil || h.wrote("create Workload") != 1 {
			t.Fatalf("a new TrainJob gets one Workload: got %v, %v", h.sent, err)
		}
		h.settle("job")
		wl := h.workload()
		if len(wl.Spec.PodSets) != 1 || wl.Spec.PodSets[0].Count != 1 || wl.Spec.QueueName != "queue" || !h.suspended("job") {
			t.Errorf("its Workload stands for what it runs: got %+v", wl.Spec)
		}
		if h.reconcile("job"); len(h.sent) > 0 || len(h.events) > 0 {
			t.Errorf("nothing is written twice: got %v, %v", h.sent, h.events)
		}
	})
}

func TestStops(t *testing.T) {
	forEach(t, func(t *testing.T, h *harness, d *dialect.Dialect) {
		h.run()
		js := h.build("job")
		pod := h.pod(js)
		h.settle("job")
		h.clock.Step(time.Second)
		h.evict(kueue.WorkloadEvictedByPreemption)
		if _, err := h.reconcile("job"); err != nil || !h.suspended("job") || h.wrote("patch TrainJob ") != 1 {
			t.Fatalf("an evicted TrainJob is suspended: got %v, %v", h.sent, err)
		}
		h.reconcile("job")
		if !workload.HasQuotaReservation(h.workload()) || neutral(d, h.trainJob("job")) {
			t.Error("its quota and its entry are kept while a pod runs")
		}
		h.remove(pod)
		h.remove(js)
		h.must(h.store.DeleteAllOf(t.Context(), jobOf(), client.InNamespace(team)))
		for range 5 {
			h.clock.Step(time.Minute)
			if _, err := h.reconcile("job"); err != nil {
				t.Fatal(err)
			}
		}
		if workload.HasQuotaReservation(h.workload()) || !neutral(d, h.trainJob("job")) {
			t.Errorf("both go after it: got %+v", h.workload().Status)
		}
	})
}

func TestWorkloadDeleted(t *testing.T) {
	h := newHarness(t, dialect.Bundled)
	h.run()
	js := h.build("job")
	pod := h.pod(js)
	h.settle("job")
	h.remove(h.workload())
	h.reconcile("job")
	if !h.suspended("job") || !slices.Contains(h.workload().Finalizers, kueue.ResourceInUseFinalizerName) {
		t.Fatalf("its Workload stays until its pods have ended: got %v", h.sent)
	}
	before := h.workload().UID
	h.remove(pod)
	h.remove(js)
	for range 4 {
		h.reconcile("job")
	}
	for _, wl := range h.workloads() {
		if wl.UID == before {
			t.Error("it is let go when nothing runs")
		}
	}
}

func TestDeactivated(t *testing.T) {
	h := newHarness(t, dialect.Bundled)
	h.run()
	js := h.build("job")
	h.settle("job")
	wl := h.workload()
	wl.Annotations = map[string]string{api.DeactivateAnnotation: "user"}
	h.update(wl)
	h.settle("job")
	if !h.suspended("job") || !workload.IsActive(h.workload()) {
		t.Error("it is stopped first")
	}
	h.remove(js)
	h.settle("job")
	if wl := h.workload(); workload.IsActive(wl) || wl.Annotations[api.DeactivateAnnotation] != "" {
		t.Error("and its Workload deactivated at the end")
	}
}
