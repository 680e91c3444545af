package trainer

import (
	"errors"
	"fmt"
	"reflect"
	"testing"
	"time"

	schedulingv1alpha2 "k8s.io/api/scheduling/v1alpha2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// TestObserveWritesNothing holds that observing writes nothing: not to the API server, which rejects each write here,
// and not to what the process remembers of statuses.
func TestObserveWritesNothing(t *testing.T) {
	const ended = started + "\nstatus: {conditions: [{type: Complete, status: 'True', reason: X}]}"
	fails := func(h *harness) {
		js := &jobset.JobSet{}
		h.get(js, "job")
		js.Status.Conditions = []metav1.Condition{{Type: "Failed", Status: metav1.ConditionTrue, Reason: "FailedJobs"}}
		if err := h.store.Status().Update(h.t.Context(), js); err != nil {
			h.t.Fatal(err)
		}
	}
	ungrouped := func(h *harness) {
		if err := h.store.DeleteAllOf(h.t.Context(), &schedulingv1alpha2.PodGroup{}, client.InNamespace("ns")); err != nil {
			h.t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		reason, job string // "" if it is gone
		arrange     func(*harness)
	}{
		"it runs":               {"all is as it should be", started, nil},
		"its groups are gone":   {"they aren't created", started, ungrouped},
		"its JobSet is gone":    {"it isn't created", started, func(h *harness) { h.remove(&jobset.JobSet{}, "job") }},
		"its JobSet is hidden":  {"it isn't forgotten", started, func(h *harness) { h.hide("JobSet", "job") }},
		"its JobSet has failed": {"its end isn't written", started, fails},
		"it stops":              {"its JobSet and its groups aren't deleted", stopped, nil},
		"it has ended":          {"its groups aren't deleted", ended, nil},
		"it is gone":            {"what is remembered of it stays", "", nil},
		"it is another Trainer's": {"what is remembered of it stays",
			"spec: {suspend: true, managedBy: kueue.x-k8s.io/multikueue}", nil},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, gangOptions(api.GangRequired, true))
			h.put(h.pinned(h.trainJob("torch", started)))
			h.reconcile("job") // creates its groups and its JobSet
			h.requests()
			h.remove(&api.TrainJob{}, "job")
			if c.job != "" {
				h.put(h.pinned(h.trainJob("torch", c.job)))
			}
			if c.arrange != nil {
				c.arrange(h)
			}
			for _, verb := range []string{"create", "update", "patch", "delete"} {
				h.fail[verb] = errors.New("observing must not write")
			}
			r, key := h.parts.reconciler, types.NamespacedName{Namespace: "ns", Name: "job"}
			pending := r.memory.recall(key, h.clock.Now().Add(-time.Second), true, false)
			o, err := r.observe(t.Context(), key)
			if err != nil || o.unread != nil {
				t.Errorf("%s: observing has failed: %v, %v", c.reason, err, o.unread)
			}
			h.wantRequests(c.reason)
			h.wantEvents(c.reason)
			if again := r.memory.recall(key, h.clock.Now(), true, false); again != pending {
				t.Errorf("%s: %+v is remembered, want %+v", c.reason, again, pending)
			}
		})
	}
}

// TestDecide holds that what is decided is a list of steps, in this order.
func TestDecide(t *testing.T) {
	running := api.TrainJobStatus{}
	for name, c := range map[string]struct {
		reason string
		o      observed
		want   []step
	}{
		"it is gone":       {"nothing is remembered of it", observed{}, []step{forget{}}},
		"the cache is old": {"nothing can be decided", observed{stage: stageBehind}, nil},
		"it is being deleted": {"its pods are stopped", observed{stage: stageDeleting, jobSet: jobSetOf(t,
			jobOf(t, "torch", started), "{}")}, []step{deleteJobSet{}}},
		"it was started": {"its children are created", observed{stage: stageLive, job: jobOf(t, "torch", started)},
			[]step{create{}}},
		"it stops": {"the status has what is lost with the JobSet", observed{stage: stageLive,
			job:    jobOf(t, "torch", stopped+"\nstatus: {flavor: a}"),
			jobSet: jobSetOf(t, jobOf(t, "torch", stopped), "{}")},
			[]step{writeStatus{&running}, deleteJobSet{}, deleteSideObjects{}}},
		"the integration has failed": {"it may have to be stopped", observed{stage: stageLive, failed: true,
			job: jobOf(t, "torch", started)}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			p := plan{}
			if c.o.stage == stageLive {
				p = decide(&c.o, &running, c.o.groups.Outlook(), pendingStatus{})
			} else {
				p = decideInactive(&c.o)
			}
			if !reflect.DeepEqual(p.Steps, c.want) {
				t.Errorf("%s: got %#v, want %#v", c.reason, p.Steps, c.want)
			}
		})
	}
}

// TestActKnowsItsSteps holds that a step without an action is an error.
func TestActKnowsItsSteps(t *testing.T) {
	if err := newHarness(t).parts.reconciler.act(t.Context(), &observed{}, "a step"); err == nil {
		t.Error("a step that isn't carried out is an error")
	}
}

// waitsFor is the status of a Workload that waits for quota since a time.
func waitsFor(message, since string) string {
	return "status: {conditions: [{type: QuotaReserved, status: 'False', reason: Pending, message: " + message +
		", lastTransitionTime: '2026-11-23T" + since + "Z'}]}"
}

// A TrainJob that waits gets one event for each time that it waits.
func TestWaiting(t *testing.T) {
	h := newHarness(t)
	job := h.pinned(h.trainJob("torch", stopped))
	h.put(job, workloadOf(t, job, waitsFor("no room", "12:00:00")))
	h.reconcile("job")
	h.clock.Step(29 * time.Second)
	if result := h.reconcile("job"); result.RequeueAfter != time.Second {
		t.Errorf("it has waited for 29 s: got %+v", result)
	}
	h.wantEvents("most are decided by then")
	h.clock.Step(time.Second)
	h.reconcile("job")
	h.wantEvents("it has waited for 30 s", "Normal Waiting no room")
	h.clock.Step(time.Hour)
	h.reconcile("job")
	h.wantEvents("it has been told")
	set := func(status string) {
		wl := &kueue.Workload{}
		h.get(wl, "wl")
		wl.Status.Conditions = workloadOf(t, job, status).Status.Conditions
		if err := h.store.Status().Update(t.Context(), wl); err != nil {
			t.Fatal(err)
		}
		h.reconcile("job")
		h.clock.Step(time.Minute)
		h.reconcile("job")
	}
	set("status: {conditions: [{type: QuotaReserved, status: 'True', reason: QuotaReserved}]}")
	set(waitsFor("preempted", "13:00:00"))
	h.wantEvents("it waits again", "Normal Waiting preempted")
}

// A long queue doesn't flood the API server with events that nobody reads.
func TestWaitingLimit(t *testing.T) {
	h := newHarness(t)
	for i := range 50 {
		job := h.pinned(h.trainJob("torch", stopped))
		job.Name, job.UID = fmt.Sprintf("job-%d", i), "uid-"+job.UID
		wl := workloadOf(t, job, waitsFor("no room", "11:00:00"))
		wl.Name = job.Name
		h.put(job, wl)
		h.reconcile(job.Name)
	}
	if got := len(h.events()); got < 20 || got > 25 {
		t.Errorf("got %d events for 50 TrainJobs, want about 20", got)
	}
}
