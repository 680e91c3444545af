package integration

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/signalbox-dev/signalbox/admission"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/integration/managed"
	"github.com/signalbox-dev/signalbox/overrides/dialect"
	"github.com/signalbox-dev/signalbox/store/events"
)

func TestDeactivation(t *testing.T) {
	d := dialect.Bundled
	wantSteps(t, "nobody wishes it", deactivation(observation(d)))
	wantSteps(t, "it is stopped first", deactivation(observation(d, runs, toDeactivate)),
		suspend{reason: "its Workload is deactivated", eviction: kueue.WorkloadDeactivated})
	wantSteps(t, "its pods have to end", deactivation(observation(d, withJobSet, toDeactivate)))
	over := observation(d, toDeactivate)
	wantSteps(t, "its pods have ended", deactivation(over), deactivate{over.workloads.own[0]})
	stopped := func(o *observed) { o.job.Annotations = map[string]string{api.StopAnnotation: ""} }
	inactive := func(o *observed) {
		o.workloads.own[0].Spec.Active = ptr.To(false)
		o.workloads.own[0].Annotations = map[string]string{api.StopAnnotation: "true"}
	}
	both := observation(d, toDeactivate, stopped)
	wantSteps(t, "an admin has, and its user can't undo that", deactivation(both), deactivate{both.workloads.own[0]})
	away := observation(d, withJobSet, toDeactivate, dispatches)
	wantSteps(t, "the worker ends its pods afterwards", deactivation(away), deactivate{away.workloads.own[0]})
	resumed := observation(d, inactive)
	wantSteps(t, "its user resumes it", reactivation(resumed), activate{resumed.workloads.own[0]})
	wantSteps(t, "it is still stopped", reactivation(observation(d, inactive, stopped)))
	wantSteps(t, "an admin's stays", reactivation(observation(d, inactive, func(o *observed) {
		o.workloads.own[0].Annotations = nil
	})))
	wantSteps(t, "it is deactivated", deactivation(observation(d, toDeactivate, func(o *observed) {
		o.workloads.own[0].Spec.Active = ptr.To(false)
	})))
}

// TestHolding holds that a TrainJob which its user has stopped is kept out of its queue by a hold: spec.active is the
// admins'.
func TestHolding(t *testing.T) {
	d := dialect.Bundled
	stopped := func(o *observed) { o.job.Annotations = map[string]string{api.StopAnnotation: ""} }
	reserved := func(status metav1.ConditionStatus, reason string) func(*observed) {
		return func(o *observed) {
			c := is(kueue.WorkloadQuotaReserved, 0)
			c.Status, c.Reason = status, reason
			o.workloads.own[0].Status.Conditions = []metav1.Condition{c}
		}
	}
	wantSteps(t, "nobody wishes it", holding(observation(d)))
	wantSteps(t, "it is stopped first", holding(observation(d, runs, stopped)),
		suspend{reason: "its user has stopped it", eviction: "StoppedByUser"})
	waits := observation(d, stopped)
	wantSteps(t, "Kueue would admit it", holding(waits),
		hold{waits.workloads.own[0], "It is stopped by annotation " + api.StopAnnotation})
	wantSteps(t, "jobframework does it", holding(observation(d, stopped, reserved(metav1.ConditionTrue, "QuotaReserved"))))
	wantSteps(t, "it is", holding(observation(d, stopped, reserved(metav1.ConditionFalse, kueue.WorkloadOnHold))))
	wantSteps(t, "it has ended", holding(observation(d, ends, stopped)))
	wantSteps(t, "Kueue doesn't manage it", holding(observation(d, runs, stopped, func(o *observed) {
		o.standing = managed.Unqueued
	})))
	held := reserved(metav1.ConditionFalse, kueue.WorkloadOnHold)
	wantSteps(t, "it stays stopped", preparations(observation(d, withChoice, stopped, held)))
	resumed := observation(d, withChoice, held)
	wantSteps(t, "it is resumed", preparations(resumed), unhold{resumed.workloads.own[0]})
	for name, c := range map[string]struct {
		change []func(*observed)
		want   bool
	}{
		"queued":                      {nil, false},
		"stopped":                     {[]func(*observed){stopped}, true},
		"stopped, pods run":           {[]func(*observed){stopped, withJobSet}, false},
		"stopped, runs":               {[]func(*observed){stopped, runs}, false},
		"stopped, in another cluster": {[]func(*observed){stopped, withJobSet, dispatches}, true},
	} {
		o := observation(d, c.change...)
		if got := (&job{o: o}).IsOnHold(); got != c.want {
			t.Errorf("%s: on hold %t, want %t", name, got, c.want)
		}
	}
}

