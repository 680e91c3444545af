package integration

import (
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

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
