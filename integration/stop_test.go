package integration_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/workload"
	workloadfinish "sigs.k8s.io/kueue/pkg/workload/finish"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/integration"
	"github.com/signalbox-dev/signalbox/overrides"
)

// tooLarge is how the API server rejects what etcd doesn't store.
var tooLarge = apierrors.NewInternalError(errors.New("etcdserver: request is too large"))

// invalid is how a webhook or a CRD rejects a TrainJob.
var invalid = apierrors.NewForbidden(schema.GroupResource{Resource: "trainjobs"}, "job", errors.New("no"))

// TestStopRejected holds that a TrainJob that can't be written is stopped all the same, and gives its quota back: its
// labels may have filled it.
func TestStopRejected(t *testing.T) {
	for name, rejection := range map[string]error{"too large": tooLarge, "by a webhook": invalid} {
		for how, stop := range map[string]func(*harness){
			"preempted":   func(h *harness) { h.evict(kueue.WorkloadEvictedByPreemption) },
			"deactivated": deactivate,
			"its Workload deleted": func(h *harness) {
				h.remove(h.workload())
			},
			"stopped by its user": func(h *harness) {
				job := h.trainJob("job")
				metav1.SetMetaDataAnnotation(&job.ObjectMeta, api.StopAnnotation, "")
				h.update(job)
			},
		} {
			t.Run(name+", "+how, func(t *testing.T) {
				h := newHarness(t, overrides.Bundled)
				h.run()
				js := h.build("job")
				js.Finalizers = []string{metav1.FinalizerDeleteDependents}
				h.update(js)
				pod := h.pod(js)
				stop(h)
				h.fail["patch TrainJob"] = rejection
				if _, err := h.reconcile("job"); err == nil || !slices.Contains(h.sent, "delete JobSet job") {
					t.Fatalf("its JobSet is deleted: got %v, %v", h.sent, err)
				}
				h.clock.Step(2 * time.Minute)
				if h.reconcile("job"); len(h.workloads()) != 1 || !workload.HasQuotaReservation(h.workload()) {
					t.Fatal("its pod holds its quota")
				}
				h.remove(pod)
				h.collect(js)
				for range 3 {
					h.reconcile("job")
				}
				if all := h.workloads(); len(all) > 0 && workload.HasQuotaReservation(&all[0]) &&
					!workloadfinish.IsFinished(&all[0]) {
					t.Fatalf("nothing runs: got %+v", all[0].Status.Conditions)
				}
				delete(h.fail, "patch TrainJob")
				if h.settle("job"); !h.suspended("job") {
					t.Error("it is suspended once it can be")
				}
			})
		}
	}
}

func deactivate(h *harness) {
	wl := h.workload()
	wl.Annotations = map[string]string{integration.DeactivateAnnotation: "admin"}
	h.update(wl)
}

// TestStartRejected holds that a start that is rejected is repeated after longer and longer times, without quota, and
// at once when the TrainJob is another.
func TestStartRejected(t *testing.T) {
	h := newHarness(t, overrides.Bundled)
	h.queue()
	h.fail["patch TrainJob"] = invalid
	tried := 0
	for range 240 { // minutes
		if wl := h.workload(); !workload.HasQuotaReservation(wl) && !workload.IsOnHold(wl) {
			h.admit()
		}
		for range 3 {
			h.reconcile("job")
			tried += h.wrote("patch TrainJob job")
		}
		h.clock.Step(time.Minute)
	}
	if tried < 3 || tried > 20 {
		t.Errorf("it was tried %d times in four hours", tried)
	}
	if h.blocked("job") != integration.ReasonStartRejected || workload.HasQuotaReservation(h.workload()) {
		t.Errorf("its quota is free meanwhile, and a condition says why: got %q", h.blocked("job"))
	}
	delete(h.fail, "patch TrainJob")
	h.label("mended", "true")
	h.settle("job")
	h.clock.Step(10 * time.Second) // for which it says why its last start has failed
	if h.settle("job"); h.blocked("job") != "" {
		t.Errorf("it is another: got %q", h.blocked("job"))
	}
	h.admit()
	if h.settle("job"); h.suspended("job") {
		t.Error("it starts")
	}
}
