package integration_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	"github.com/signalbox-dev/signalbox/admission"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides/dialect"
)

var jobKey = types.NamespacedName{Namespace: team, Name: "job"}

// usedUp is what the placement says of a ResourceQuota of which so many pods are used.
func usedUp(used int) error {
	return &admission.BlockedError{Reason: admission.ReasonQuotaExceeded, Err: fmt.Errorf(
		"a pod can't be created: exceeded quota: q, requested: pods=1, used: pods=%d, limited: pods=9; raise it"+
			admission.Retried, used)}
}

// starved starts a TrainJob that gets no pods.
func starved(t *testing.T, d *dialect.Dialect) *harness {
	h := newHarness(t, d)
	h.run()
	h.build("job")
	h.settle("job")
	return h
}

// TestPodsRefused holds that a started TrainJob whose pods can't be created says why, ten seconds after they are
// missing, and until they are there; whatever else it says, with one write.
func TestPodsRefused(t *testing.T) {
	forEach(t, func(t *testing.T, h *harness, d *dialect.Dialect) {
		h.run()
		js := h.build("job")
		h.pods.refusal = usedUp(3)
		h.settle("job")
		h.clock.Step(9 * time.Second)
		if h.settle("job"); h.pods.asked > 0 || h.blocked("job") != "" {
			t.Fatalf("pods may come late: asked %d times, blocked %q", h.pods.asked, h.blocked("job"))
		}
		h.clock.Step(time.Second)
		told := h.settle("job")
		c := conditionOf(h.trainJob("job"), api.ConditionBlocked)
		if c == nil || c.Reason != admission.ReasonQuotaExceeded || !strings.Contains(c.Message, "exceeded quota: q") ||
			!slices.Contains(told, admission.ReasonQuotaExceeded) || h.suspended("job") {
			t.Fatalf("got %v, events %v, suspended %t", c, told, h.suspended("job"))
		}
		if state := api.StateOf(&h.trainJob("job").Status.TrainJobStatus); state != api.StateBlocked {
			t.Errorf("its state is %s", state)
		}
		h.pods.refusal = usedUp(4)
		h.clock.Step(time.Minute)
		if result, err := h.reconcile("job"); err != nil || len(h.sent)+len(h.events) > 0 || result.RequeueAfter == 0 ||
			result.RequeueAfter > time.Minute {
			t.Errorf("another number is no news, and it is looked at again: %v, %v, %v, %v", h.sent, h.events, result, err)
		}
		h.pods.refusal = &admission.PendingError{RetryAfter: time.Second, Err: errors.New("no answer")}
		h.start(d) // its memory is lost
		if h.reconcile("job"); len(h.sent) > 0 {
			t.Errorf("what isn't known changes nothing: %v", h.sent)
		}
		h.clock.Step(11 * time.Second)
		if result, err := h.reconcile("job"); err != nil || len(h.sent) > 0 || result.RequeueAfter > time.Second {
			t.Errorf("nor what isn't answered: %v, %v, %v", h.sent, result, err)
		}
		h.pod(js)
		asked := h.pods.asked
		if h.settle("job"); h.blocked("job") != "" || h.pods.asked > asked {
			t.Errorf("its pods are there: blocked %q, asked %d times more", h.blocked("job"), h.pods.asked-asked)
		}
	})
}

// TestPodsRefusedUnqueued holds the same for a TrainJob that Kueue doesn't manage; it isn't stopped.
func TestPodsRefusedUnqueued(t *testing.T) {
	for _, d := range []*dialect.Dialect{dialect.Bundled, dialect.Kubeflow23} {
		h := newHarness(t, d)
		job := newTrainJob("job")
		job.Labels, job.Spec.Suspend = nil, ptr.To(false)
		h.create(job)
		js := h.build("job")
		h.pods.refusal = usedUp(3)
		result, _ := h.reconcile("job")
		h.clock.Step(result.RequeueAfter)
		h.settle("job")
		if h.blocked("job") != admission.ReasonQuotaExceeded || result.RequeueAfter != 10*time.Second {
			t.Errorf("%s: blocked %q, after %s", d.Name, h.blocked("job"), result.RequeueAfter)
		}
		h.clock.Step(time.Hour)
		if h.settle("job"); h.blocked("job") != admission.ReasonQuotaExceeded || h.suspended("job") {
			t.Errorf("%s: after an hour, blocked %q, suspended %t", d.Name, h.blocked("job"), h.suspended("job"))
		}
		h.pod(js)
		if h.settle("job"); h.blocked("job") != "" {
			t.Errorf("%s: its pods are there, blocked %q", d.Name, h.blocked("job"))
		}
	}
}

