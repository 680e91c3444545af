package integration_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/workload"
	workloadfinish "sigs.k8s.io/kueue/pkg/workload/finish"

	"github.com/signalbox-dev/signalbox/admission"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/integration"
	"github.com/signalbox-dev/signalbox/overrides"
	"github.com/signalbox-dev/signalbox/overrides/dialect"
	"github.com/signalbox-dev/signalbox/overrides/legacy"
	"github.com/signalbox-dev/signalbox/store"
)

func TestBlocked(t *testing.T) {
	runtimeWith := func(h *harness, change func(*api.ClusterTrainingRuntime)) {
		rt := &api.ClusterTrainingRuntime{}
		h.must(h.store.Get(h.t.Context(), client.ObjectKey{Name: "torch"}, rt))
		change(rt)
		h.update(rt)
	}
	cases := map[string]struct {
		reason string
		given  func(*harness, *api.TrainJob)
		want   string
		retry  time.Duration
	}{
		"no runtime": {"there is nothing to compute from",
			func(_ *harness, j *api.TrainJob) { j.Spec.RuntimeRef.Name = "none" }, integration.ReasonRuntimeNotFound, 0},
		"another kind": {"a runtime of a kind that nobody knows can't be read",
			func(_ *harness, j *api.TrainJob) { j.Spec.RuntimeRef.Kind = ptr.To("Other") }, integration.ReasonInvalidRuntime, 0},
		"record": {"what another Trainer was told can't be read",
			func(_ *harness, j *api.TrainJob) { j.Annotations = map[string]string{legacy.RecordAnnotation: "{"} },
			integration.ReasonInvalidOverrides, 0},
		"limit": {"more pods than one TrainJob may have",
			func(_ *harness, j *api.TrainJob) { j.Spec.Trainer.NumNodes = ptr.To[int32](1 << 30) },
			integration.ReasonLimitExceeded, 0},
		"PodSets": {"a Workload has no room for so many", func(h *harness, _ *api.TrainJob) {
			runtimeWith(h, func(rt *api.ClusterTrainingRuntime) {
				for i := range 20 {
					rj := node()
					rj.Name, rj.Template.Labels = "extra-"+string(rune('a'+i)), nil
					rt.Spec.Template.Spec.ReplicatedJobs = append(rt.Spec.Template.Spec.ReplicatedJobs, rj)
				}
			})
		}, integration.ReasonTooManyPodSets, 0},
		"placement": {"it says when to look again", func(h *harness, _ *api.TrainJob) {
			h.refusal = &admission.BlockedError{Reason: "Elsewhere", RetryAfter: time.Minute, Err: errors.New("no room")}
		}, "Elsewhere", time.Minute},
	}
	for trainer, d := range trainers {
		for name, c := range cases {
			t.Run(trainer+"/"+name, func(t *testing.T) {
				h := newHarness(t, d)
				job := newTrainJob("job")
				c.given(h, job)
				h.create(job)
				result, err := h.reconcile("job")
				if err != nil || h.blocked("job") != c.want || len(h.workloads()) > 0 || !slices.Equal(h.events, []string{c.want}) {
					t.Errorf("%s: got %q, events %v, error %v, requests %v", c.reason, h.blocked("job"), h.events, err, h.sent)
				}
				if result.RequeueAfter != c.retry {
					t.Errorf("%s: looked at again after %s, want %s", c.reason, result.RequeueAfter, c.retry)
				}
				if _, err := h.reconcile("job"); err != nil || len(h.sent) > 0 || len(h.events) > 0 {
					t.Errorf("it is said once: got %v, %v, %v", h.sent, h.events, err)
				}
			})
		}
	}
}

func TestBlockedLater(t *testing.T) {
	h := newHarness(t, dialect.Bundled)
	h.queue()
	h.admit()
	h.refusal = &admission.BlockedError{Reason: "Elsewhere", Err: errors.New("no room")}
	h.settle("job")
	if h.blocked("job") != "Elsewhere" || !h.suspended("job") || !workload.IsOnHold(h.workload()) ||
		workload.HasQuotaReservation(h.workload()) {
		t.Errorf("what can't start holds no quota: got %+v", h.workload().Status)
	}
	h.refusal = nil
	h.settle("job")
	if h.blocked("job") != "" || workload.IsOnHold(h.workload()) {
		t.Errorf("once it can, it queues again: got %q, %+v", h.blocked("job"), h.workload().Status)
	}
}

func TestPending(t *testing.T) {
	pending := fmt.Errorf("asking: %w", &admission.PendingError{RetryAfter: 5 * time.Second, Err: errors.New("down")})
	for trainer, d := range trainers {
		t.Run(trainer, func(t *testing.T) {
			h := newHarness(t, d)
			h.refusal = pending
			h.create(newTrainJob("job"))
			result, err := h.reconcile("job")
			if err != nil || result.RequeueAfter != 5*time.Second {
				t.Errorf("it is asked again: got %+v, %v", result, err)
			}
			if len(h.workloads()) > 0 || h.blocked("job") != "" || len(h.events) > 0 || len(h.sent) > 0 {
				t.Errorf("nothing is known, so nothing is said: got %v, events %v", h.sent, h.events)
			}
			h.refusal = nil
			h.settle("job")
			if len(h.workloads()) != 1 {
				t.Errorf("it is queued once it is known: got %v", h.sent)
			}
		})
	}
}

