package integration_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/workload"

	"github.com/signalbox-dev/signalbox/admission/boost"
	configapi "github.com/signalbox-dev/signalbox/api/config/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides/dialect"
)

func tenMinutes(c *configapi.Configuration) {
	c.Preemption.MinimumRuntime.Default.Duration = 10 * time.Minute
}

func cheapestVictim(c *configapi.Configuration) { c.Preemption.CheapestVictim = true }

// boosted returns the boost of the only Workload, and what it remembers of it.
func (h *harness) boosted() (value, mark string) {
	h.t.Helper()
	annotations := h.workload().Annotations
	return annotations[boost.Annotation], annotations[boost.MarkAnnotation]
}

func (h *harness) wantBoost(want string) {
	h.t.Helper()
	if got, mark := h.boosted(); got != want || want != "" && !strings.HasPrefix(mark, want+" ") {
		h.t.Errorf("got boost %q, marked %q; want %q", got, mark, want)
	}
}

// sets is another's write of an annotation of the only Workload; "" removes it.
func (h *harness) sets(key, value string) {
	h.t.Helper()
	wl := h.workload()
	metav1.SetMetaDataAnnotation(&wl.ObjectMeta, key, value)
	if value == "" {
		delete(wl.Annotations, key)
	}
	h.update(wl)
}

// TestBoostsAtStart holds that a TrainJob is within its minimum runtime before it runs, by one write, and until that is
// over.
func TestBoostsAtStart(t *testing.T) {
	forEach(t, func(t *testing.T, h *harness, d *dialect.Dialect) {
		h.start(d, tenMinutes)
		h.queue()
		h.wantBoost("")
		h.admit()
		h.clock.Step(31 * time.Second)
		for h.suspended("job") {
			if _, err := h.reconcile("job"); err != nil {
				t.Fatal(err)
			}
		}
		boosts := slices.IndexFunc(h.sent, func(s string) bool { return strings.HasPrefix(s, "patch Workload ") })
		starts := slices.Index(h.sent, "patch TrainJob job")
		if boosts < 0 || boosts > starts || h.wrote("patch Workload ") != 1 {
			t.Errorf("it is boosted, and then started: got %v", h.sent)
		}
		h.wantBoost("4")
		h.pod(h.build("job"))
		h.settle("job")
		h.clock.Step(5 * time.Minute)
		h.settle("job") // Kueue waits for its pods by now
		if result, err := h.reconcile("job"); err != nil || len(h.sent) > 0 || result.RequeueAfter <= 0 ||
			result.RequeueAfter > 5*time.Minute {
			t.Errorf("it is looked at again: got %v, %v, requests %v", result, err, h.sent)
		}
		h.clock.Step(5 * time.Minute)
		h.settle("job")
		if value, mark := h.boosted(); value+mark != "" || h.suspended("job") {
			t.Errorf("its minimum runtime is over, and it runs on: got %q, %q", value, mark)
		}
	})
}

// TestBoostOff holds that a TrainJob has no boost if nothing is set, that one which a manager with other settings has
// written is removed, and that nothing is asked for.
func TestBoostOff(t *testing.T) {
	h := newHarness(t, dialect.Bundled)
	h.did = map[string]bool{}
	h.run()
	if value, mark := h.boosted(); value+mark != "" || h.did["list WorkloadPriorityClass"] {
		t.Errorf("got %q, %q, %v", value, mark, h.did)
	}
	h = newHarness(t, dialect.Bundled, tenMinutes)
	h.run()
	h.wantBoost("4")
	h.start(dialect.Bundled)
	h.settle("job")
	if value, mark := h.boosted(); value+mark != "" {
		t.Errorf("the admin has turned it off: got %q, %q", value, mark)
	}
}

// runningBoosted is a harness with a TrainJob that runs within its minimum runtime, and has a pod.
func runningBoosted(t *testing.T) (*harness, *jobset.JobSet) {
	h := newHarness(t, dialect.Bundled, tenMinutes)
	h.run()
	js := h.build("job")
	h.pod(js)
	h.settle("job")
	h.wantBoost("4")
	h.clock.Step(time.Minute)
	return h, js
}

