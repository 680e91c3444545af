package integration_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/workload"
	workloadfinish "sigs.k8s.io/kueue/pkg/workload/finish"

	"github.com/signalbox-dev/signalbox/admission"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/integration"
	"github.com/signalbox-dev/signalbox/overrides/dialect"
)

// TestWritesOfWhatCantStart holds that a TrainJob that can't be started costs a few writes in an hour, holds no quota
// after its second attempt, says why, and starts when what keeps it is gone.
func TestWritesOfWhatCantStart(t *testing.T) {
	less := func(a *kueue.PodSetAssignment) {
		a.ResourceUsage = corev1.ResourceList{gpu: resource.MustParse("0")}
	}
	for name, c := range map[string]struct {
		reason string
		// admitted is how often the TrainJob is admitted in an hour.
		admitted int
		admits   []func(*kueue.PodSetAssignment)
		given    func(*harness)
		mend     func(*harness)
	}{
		"admitted for less": {integration.ReasonAdmissionMismatch, 2, []func(*kueue.PodSetAssignment){less},
			func(*harness) {}, func(h *harness) { h.label("mended", "true") }},
		"the start rejected": {integration.ReasonStartRejected, 1, nil,
			func(h *harness) { h.fail["patch TrainJob"] = invalid },
			func(h *harness) { delete(h.fail, "patch TrainJob"); h.label("mended", "true") }},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, dialect.Bundled)
			h.create(newTrainJob("job"))
			c.given(h)
			admitted, writes := 0, 0
			for range 60 { // minutes
				for range 4 {
					if all := h.workloads(); len(all) == 1 && !workload.HasQuotaReservation(&all[0]) &&
						!workload.IsOnHold(&all[0]) && !workloadfinish.IsFinished(&all[0]) {
						h.admit(c.admits...)
						admitted++
					}
					h.reconcile("job")
					writes += len(h.sent)
					h.clock.Step(15 * time.Second)
				}
			}
			if admitted != c.admitted || writes > 10 {
				t.Errorf("admitted %d times, %d writes: the second attempt is the last in an hour", admitted, writes)
			}
			if h.blocked("job") != c.reason {
				t.Errorf("blocked: got %q, want %s", h.blocked("job"), c.reason)
			}
			for _, wl := range h.workloads() {
				if workload.HasQuotaReservation(&wl) && !workloadfinish.IsFinished(&wl) {
					t.Errorf("it holds quota: %+v", wl.Status)
				}
			}
			h.start(dialect.Bundled)
			for range 3 {
				if h.settle("job"); !workload.IsOnHold(h.workload()) || h.blocked("job") != c.reason {
					t.Errorf("a restart of the manager queues nothing again: blocked %q, %+v", h.blocked("job"), h.workload().Status)
				}
				h.clock.Step(time.Minute)
			}
			c.mend(h)
			h.settle("job")
			h.admit()
			if h.settle("job"); h.suspended("job") {
				t.Errorf("it starts when it is mended: got %q", h.blocked("job"))
			}
		})
	}
}

// TestWritesWithoutPods holds that a TrainJob that starts whenever it is admitted and never gets a pod costs a few
// writes in its first hour, whether why is known or not; and that it is tried again after it.
func TestWritesWithoutPods(t *testing.T) {
	for name, refusal := range map[string]error{"unknown why": nil, "a ResourceQuota": usedUp(3)} {
		for _, d := range []*dialect.Dialect{dialect.Bundled, dialect.Kubeflow23} {
			t.Run(name+" beside "+d.Name, func(t *testing.T) {
				h := newHarness(t, d)
				h.pods.refusal = refusal
				h.create(newTrainJob("job"))
				starts := 0
				hour := func() (writes int) {
					for range 4 * 60 {
						if all := h.workloads(); len(all) == 1 && !workload.HasQuotaReservation(&all[0]) && !workload.IsOnHold(&all[0]) {
							h.admit()
							starts++
						}
						h.reconcile("job")
						writes += len(h.sent)
						h.clock.Step(15 * time.Second)
					}
					return writes
				}
				if writes := hour(); starts != 1 || writes > 10 {
					t.Errorf("in its first hour: started %d times, %d writes", starts, writes)
				}
				if writes := hour(); starts != 2 || writes > 10 {
					t.Errorf("in its second: started %d times, %d writes", starts, writes)
				}
			})
		}
	}
}