// A user reads why a TrainJob isn't queued, once, although the texts of the errors differ.
func TestPendingLong(t *testing.T) {
	forEach(t, func(t *testing.T, h *harness, _ *dialect.Dialect) {
		job := newTrainJob("job")
		h.create(job)
		h.clock.Step(time.Hour)
		for _, text := range []string{"from port 1: refused", "from port 2: refused"} {
			h.refusal = &admission.PendingError{RetryAfter: 5 * time.Second, Err: errors.New(text)}
			h.settle("job")
			if h.blocked("job") != integration.ReasonUnverified || len(h.workloads()) > 0 {
				t.Errorf("got %q, %v", h.blocked("job"), h.sent)
			}
		}
		if result, err := h.reconcile("job"); err != nil || result.RequeueAfter != 5*time.Second || len(h.sent) > 0 {
			t.Errorf("it is retried, and said once: got %+v, %v, %v", result, err, h.sent)
		}
		c := apimeta.FindStatusCondition(h.trainJob("job").Status.Conditions, api.ConditionBlocked)
		if c == nil || c.Message != "from port 1: refused" {
			t.Errorf("got %+v", c)
		}
		h.refusal = nil
		h.settle("job")
		if h.blocked("job") != "" || len(h.workloads()) != 1 {
			t.Errorf("it is queued once it is verified: got %q, %v", h.blocked("job"), h.sent)
		}
	})
}

// An API server that doesn't answer keeps nobody from being stopped, so that quota is free once the pods have ended.
func TestPendingLater(t *testing.T) {
	h := newHarness(t, dialect.Bundled)
	h.run()
	js := h.build("job")
	pod := h.pod(js)
	h.evict(kueue.WorkloadEvictedByPreemption)
	h.refusal = &admission.PendingError{RetryAfter: 5 * time.Second, Err: errors.New("down")}
	h.settle("job")
	if !h.suspended("job") || !workload.HasQuotaReservation(h.workload()) {
		t.Errorf("it is stopped, and its pod runs: got %+v", h.workload().Status)
	}
	h.remove(pod)
	h.collect(js)
	h.settle("job")
	if workload.HasQuotaReservation(h.workload()) {
		t.Errorf("nothing runs: got %+v", h.workload().Status)
	}
	if result, err := h.reconcile("job"); err != nil || result.RequeueAfter != 5*time.Second {
		t.Errorf("it is asked again: got %+v, %v", result, err)
	}
}

func TestStarts(t *testing.T) {
	t.Run("bundled", func(t *testing.T) {
		h := newHarness(t, dialect.Bundled)
		h.queue()
		h.admit()
		if _, err := h.reconcile("job"); err != nil || h.wrote("patch TrainJob ") != 1 {
			t.Fatalf("it starts by one patch: got %v, %v", h.sent, err)
		}
		body := strings.Join(h.bodies, "\n")
		for _, part := range []string{`"/spec/suspend"`, overrides.Manager,
			store.PinAnnotation[strings.Index(store.PinAnnotation, "/")+1:]} {
			if !strings.Contains(body, part) {
				t.Errorf("the patch has %s: got %s", part, body)
			}
		}
		job := h.trainJob("job")
		if h.suspended("job") || dialect.Bundled.Own(job) == nil || job.Annotations[store.PinAnnotation] == "" {
			t.Errorf("its entry, its pin and suspend are written: got %+v", job)
		}
		if h.reconcile("job"); h.wrote("patch TrainJob ") > 0 {
			t.Errorf("it starts once: got %v", h.sent)
		}
	})
	for name, writes := range map[string]int{"v2.3": 1, "v2.2": 1, "v2.1": 2, "v2.0": 2} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, trainers[name])
			h.queue()
			h.admit()
			result, err := h.reconcile("job")
			if err != nil || !h.suspended("job") || result.RequeueAfter != 10*time.Second {
				t.Fatalf("it waits for Trainer's JobSet: got %v, %v, %v", result, err, h.sent)
			}
			h.clock.Step(31 * time.Second)
			if _, err := h.reconcile("job"); err != nil || h.suspended("job") || !slices.Contains(h.events, "NotSettled") {
				t.Fatalf("it starts in the end: got %v, %v", h.events, err)
			}
			if got := h.wrote("patch TrainJob "); got != writes {
				t.Errorf("got %d writes, want %d: %v", got, writes, h.sent)
			}
			if trainers[name].Own(h.trainJob("job")) == nil {
				t.Error("it has an entry")
			}
		})
	}
	t.Run("v2.2.0", func(t *testing.T) {
		h := newHarness(t, dialect.Kubeflow22)
		h.queue()
		h.admit()
		h.clock.Step(31 * time.Second)
		h.fail["patch TrainJob"] = apierrors.NewForbidden(schema.GroupResource{Resource: "trainjobs"}, "job",
			errors.New("spec.runtimePatches: Forbidden: RuntimePatches can only be modified when the TrainJob is suspended"))
		if _, err := h.reconcile("job"); err == nil || h.wrote("patch TrainJob ") != 2 {
			t.Errorf("the refused start is tried in two writes: got %v, %v", h.sent, err)
		}
		delete(h.fail, "patch TrainJob")
		h.clock.Step(10 * time.Second)
		if _, err := h.reconcile("job"); err != nil || h.wrote("patch TrainJob ") != 2 || h.suspended("job") {
			t.Errorf("the refusal is remembered: got %v, %v", h.sent, err)
		}
	})
}

