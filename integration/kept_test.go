package integration_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/workload"
	workloadfinish "sigs.k8s.io/kueue/pkg/workload/finish"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/integration"
	"github.com/signalbox-dev/signalbox/overrides/dialect"
)

// TestKeptChildren holds that what others keep from being deleted holds no quota once nothing of it runs, and lets pods
// run on no longer.
func TestKeptChildren(t *testing.T) {
	gone := func(h *harness) { h.remove(h.trainJob("job")) }
	t.Run("a JobSet of a deleted TrainJob", func(t *testing.T) {
		h := newHarness(t, dialect.Bundled)
		h.run()
		js := h.build("job")
		pod := h.pod(js)
		js.Finalizers = []string{"example.com/keep"}
		h.update(js)
		h.remove(js) // as the garbage collector does it in the background
		gone(h)
		h.reconcile("job")
		if !slices.Contains(h.sent, "delete JobSet job") {
			t.Fatalf("its pods would run on: got %v", h.sent)
		}
		h.clock.Step(time.Minute)
		if h.reconcile("job"); !workload.HasQuotaReservation(h.workload()) || workloadfinish.IsFinished(h.workload()) {
			t.Fatal("its pod runs")
		}
		h.remove(pod)
		h.must(h.store.DeleteAllOf(t.Context(), jobOf(), client.InNamespace(team)))
		h.reconcile("job")
		h.reconcile("job")
		if all := h.workloads(); len(all) > 0 && !workloadfinish.IsFinished(&all[0]) {
			t.Errorf("nothing runs: got %+v", all[0].Status.Conditions)
		}
	})
	t.Run("a Workload of a deleted TrainJob", func(t *testing.T) {
		h := newHarness(t, dialect.Bundled)
		h.run()
		wl := h.workload()
		wl.Finalizers = append(wl.Finalizers, "example.com/keep")
		h.update(wl)
		h.remove(wl)
		gone(h)
		h.reconcile("job")
		h.reconcile("job")
		if wl := h.workload(); !workloadfinish.IsFinished(wl) || slices.Contains(wl.Finalizers,
			kueue.ResourceInUseFinalizerName) {
			t.Errorf("Kueue counts it until it is finished: got %+v", wl.Status.Conditions)
		}
	})
	t.Run("a Workload", func(t *testing.T) {
		h := newHarness(t, dialect.Bundled)
		h.run()
		wl := h.workload()
		wl.Finalizers = append(wl.Finalizers, "example.com/keep")
		h.update(wl)
		h.remove(wl)
		h.settle("job")
		h.clock.Step(2 * time.Minute)
		h.settle("job")
		if wl := h.workload(); !workloadfinish.IsFinished(wl) || h.blocked("job") != integration.ReasonWorkloadKept {
			t.Errorf("its quota is free, and a condition names the finalizer: got %q, %+v", h.blocked("job"),
				wl.Status.Conditions)
		}
		if c := conditionOf(h.trainJob("job"), api.ConditionBlocked); c == nil || !strings.Contains(c.Message,
			"example.com/keep") {
			t.Errorf("got %+v", c)
		}
	})
	t.Run("a JobSet of a stopped TrainJob, by what names it as its owner", func(t *testing.T) {
		h := newHarness(t, dialect.Bundled)
		h.run()
		js := h.build("job")
		js.Finalizers = []string{metav1.FinalizerDeleteDependents}
		h.update(js)
		h.evict(kueue.WorkloadEvictedByPreemption)
		h.settle("job")
		h.remove(js)
		h.clock.Step(time.Minute)
		deleted := 0
		for range 3 {
			h.reconcile("job")
			deleted += h.wrote("delete JobSet")
		}
		if deleted == 0 || workload.HasQuotaReservation(h.workload()) {
			t.Errorf("its deletion doesn't wait for what may never go: got %d deletions", deleted)
		}
	})
	t.Run("a Job of a stopped TrainJob", func(t *testing.T) {
		h := newHarness(t, dialect.Bundled)
		h.run()
		js := h.build("job")
		pod := h.pod(js)
		job := jobOf()
		h.must(h.store.Get(t.Context(), types.NamespacedName{Namespace: team, Name: "job-node-0"}, job))
		job.Finalizers = []string{"example.com/keep"}
		h.update(job)
		h.evict(kueue.WorkloadEvictedByPreemption)
		h.settle("job")
		h.remove(pod)
		h.remove(job)
		h.remove(js)
		if h.settle("job"); workload.HasQuotaReservation(h.workload()) || h.blocked("job") != "" {
			t.Errorf("it has time to go: got %q", h.blocked("job"))
		}
		h.clock.Step(2 * time.Minute)
		if h.settle("job"); h.blocked("job") != integration.ReasonLastRunKept {
			t.Errorf("the Job's name is taken: got %q", h.blocked("job"))
		}
	})
}