// TestAnothersBoost holds that what others write of a boost is left alone, in whatever stage the TrainJob is.
func TestAnothersBoost(t *testing.T) {
	for name, theirs := range map[string]string{"higher": "7", "lower": "-2", "removed": ""} {
		t.Run(name, func(t *testing.T) {
			h, js := runningBoosted(t)
			h.sets(boost.Annotation, theirs)
			h.settle("job")
			h.clock.Step(20 * time.Minute)
			h.settle("job")
			if got, _ := h.boosted(); got != theirs {
				t.Errorf("while it runs: got %q, want %q", got, theirs)
			}
			h.evict(kueue.WorkloadEvictedByPreemption)
			h.settleN(6)
			h.gone(js)
			h.settleN(6)
			if got, mark := h.boosted(); got != theirs || mark != "" {
				t.Errorf("when it has stopped: got %q, %q", got, mark)
			}
		})
	}
	h := newHarness(t, dialect.Bundled, tenMinutes)
	h.queue()
	h.sets(boost.Annotation, "7")
	h.admit()
	h.clock.Step(11 * time.Second)
	h.settle("job")
	if got, mark := h.boosted(); got != "7" || mark != "" || h.suspended("job") {
		t.Errorf("one that had it before it was admitted: got %q, %q", got, mark)
	}
}

// TestBoostOfAnotherVersion holds that a boost is written to the version that was decided on: an eviction, or another's
// boost, that the cache doesn't have keeps it from being written, and delays no start.
func TestBoostOfAnotherVersion(t *testing.T) {
	for name, meanwhile := range map[string]func(*harness){
		"it is evicted":  func(h *harness) { h.evict(kueue.WorkloadEvictedByPreemption) },
		"others boosted": func(h *harness) { h.sets(boost.Annotation, "2") },
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, dialect.Bundled, tenMinutes)
			h.queue()
			h.admit()
			h.clock.Step(11 * time.Second)
			h.freeze("Workload", &kueue.WorkloadList{})
			meanwhile(h)
			before, _ := h.boosted()
			if _, err := h.reconcile("job"); err != nil || h.suspended("job") {
				t.Errorf("it starts: got %v, %v", h.sent, err)
			}
			if got, mark := h.boosted(); got != before || mark != "" {
				t.Errorf("got %q, %q", got, mark)
			}
			h.thaw("Workload")
			h.settleUnboosted(nil)
		})
	}
	h, _ := runningBoosted(t)
	h.freeze("Workload", &kueue.WorkloadList{})
	h.sets("example.com/any", "1")
	h.clock.Step(10 * time.Minute)
	for range 3 {
		if _, err := h.reconcile("job"); err != nil {
			t.Errorf("a stale cache is no error: %v", err)
		}
	}
	h.wantBoost("4")
	h.thaw("Workload")
	h.settle("job")
	h.wantBoost("")
}

// TestBoostBeforeRestart holds that a manager that was killed between the boost and the start doesn't write it twice,
// and that a start which the API server rejects leaves no boost without quota.
func TestBoostBeforeRestart(t *testing.T) {
	h := newHarness(t, dialect.Bundled, tenMinutes)
	h.queue()
	h.admit()
	h.clock.Step(11 * time.Second)
	h.fail["patch TrainJob"] = errors.New("killed")
	if _, err := h.reconcile("job"); err == nil {
		t.Fatal("it isn't started")
	}
	h.wantBoost("4")
	delete(h.fail, "patch TrainJob")
	h.start(dialect.Bundled, tenMinutes)
	if _, err := h.reconcile("job"); err != nil || h.suspended("job") || h.wrote("patch Workload ") != 0 {
		t.Errorf("got %v, %v", h.sent, err)
	}
	h.wantBoost("4")

	h = newHarness(t, dialect.Bundled, tenMinutes)
	h.queue()
	h.admit()
	h.clock.Step(11 * time.Second)
	h.fail["patch TrainJob"] = invalid
	h.settleUnboosted(nil)
	if value, mark := h.boosted(); value+mark != "" || workload.HasQuotaReservation(h.workload()) {
		t.Errorf("it can't start: got %q, %q", value, mark)
	}
}

// TestBoostRejected holds that a boost that can't be written keeps nothing from starting, and is tried again.
func TestBoostRejected(t *testing.T) {
	h := newHarness(t, dialect.Bundled, tenMinutes)
	h.fail["patch Workload"] = invalid
	h.queue()
	h.admit()
	h.clock.Step(11 * time.Second)
	h.settleN(2)
	if h.suspended("job") {
		t.Error("it starts")
	}
	if result, err := h.reconcile("job"); err != nil || result.RequeueAfter == 0 || result.RequeueAfter > time.Minute {
		t.Errorf("it is tried again: got %v, %v", result, err)
	}
	delete(h.fail, "patch Workload")
	h.settle("job")
	h.wantBoost("4")
}