func TestStartRefused(t *testing.T) {
	resource := schema.GroupResource{Group: "trainer.kubeflow.org", Resource: "trainjobs"}
	cases := map[string]struct {
		reason string
		answer error
		again  time.Duration
		failed bool
	}{
		"conflict": {"it was decided on an older version", apierrors.NewConflict(resource, "job",
			errors.New("modified")), store.ConflictDelay, false},
		"forbidden": {"somebody has to look", apierrors.NewForbidden(resource, "job", errors.New("no")), 0, true},
		"invalid":   {"the same", apierrors.NewInvalid(schema.GroupKind{Kind: "TrainJob"}, "job", nil), 0, true},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, dialect.Bundled)
			h.queue()
			h.admit()
			h.fail["patch TrainJob"] = c.answer
			result, err := h.reconcile("job")
			if (err != nil) != c.failed || result.RequeueAfter != c.again || !h.suspended("job") {
				t.Errorf("%s: got %v, %v", c.reason, result, err)
			}
			delete(h.fail, "patch TrainJob")
			h.clock.Step(10 * time.Second)
			if h.settle("job"); h.suspended("job") {
				t.Error("it starts once it can")
			}
		})
	}
}

func TestNotStarted(t *testing.T) {
	mismatch := func(change func(*kueue.PodSetAssignment)) func(*harness) { return func(h *harness) { h.admit(change) } }
	cases := map[string]struct {
		reason string
		given  func(*harness)
		event  string
	}{
		"another PodSet": {"it was admitted for something else",
			mismatch(func(a *kueue.PodSetAssignment) { a.Name = "other" }), "AdmissionMismatch"},
		"another usage": {"it uses more than it was given", mismatch(func(a *kueue.PodSetAssignment) {
			a.ResourceUsage = corev1.ResourceList{gpu: resource.MustParse("0")}
		}), "AdmissionMismatch"},
		"inactive": {"Kueue counts nothing of it", func(h *harness) {
			h.admit()
			wl := h.workload()
			wl.Spec.Active = ptr.To(false)
			h.update(wl)
		}, ""},
		"to be deactivated": {"its quota is about to go", func(h *harness) {
			h.admit()
			wl := h.workload()
			wl.Annotations = map[string]string{api.DeactivateAnnotation: "user"}
			h.update(wl)
		}, ""},
		"JobSet of the last run": {"its pods may run still", func(h *harness) { h.build("job"); h.admit() }, ""},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, dialect.Bundled)
			h.queue()
			c.given(h)
			_, err := h.reconcile("job")
			if err != nil || !h.suspended("job") {
				t.Errorf("%s: got %v, %v", c.reason, h.sent, err)
			}
			if c.event != "" && (!slices.Contains(h.events, c.event) || h.wrote("delete Workload") != 1) {
				t.Errorf("%s: got %v, %v", c.reason, h.events, h.sent)
			}
		})
	}
	t.Run("conflicting entry", func(t *testing.T) {
		h := newHarness(t, dialect.Bundled)
		job := newTrainJob("job")
		rj := trainerapi.ReplicatedJobPatch{Name: "node"}
		rj.Template = &trainerapi.JobTemplatePatch{Spec: &trainerapi.JobSpecPatch{Template: &trainerapi.PodTemplatePatch{
			Spec: &trainerapi.PodSpecPatch{NodeSelector: map[string]string{"pool": "b"}}}}}
		job.Spec.RuntimePatches = []trainerapi.RuntimePatch{{Manager: "example.com/user",
			TrainingRuntimeSpec: &trainerapi.TrainingRuntimeSpecPatch{
				Template: &trainerapi.JobSetTemplatePatch{Spec: &trainerapi.JobSetSpecPatch{
					ReplicatedJobs: []trainerapi.ReplicatedJobPatch{rj}}}}}}
		h.create(job)
		h.settle("job")
		h.admit()
		events := h.settle("job")
		if !h.suspended("job") || !workloadfinish.IsFinished(h.workload()) || !slices.Contains(events, "FailedToStart") {
			t.Errorf("what contradicts its admission never starts: got %v, %+v", events, h.workload().Status)
		}
	})
}
