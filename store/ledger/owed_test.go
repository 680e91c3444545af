package ledger

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
)

// TestOneRecordFails holds that a queue whose record can't be written doesn't hold its quota, although others' can: a
// namespace may have a quota of records, or a record may be too large.
func TestOneRecordFails(t *testing.T) {
	l, f, _, clk := newLedger(t)
	var err error
	for range 8 {
		f.fail = func(verb string) error {
			return map[string]error{"create": errors.New("exceeded quota: count/quotausages")}[verb]
		}
		err = l.Add(t.Context(), runOf("a", 1), none)
		f.fail = nil
		r := runOf("b", 1)
		r.Namespace = "another"
		if err := l.Add(t.Context(), r, none); err != nil {
			t.Fatal(err)
		}
		clk.Step(10 * time.Second)
	}
	if err != nil || len(l.owed) != 1 {
		t.Errorf("after 70 s: got %v, %d are owed", err, len(l.owed))
	}
}

// TestOwesOnce holds that a run whose release is tried again is owed once, up to when it was tried last, and what it
// held before a restart apart from that.
func TestOwesOnce(t *testing.T) {
	l, f, inner, clk := newLedger(t)
	f.fail = func(string) error { return errors.New("no connection") }
	if err := l.Add(t.Context(), runOf("a", 1), none); err == nil {
		t.Fatal("it is tried again")
	}
	clk.Step(2 * patience)
	before := testutil.ToFloat64(unrecorded)
	for i := range 5 {
		if err := l.Add(t.Context(), runOf("a", 1+i), none); err != nil {
			t.Fatal(err)
		}
	}
	again := runOf("a", 9)
	again.Attempt = "2"
	if err := l.Add(t.Context(), again, none); err != nil {
		t.Fatal(err)
	}
	if got := testutil.ToFloat64(unrecorded) - before; len(l.owed) != 2 || got != 2 {
		t.Errorf("%d are owed, %v counted", len(l.owed), got)
	}
	f.fail = nil
	if err := l.Settle(t.Context()); err != nil {
		t.Fatal(err)
	}
	if runs, seconds := idle(t, inner); runs != 1 || seconds != 9 {
		t.Errorf("got %d runs of %d s", runs, seconds)
	}
}

// TestSettlesOthers holds that what can't be written to one queue's records keeps no other from being written, and is
// tried once.
func TestSettlesOthers(t *testing.T) {
	l, f, inner, _ := newLedger(t)
	for i := range 3 {
		l.Later(runOf(fmt.Sprint(i), 1), none)
	}
	r := runOf("other", 1)
	r.Queue = "other"
	l.Later(r, none)
	requests := 0
	f.fail = func(verb string) error {
		if requests++; verb == "create" && requests == 2 { // the first, after its read
			return errors.New("exceeded quota")
		}
		return nil
	}
	if err := l.Settle(t.Context()); err == nil || len(l.owed) != 3 {
		t.Errorf("got %v, %d are owed", err, len(l.owed))
	}
	if runs, _ := idle(t, inner); runs != 1 {
		t.Errorf("%d runs are recorded", runs)
	}
	if err := l.Settle(t.Context()); err != nil || len(l.owed) > 0 {
		t.Errorf("got %v, %d are owed", err, len(l.owed))
	}
}
