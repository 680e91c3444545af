package trainer

import (
	"strings"
	"testing"
	"time"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides"
)

// TestUnqueuedSaysWhy holds that a TrainJob without a queue, which nothing keeps from being started, says why it has no
// JobSet, and that it goes on when that is fixed.
func TestUnqueuedSaysWhy(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*options)
		mend   func(*options)
		reason string
	}{
		"gangs aren't served": {
			func(o *options) { o.gangMode = api.GangRequired }, func(o *options) { o.gangsServed = true }, "Unavailable"},
		"it is too large": {
			func(o *options) { o.limits.Pods = 1 }, func(o *options) {
				o.limits = overrides.Limits{
					Pods: 10, SpecBytes: 1 << 20, Elements: 1 << 20, GracePeriodSeconds: 3600}
			}, ReasonTooLarge},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, c.change)
			h.put(h.trainJob("torch", started))
			for range 3 {
				h.reconcile("job")
				h.clock.Step(time.Minute)
			}
			job := h.job("job")
			blocked := apimeta.FindStatusCondition(job.Status.Conditions, api.ConditionBlocked)
			if blocked == nil || !strings.Contains(blocked.Reason, c.reason) || blocked.Message == "" ||
				job.Status.State != api.StateBlocked {
				t.Fatalf("got state %s, %+v", job.Status.State, job.Status.Conditions)
			}
			h.requests()
			h.reconcile("job")
			for _, request := range h.requests() {
				if strings.HasPrefix(request, "patch TrainJob/status") {
					t.Errorf("it is said again: %s", request)
				}
			}
			c.mend(&h.options)
			h.restart()
			for range 5 {
				h.reconcile("job")
				h.clock.Step(time.Minute)
			}
			if job := h.job("job"); !h.get(&jobset.JobSet{}, "job") || job.Status.Condition(api.ConditionBlocked) != nil ||
				job.Status.State != api.StateStarting {
				t.Errorf("when it is mended: %s, %+v", job.Status.State, job.Status.Conditions)
			}
		})
	}
}