// TestNoPodsSaysWhy holds that a TrainJob which has given its quota back says why it had no pods, and that it is kept
// out of its queue as long as any.
func TestNoPodsSaysWhy(t *testing.T) {
	pending := &admission.PendingError{RetryAfter: time.Minute, Err: errors.New("no answer")}
	for name, c := range map[string]struct {
		first, last error
		says        string
	}{
		"refused":                  {usedUp(3), usedUp(4), "exceeded quota: q"},
		"refused for another":      {usedUp(3), &admission.BlockedError{Reason: "X", Err: errors.New("why")}, "why"},
		"not known any more":       {usedUp(3), pending, "exceeded quota: q"},
		"never known":              {pending, pending, "events of the TrainJob"},
		"taken, and not there yet": {nil, nil, "events of the TrainJob"},
		"an unknown error":         {errors.New("it panics"), errors.New("it panics"), "events of the TrainJob"},
	} {
		t.Run(name, func(t *testing.T) {
			h := starved(t, dialect.Kubeflow23)
			settle := func() {
				for range 3 {
					if _, err := h.reconciler.Reconcile(t.Context(), reconcile.Request{NamespacedName: jobKey}); err != nil {
						t.Fatal(err)
					}
				}
			}
			h.pods.refusal = c.first
			h.clock.Step(30 * time.Second)
			settle()
			h.pods.refusal = c.last
			h.clock.Step(5 * time.Minute)
			settle()
			blocked := conditionOf(h.trainJob("job"), api.ConditionBlocked)
			if !h.suspended("job") || blocked == nil || blocked.Reason != admission.ReasonNoPods ||
				!strings.Contains(blocked.Message, c.says) || strings.Contains(blocked.Message, "by itself") ||
				!blocked.LastTransitionTime.Time.Equal(h.clock.Now()) {
				t.Errorf("suspended %t, %+v", h.suspended("job"), blocked)
			}
			h.annotate(api.StopAnnotation, "true")
			if settle(); conditionOf(h.trainJob("job"), api.ConditionBlocked) != nil {
				t.Error("a user has stopped it")
			}
			h.annotate(api.StopAnnotation, "-")
			if settle(); conditionOf(h.trainJob("job"), api.ConditionBlocked) != nil {
				t.Error("a user who has resumed it has it queued again")
			}
		})
	}
}

// TestJobsRefused holds that a started TrainJob says why JobSet creates no Jobs of a step, unless they are there.
func TestJobsRefused(t *testing.T) {
	for _, there := range []bool{false, true} {
		h := newHarness(t, dialect.Bundled)
		h.run()
		js := h.build("job")
		h.remove(h.pod(js))
		if !there {
			h.must(h.store.DeleteAllOf(t.Context(), jobOf(), client.InNamespace(team)))
		}
		h.settle("job")
		h.clock.Step(20 * time.Second)
		h.pods.ofJobs = usedUp(1)
		want := admission.ReasonQuotaExceeded
		if there {
			want = ""
		}
		if h.settle("job"); h.blocked("job") != want {
			t.Errorf("its Jobs are there: %t; blocked %q", there, h.blocked("job"))
		}
	}
}

// TestForeignJob holds that a started TrainJob names a Job that is another's and has the name of its own.
func TestForeignJob(t *testing.T) {
	h := newHarness(t, dialect.Bundled)
	h.run()
	h.remove(h.pod(h.build("job")))
	job := jobOf()
	h.must(h.store.Get(t.Context(), types.NamespacedName{Namespace: team, Name: "job-node-0"}, job))
	h.remove(job)
	other := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: team, Name: "job-node-0"}}
	h.create(other)
	h.settle("job")
	h.clock.Step(2 * time.Minute)
	h.settle("job")
	c := conditionOf(h.trainJob("job"), api.ConditionBlocked)
	if c == nil || c.Reason != admission.ReasonPodsRefused || !strings.Contains(c.Message, "Job job-node-0 exists") {
		t.Fatalf("got %+v", c)
	}
	h.remove(other)
	h.clock.Step(time.Minute)
	if h.settle("job"); h.blocked("job") != "" {
		t.Errorf("it is gone: blocked %q", h.blocked("job"))
	}
}

// TestNotRefused holds that nothing is said of pods that nobody lacks, and that a TrainJob which is about to stop
// doesn't ask.
func TestNotRefused(t *testing.T) {
	for name, c := range map[string]struct {
		given func(*harness)
		asked bool
	}{
		"its pods have ended and are gone": {func(h *harness) {
			job := jobOf()
			h.must(h.store.Get(h.t.Context(), types.NamespacedName{Namespace: team, Name: "job-node-0"}, job))
			job.Status = batchv1.JobStatus{Succeeded: 1, StartTime: &metav1.Time{Time: h.clock.Now()}}
			h.updateStatus(job)
		}, true},
		"its Jobs can't be read": {func(h *harness) { h.fail["list Job"] = errors.New("down") }, true},
		"it is stopped":          {func(h *harness) { h.annotate(api.StopAnnotation, "") }, false},
		"it is evicted":          {func(h *harness) { h.evict("Preempted") }, false},
		"its JobSet is gone": {func(h *harness) {
			js := &jobset.JobSet{ObjectMeta: metav1.ObjectMeta{Namespace: team, Name: "job"}}
			h.collect(js)
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, dialect.Bundled)
			h.run()
			h.remove(h.pod(h.build("job")))
			h.settle("job")
			h.clock.Step(20 * time.Second)
			h.pods.refusal = usedUp(1)
			c.given(h)
			h.reconcile("job")
			if asked := h.pods.asked > 0; asked != c.asked || h.blocked("job") != "" {
				t.Errorf("asked %t, blocked %q", asked, h.blocked("job"))
			}
		})
	}
}
