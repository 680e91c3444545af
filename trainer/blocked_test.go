package trainer

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/utils/ptr"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides"
	"github.com/signalbox-dev/signalbox/trainer/trial"
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
			}, trial.ReasonTooLarge},
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
			if !h.get(&jobset.JobSet{}, "job") {
				t.Errorf("when it is mended: %+v", h.job("job").Status.Conditions)
			}
		})
	}
}

// TestWhatFailsIsReturned lets each write of the bundled Trainer fail that a TrainJob without a queue takes, from its
// start to its second start. It holds that the reconcile fails, which integration.Concluded tells, or that the
// condition has the error; and that the TrainJob goes on when the request succeeds.
func TestWhatFailsIsReturned(t *testing.T) {
	stages := []func(*harness){
		func(h *harness) { h.put(h.trainJob("mpi", started)) },
		func(h *harness) { h.edit("job", func(j *api.TrainJob) { j.Spec.Suspend = ptr.To(true) }) },
		func(h *harness) {
			h.remove(&jobset.JobSet{}, "job")
			h.restart()
			h.edit("job", func(j *api.TrainJob) { j.Spec.Suspend = ptr.To(false) })
		},
	}
	pass := func(h *harness) (failed error) {
		for range 6 {
			if _, err := h.try("job", false); err != nil {
				failed = err
			}
			h.clock.Step(time.Minute)
		}
		return failed
	}
	until := func(t *testing.T, n int) *harness {
		h := newHarness(t, gangOptions(api.GangRequired, true))
		for _, happens := range stages[:n] {
			happens(h)
			if err := pass(h); err != nil {
				t.Fatal(err)
			}
		}
		h.requests()
		stages[n](h)
		return h
	}
	for n := range stages {
		good := until(t, n)
		if err := pass(good); err != nil {
			t.Fatal(err)
		}
		for _, request := range good.requests() {
			words := strings.Fields(request)
			if kind := words[1]; words[0] == "delete" && (kind == "Secret" || kind == "ConfigMap") {
				continue // nothing waits for that: the next start replaces them
			}
			t.Run(fmt.Sprintf("%d/%s", n, request), func(t *testing.T) {
				h := until(t, n)
				h.fail[words[0]+" "+words[1]+" "] = errors.New("a quota of objects")
				failed := pass(h)
				c := h.job("job").Status.Condition(api.ConditionBlocked)
				if failed == nil && (c == nil || !strings.Contains(c.Message, "a quota of objects")) {
					t.Error("nobody is told")
				}
				clear(h.fail)
				pass(h)
				if got, want := h.job("job").Status.State, good.job("job").Status.State; got != want {
					t.Errorf("it doesn't go on: %s, want %s", got, want)
				}
			})
		}
	}
}