func TestPreparations(t *testing.T) {
	d := dialect.Bundled
	hold := func(o *observed) {
		held := is(kueue.WorkloadQuotaReserved, 0)
		held.Status, held.Reason = metav1.ConditionFalse, kueue.WorkloadOnHold
		o.workloads.own[0].Status.Conditions = []metav1.Condition{held}
	}
	wantSteps(t, "it runs", preparations(observation(d, runs, withChoice)))
	wantSteps(t, "it is blocked", preparations(observation(d, withChoice, blockedBy("X"), hold)))
	wantSteps(t, "it is ready", preparations(observation(d, withChoice)))
	over := observation(d, withChoice, withEntry(time.Hour))
	wantSteps(t, "its last admission is over", preparations(over), clearEntry{})
	held := observation(d, withChoice, hold)
	wantSteps(t, "it queues again", preparations(held), unhold{held.workloads.own[0]})
}

func TestDecideStart(t *testing.T) {
	mismatch := &admission.MismatchError{}
	cases := map[string]struct {
		reason  string
		o       *situation
		waiting string
		starts  bool
	}{
		"starts":  {"it is admitted", observation(dialect.Bundled, withChoice, isAdmitted(0)), "", true},
		"runs":    {"it was started", observation(dialect.Bundled, withChoice, isAdmitted(0), runs), "", false},
		"blocked": {"it can't", observation(dialect.Bundled, withChoice, isAdmitted(0), blockedBy("X")), "", false},
		"about to be deactivated": {"it loses its quota",
			observation(dialect.Bundled, withChoice, isAdmitted(0), toDeactivate), "", false},
		"another Workload": {"the cache is stale", observation(dialect.Bundled, withChoice, isAdmitted(0),
			func(o *observed) { o.workloads.own[0] = o.workloads.own[0].DeepCopy(); o.workloads.own[0].UID = "new" }),
			"the cache, which doesn't have its Workload yet", false},
		"a JobSet": {"its pods may run", observation(dialect.Bundled, withChoice, isAdmitted(0), withJobSet),
			"the JobSet of the last admission is not gone yet", false},
		"Trainer": {"it has writes to do", observation(dialect.Kubeflow23, withChoice, isAdmitted(0)),
			"its JobSet is not created yet", false},
		"Trainer, late": {"it doesn't wait for ever", observation(dialect.Kubeflow23, withChoice,
			isAdmitted(settleTimeout+time.Second)), "", true},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			wl := observation(dialect.Bundled, isAdmitted(0)).workloads.own[0]
			a := &asked{}
			err := decideStart(c.o, a, wl, "m", admission.Features{})
			if err != nil || a.waiting != c.waiting || (a.start != nil) != c.starts {
				t.Errorf("%s: got %+v, %v", c.reason, a, err)
			}
			if c.starts && (a.start.message != "m" || a.start.workload != c.o.workloads.own[0]) {
				t.Errorf("%s: got %+v", c.reason, a.start)
			}
		})
	}
	o := observation(dialect.Bundled, withChoice, isAdmitted(0))
	o.queue.start.mismatch = mismatch
	a := &asked{}
	if err := decideStart(o, a, o.workloads.own[0], "", admission.Features{}); err != nil || a.start != nil {
		t.Errorf("what it was admitted for is not what would run: got %+v, %v", a, err)
	}
	wantSteps(t, "its Workload is deleted", a.noted[:1],
		deleteWorkload{o.workloads.own[0], ptr.To(events.AdmissionMismatch.Of(mismatch, "wl"))})
}

