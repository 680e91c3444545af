package integration_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"sigs.k8s.io/kueue/pkg/constants"
	"sigs.k8s.io/kueue/pkg/features"
	"sigs.k8s.io/kueue/pkg/workload"

	"github.com/signalbox-dev/signalbox/admission/after"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides/dialect"
)

// waiter is a TrainJob that waits for others, as the webhook leaves it.
func (h *harness) waiter(name, dependencies string) {
	h.t.Helper()
	job := newTrainJob(name)
	job.Annotations = map[string]string{api.AfterAnnotation: dependencies,
		constants.AdmissionGatedByAnnotation: "example.com/budget," + after.Gate}
	h.create(job)
}

// gates returns the gates of a TrainJob, and of the only Workload.
func (h *harness) gates(name string) (job, workload string) {
	h.t.Helper()
	key := constants.AdmissionGatedByAnnotation
	return h.trainJob(name).Annotations[key], h.workload().Annotations[key]
}

// TestAfter holds that a TrainJob's gate is opened when the others have ended as they had to, by one write, and that
// how the first has ended is noted until then.
func TestAfter(t *testing.T) {
	forEach(t, func(t *testing.T, h *harness, _ *dialect.Dialect) {
		for _, name := range []string{"first", "second"} {
			job := newTrainJob(name)
			job.Labels = nil
			h.create(job)
		}
		h.waiter("job", "first=ok,second=any")
		h.settle("job")
		if job, wl := h.gates("job"); job != wl || !strings.Contains(wl, after.Gate) || h.blocked("job") != "" {
			t.Errorf("it waits: got gates %q and %q, blocked %q", job, wl, h.blocked("job"))
		}
		h.end("first", trainerapi.TrainJobComplete)
		h.settle("job")
		if got := h.trainJob("job").Annotations[api.AfterEndedAnnotation]; got != "first=ok,second=there" {
			t.Errorf("how the first has ended is noted: got %q", got)
		}
		h.remove(h.trainJob("first"))
		h.settle("job")
		h.end("second", trainerapi.TrainJobFailed)
		if _, err := h.reconcile("job"); err != nil || h.wrote("") != 1 || h.wrote("patch TrainJob job") != 1 {
			t.Errorf("one write opens its gate: got %v, %v", h.sent, err)
		}
		h.settle("job")
		if job, wl := h.gates("job"); job != "example.com/budget" || wl != job {
			t.Errorf("the other's gate stays: got %q and %q", job, wl)
		}
	})
}

// TestAfterWithoutGates holds that a TrainJob doesn't run before others although Kueue's gate has been turned off.
func TestAfterWithoutGates(t *testing.T) {
	features.SetFeatureGateDuringTest(t, features.AdmissionGatedBy, false)
	forEach(t, func(t *testing.T, h *harness, _ *dialect.Dialect) {
		first := newTrainJob("first")
		first.Labels = nil
		h.create(first)
		h.waiter("job", "first=ok")
		h.settle("job")
		if !strings.HasPrefix(h.blocked("job"), after.Reason) || len(h.workloads()) > 0 {
			t.Errorf("Kueue would admit it: got %q", h.blocked("job"))
		}
		h.end("first", trainerapi.TrainJobComplete)
		h.settle("job")
		if h.blocked("job") != "" {
			t.Errorf("it may run: got %q", h.blocked("job"))
		}
	})
}

// TestAfterWithoutItsGate holds what becomes of a TrainJob whose Workload has lost its gate, or got quota with it.
func TestAfterWithoutItsGate(t *testing.T) {
	forEach(t, func(t *testing.T, h *harness, _ *dialect.Dialect) {
		first := newTrainJob("first")
		first.Labels = nil
		h.create(first)
		h.waiter("job", "first=ok")
		h.settle("job")
		before := h.workload().UID
		h.sets(constants.AdmissionGatedByAnnotation, "")
		h.admit()
		h.clock.Step(time.Minute)
		if _, err := h.reconcile("job"); err == nil || !strings.Contains(err.Error(), "no matching workloads") {
			t.Errorf("it is made again: got %v", err)
		}
		h.settle("job")
		if wl := h.workload(); wl.UID == before || !workload.HasAdmissionGate(wl) || workload.HasQuotaReservation(wl) ||
			!h.suspended("job") {
			t.Errorf("it waits by a Workload with a gate: got %v", wl)
		}
		h.admit() // by a Kueue that knows no gates
		for range 2 {
			h.clock.Step(time.Minute)
			h.settle("job")
			if workload.HasQuotaReservation(h.workload()) || !h.suspended("job") || h.blocked("job") != after.Reason {
				t.Errorf("it holds no quota meanwhile: got %v, blocked %q", h.workload().Status, h.blocked("job"))
			}
		}
		h.end("first", trainerapi.TrainJobComplete)
		h.settle("job")
		if h.blocked("job") != "" {
			t.Errorf("it may run: got %q", h.blocked("job"))
		}
	})
}

// TestAfterNever holds when a TrainJob is blocked by those that it waits for, and what lifts it.
func TestAfterNever(t *testing.T) {
	forEach(t, func(t *testing.T, h *harness, _ *dialect.Dialect) {
		h.waiter("job", "first=ok")
		if result, err := h.reconcile("job"); err != nil || h.blocked("job") != "" || result.RequeueAfter > 10*time.Second {
			t.Errorf("it may be created a moment later: got %v, %v, %q", result, err, h.blocked("job"))
		}
		h.clock.Step(10 * time.Second)
		h.settle("job")
		if !strings.HasPrefix(h.blocked("job"), after.Reason) {
			t.Errorf("nobody of the name is there: got %q", h.blocked("job"))
		}
		h.waiter("first", "job=any")
		h.settle("job")
		c := conditionOf(h.trainJob("job"), api.ConditionBlocked)
		if c == nil || !strings.Contains(c.Message, "job waits for first waits for job") {
			t.Errorf("a circle is named: got %v", c)
		}
		h.remove(h.trainJob("first"))
		first := newTrainJob("first")
		first.Labels = nil
		h.create(first)
		h.settle("job")
		if h.blocked("job") != "" {
			t.Errorf("it waits for the new one: got %q", h.blocked("job"))
		}
		h.end("first", trainerapi.TrainJobFailed)
		h.settle("job")
		if !strings.HasPrefix(h.blocked("job"), after.Reason) ||
			h.trainJob("job").Annotations[api.AfterEndedAnnotation] != "first=failed" {
			t.Errorf("it must not have failed: got %q", h.blocked("job"))
		}
		for _, verb := range []string{"get TrainJob", "list TrainJob"} {
			h.fail[verb] = errors.New("down")
			if _, err := h.reconcile("job"); err == nil {
				t.Errorf("%s: what can't be read decides nothing", verb)
			}
			delete(h.fail, verb)
		}
	})
}