// TestSetbackIsOver holds that what has failed once before a start isn't counted with what fails after it.
func TestSetbackIsOver(t *testing.T) {
	h := newHarness(t, dialect.Bundled)
	reject := func() {
		h.fail["patch TrainJob"] = invalid
		var err error
		for range 5 {
			if err == nil {
				_, err = h.reconcile("job")
			}
		}
		delete(h.fail, "patch TrainJob")
		if err == nil {
			t.Fatalf("it was to be started: %v, blocked %q", h.workload().Status.Conditions, h.blocked("job"))
		}
		h.clock.Step(time.Minute)
		if h.settle("job"); h.suspended("job") || h.blocked("job") != "" {
			t.Fatalf("the second attempt succeeds: blocked %q", h.blocked("job"))
		}
	}
	h.queue()
	h.admit()
	reject()
	for range 2 {
		h.evict(kueue.WorkloadEvictedByPreemption)
		h.settle("job")
		h.clock.Step(48 * time.Hour)
		h.settle("job")
		h.admit()
		reject()
	}
}

// TestFailedToStartIsTriedAgain holds that a TrainJob whose entry contradicted its admission is queued again when it is
// corrected, or when its user asks for it, and not before.
func TestFailedToStartIsTriedAgain(t *testing.T) {
	pool := func(value string) []trainerapi.RuntimePatch {
		pod := &trainerapi.PodSpecPatch{NodeSelector: map[string]string{"pool": value}}
		rj := trainerapi.ReplicatedJobPatch{Name: "node", Template: &trainerapi.JobTemplatePatch{
			Spec: &trainerapi.JobSpecPatch{Template: &trainerapi.PodTemplatePatch{Spec: pod}}}}
		spec := &trainerapi.JobSetSpecPatch{ReplicatedJobs: []trainerapi.ReplicatedJobPatch{rj}}
		return []trainerapi.RuntimePatch{{Manager: "example.com/user",
			TrainingRuntimeSpec: &trainerapi.TrainingRuntimeSpecPatch{Template: &trainerapi.JobSetTemplatePatch{Spec: spec}}}}
	}
	for name, mend := range map[string]func(*harness){
		"corrected": func(h *harness) {
			job := h.trainJob("job")
			job.Spec.RuntimePatches = pool("a")
			h.update(job)
		},
		"stopped and resumed": func(h *harness) {
			h.annotate(api.StopAnnotation, "")
			h.settle("job")
			h.annotate(api.StopAnnotation, "-")
		},
		"its Workload deleted": func(h *harness) {
			h.clock.Step(time.Minute)
			h.remove(h.workload())
		},
		"its Workload deleted after a restart": func(h *harness) {
			h.start(dialect.Bundled)
			h.settle("job")
			h.clock.Step(time.Minute)
			h.remove(h.workload())
		},
		"its runtime corrected": func(h *harness) {
			rt := &api.ClusterTrainingRuntime{}
			h.must(h.store.Get(h.t.Context(), client.ObjectKey{Name: "torch"}, rt))
			rt.Spec.Template.Spec.ReplicatedJobs[0].Template.Spec.Template.Spec.Containers[0].Image = "example.com/other:1"
			h.update(rt)
		},
		"asked for":     func(h *harness) { h.label("again", "please") },
		"after an hour": func(h *harness) { h.clock.Step(time.Hour) },
		"an hour after a restart": func(h *harness) {
			h.start(dialect.Bundled)
			h.settle("job")
			if n := h.wrote("delete Workload"); n != 0 {
				h.t.Error("an upgrade queues nothing again")
			}
			h.clock.Step(time.Hour)
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, dialect.Bundled)
			job := newTrainJob("job")
			job.Spec.RuntimePatches = pool("b")
			h.create(job)
			h.settle("job")
			h.admit()
			if told := h.settle("job"); !workloadfinish.IsFinished(h.workload()) || !slices.Contains(told, "FailedToStart") {
				t.Fatalf("got %v, %+v", told, h.workload().Status)
			}
			if h.settle("job"); !strings.HasPrefix(h.blocked("job"), admission.ReasonFailedToStart) {
				t.Errorf("it says so: got %q", h.blocked("job"))
			}
			for range 5 {
				h.clock.Step(5 * time.Minute)
				h.reconcile("job")
				if n := h.wrote("delete Workload"); n != 0 {
					t.Fatalf("nothing has changed: got %v", h.sent)
				}
			}
			mend(h)
			h.settle("job")
			if all := h.workloads(); len(all) != 1 || workloadfinish.IsFinished(&all[0]) {
				t.Fatalf("it is queued again: got %+v", all)
			}
			h.clock.Step(10 * time.Second) // until then, it says what the last start has failed of
			h.settle("job")
			if strings.HasPrefix(h.blocked("job"), "FailedToStart") {
				t.Errorf("got %q", h.blocked("job"))
			}
		})
	}
}