// TestSetback holds when a start is tried again that could not be: a second time after ten seconds, and then after an
// hour, or when the TrainJob is another.
func TestSetback(t *testing.T) {
	at, s := now, setback{}
	blocks := func(inputs string) bool { return s.blocks(inputs, at) != nil }
	s = s.again(ReasonStartRejected, "no", "a", at)
	if blocks("a") || s.waits(at) != setbackAfter {
		t.Errorf("the first may be by chance: got %+v", s)
	}
	at = at.Add(setbackAfter)
	if s.waits(at) != 0 {
		t.Errorf("it is tried again: got %s", s.waits(at))
	}
	s = s.again(ReasonStartRejected, "no, and why", "a", at)
	if !blocks("a") || blocks("b") || s.waits(at) != 0 {
		t.Errorf("the second isn't: got %+v", s)
	}
	if at = at.Add(setbackFor); blocks("a") {
		t.Error("an hour has passed")
	}
	if s = s.again(ReasonStartRejected, "no", "a", at); !blocks("a") || blocks("b") {
		t.Error("one attempt an hour, and one change")
	}
	s = setback{}.again(ReasonStartRejected, "no", "a", at.Add(-2*setbackFor))
	if s = s.again(ReasonStartRejected, "no", "a", at); blocks("a") {
		t.Error("what was long ago is over")
	}
	s = s.certain("FailedToStart", "no", "c", at)
	if !s.stands("c", at) || s.stands("d", at) || s.stands("c", at.Add(setbackFor)) {
		t.Errorf("what can't be can't be: got %+v", s)
	}
}

// TestSetbackOfOneThatChanges holds that changes buy no attempts: the second failed start is certain whatever has
// changed, for whatever reason; its first change is tried at once, and the next after an hour.
func TestSetbackOfOneThatChanges(t *testing.T) {
	for name, fail := range map[string]func(setback, string, time.Time) setback{
		"rejected": func(s setback, inputs string, at time.Time) setback {
			return s.again(ReasonStartRejected, inputs, inputs, at)
		},
		"in turns": func(s setback, inputs string, at time.Time) setback {
			return s.again([]string{ReasonStartRejected, ReasonAdmissionMismatch}[at.Second()/10%2], inputs, inputs, at)
		},
		"in conflict": func(s setback, inputs string, at time.Time) setback {
			return s.certain("FailedToStart", inputs, inputs, at)
		},
	} {
		s, tries := setback{}, 0
		var late int // tries after the first minute
		for i := range 6 * 60 * 3 {
			at := now.Add(time.Duration(i) * 10 * time.Second)
			inputs := at.String()
			if s.stands(inputs, at) || s.waits(at) > 0 {
				continue
			}
			s = fail(s, inputs, at)
			if tries++; i > 6 {
				late++
			}
		}
		if tries > 9 || late > 6 {
			t.Errorf("%s: tried %d times in three hours, %d after the first minute", name, tries, late)
		}
	}
}

// TestRetries holds that a reconcile that has failed often is tried again within half a minute: the release of quota
// may wait for it.
func TestRetries(t *testing.T) {
	limiter, last := retries(), time.Duration(0)
	for range 100 {
		next := limiter.When(reconcile.Request{})
		if next < last || next > 30*time.Second {
			t.Fatalf("after %s comes %s", last, next)
		}
		last = next
	}
	if last != retriesWithin {
		t.Errorf("the last is after %s", last)
	}
}
