package integration_test

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/workload"

	usageapi "github.com/signalbox-dev/signalbox/api/usage/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides/dialect"
)

// TestReleasedByOthers holds that a run is recorded, too, whose quota Kueue itself releases, and no other once more.
func TestReleasedByOthers(t *testing.T) {
	unreserved := func(wl *kueue.Workload) {
		workload.UnsetQuotaReservationWithCondition(wl, "Pending", "the queue is stopped", time.Now())
	}
	for name, c := range map[string]struct {
		life   life // the Workload is looked at before the last step
		change func(*kueue.Workload)
		gone   bool
		want   usageapi.Held
	}{
		"the manager cluster takes it back": {life: after(starts, pass(5*time.Second)), gone: true,
			want: usageapi.Held{Idle: 10, Useful: 30, Lost: 35}},
		"it is gone with its TrainJob": {life: after(starts, jobGone), gone: true,
			want: usageapi.Held{Idle: 10, Useful: 30, Lost: 30}},
		"after a restart": {life: after(starts, restarts, pass(5*time.Second)), gone: true,
			want: usageapi.Held{Idle: 10, Useful: 30, Lost: 35}},
		"its queue is stopped before it is admitted": {life: life{submitted, admitted, pass(7 * time.Second)},
			change: unreserved, want: usageapi.Held{Idle: 7}},
		"its boost changes": {life: after(starts, pass(5*time.Second)),
			change: func(wl *kueue.Workload) { wl.Annotations["a"] = "b" }},
		"it was released here": {life: after(starts, evicted, podsEnd), change: unreserved,
			want: usageapi.Held{Idle: 10, Useful: 30, Lost: 30}},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, dialect.Bundled, recording)
			h.live(c.life[:len(c.life)-1])
			before := h.workload()
			h.live(c.life[len(c.life)-1:])
			later := before
			if c.change != nil {
				later = before.DeepCopy()
				c.change(later)
			}
			if c.gone {
				later = before
			}
			for range 2 {
				h.must(h.reconciler.Released(t.Context(), before, later))
			}
			wantRuns := int64(1)
			if c.want == (usageapi.Held{}) {
				wantRuns = 0
			}
			if sum, runs := h.recorded(); sum != c.want || runs != wantRuns {
				t.Errorf("got %d runs of %+v, want %+v", runs, sum, c.want)
			}
		})
	}
	h := newHarness(t, dialect.Bundled, recording)
	h.live(starts)
	elsewhere, others := h.workload(), h.workload()
	elsewhere.Status.ClusterName = ptr.To("worker")
	others.OwnerReferences = []metav1.OwnerReference{{APIVersion: "batch/v1", Kind: "Job", Controller: ptr.To(true)}}
	jobGone(h)
	for _, wl := range []*kueue.Workload{elsewhere, others} {
		h.must(h.reconciler.Released(t.Context(), wl, wl))
	}
	if _, runs := h.recorded(); runs > 0 {
		t.Error("another cluster counts it, or it is no TrainJob's")
	}
}
