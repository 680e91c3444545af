package integration_test

import (
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/signalbox-dev/signalbox/overrides/dialect"
	"github.com/signalbox-dev/signalbox/podsets"
)

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
