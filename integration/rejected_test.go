package integration

import (
	"testing"
	"time"
)

// TestSetback holds when a start is tried again that could not be: a second time after ten seconds, and then after an
// hour, or when the TrainJob is another.
func TestSetback(t *testing.T) {
	at, s := now, setback{}
	blocks := func(inputs string) bool { return s.blocks(inputs, at) != nil }
	s = s.again(ReasonStartRejected, "no", "a", at)
	if blocks("a") || s.waits("a", at) != setbackAfter || s.waits("b", at) != 0 {
		t.Errorf("the first may be by chance: got %+v", s)
	}
	at = at.Add(setbackAfter)
	if s.waits("a", at) != 0 {
		t.Errorf("it is tried again: got %s", s.waits("a", at))
	}
	s = s.again(ReasonStartRejected, "no, and why", "a", at)
	if !blocks("a") || blocks("b") || s.waits("a", at) != 0 {
		t.Errorf("the second isn't: got %+v", s)
	}
	if at = at.Add(setbackFor); blocks("a") {
		t.Error("an hour has passed")
	}
	if s = s.again(ReasonStartRejected, "no", "a", at); !blocks("a") {
		t.Error("one attempt an hour")
	}
	if s = s.again(ReasonStartRejected, "no", "b", at); blocks("b") || blocks("a") {
		t.Errorf("another is a first one: got %+v", s)
	}
	s = s.again(ReasonAdmissionMismatch, "4, not 1", "b", at)
	if blocks("b") || s.waits("b", at) != 0 {
		t.Errorf("another reason is a first one, and is decided on another admission: got %+v", s)
	}
	if s = s.again(ReasonAdmissionMismatch, "4, not 1", "b", at.Add(time.Second)); !blocks("b") {
		t.Error("the second equal mismatch")
	}
	s = s.certain("FailedToStart", "no", "c", at)
	if !s.stands("c", at) || s.stands("d", at) || s.stands("c", at.Add(setbackFor)) {
		t.Errorf("what can't be can't be: got %+v", s)
	}
}
