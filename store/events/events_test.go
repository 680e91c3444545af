package events

import (
	"errors"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/events"
)

// table returns the whole table, with the event beside a condition.
func table() []Event {
	return []Event{
		Started, Stopped, FailedToStart, AdmissionMismatch, NotSettled, RuntimeChanged, OverridesMigrated, StopOverdue,
		PodLost, Restarting, Stalled, StalledIgnored, StalledStopped, StalledRestarting,
		ResourcesCreationFailed, GangSchedulingSkipped, GangReleased, GangUnschedulable, Blocked("RuntimeNotFound"),
	}
}

func TestTable(t *testing.T) {
	camelCase := regexp.MustCompile(`^([A-Z][a-z]+)+$`)
	reasons := map[string]bool{}
	for _, e := range table() {
		if e.Type != corev1.EventTypeNormal && e.Type != corev1.EventTypeWarning {
			t.Errorf("%s: type %q", e.Reason, e.Type)
		}
		if reason := strings.Replace(e.Reason, "TrainJob", "Train", 1); !camelCase.MatchString(reason) {
			t.Errorf("reason %q is not CamelCase", e.Reason)
		}
		if !camelCase.MatchString(e.Action) {
			t.Errorf("%s: action %q is not CamelCase", e.Reason, e.Action)
		}
		if !strings.Contains(e.Note, "%") {
			t.Errorf("%s: note %q takes no argument", e.Reason, e.Note)
		}
		if reasons[e.Reason] {
			t.Errorf("%s is there twice", e.Reason)
		}
		reasons[e.Reason] = true
	}
}

func TestOf(t *testing.T) {
	e := Event{corev1.EventTypeNormal, "Any", "Testing", "%s, %s, %d"}
	got := e.Of("text", errors.New("why"), 7)
	if got.Note != "text, why, 7" || got.Type != e.Type || got.Reason != e.Reason || got.Action != e.Action {
		t.Errorf("its arguments are filled in: got %+v", got)
	}
	if e.Note != "%s, %s, %d" {
		t.Errorf("the table stays as it is: got %q", e.Note)
	}
	const events = 1024
	long := strings.Repeat("x", 2000)
	for name, arg := range map[string]any{"text": long, "an error": errors.New(long)} {
		if note := StopOverdue.Of(arg).Note; len(note) > events || !strings.HasSuffix(note, "…") {
			t.Errorf("%s is cut: got %d bytes", name, len(note))
		}
	}
	for name, note := range map[string]string{
		"two texts": NodesTaken.Of(long, long).Note, "another value": Event{Note: "%v"}.Of([]string{long}).Note,
	} {
		if len(note) > events || len(note) < events-10 || !strings.HasSuffix(note, "…") {
			t.Errorf("%s: the API server rejects it: got %d bytes", name, len(note))
		}
	}
}

func TestNote(t *testing.T) {
	if got := StopOverdue.Of("as it is").Note; got != "as it is" {
		t.Errorf("a short message is passed on: got %q", got)
	}
	for _, letter := range []string{"x", "…"} { // of one byte and of three
		got := StopOverdue.Of(strings.Repeat(letter, 1000)).Note
		if len(got) > 1000 || len(got) < 800 || !utf8.ValidString(got) {
			t.Errorf("an event's message has a limit, and is text: got %d bytes, valid %t", len(got), utf8.ValidString(got))
		}
	}
}

func sent(recorder *events.FakeRecorder) (all []string) {
	for len(recorder.Events) > 0 {
		all = append(all, <-recorder.Events)
	}
	return all
}

func TestSend(t *testing.T) {
	sink := events.NewFakeRecorder(10)
	NewRecorder(sink).Send(&corev1.Pod{}, Stopped.Of("100% of %s"))
	want := []string{"Normal Stopped 100% of %s"}
	if got := sent(sink); !slices.Equal(got, want) {
		t.Errorf("a note is no format any more: got %q, want %q", got, want)
	}
}

func TestQuiet(t *testing.T) {
	sink := events.NewFakeRecorder(100)
	quiet := Quiet(sink)
	recorder := NewRecorder(quiet)
	var want []string
	for _, e := range table() {
		recorder.Send(&corev1.Pod{}, Event{e.Type, e.Reason, e.Action, "note"})
		if e.Reason != "Started" {
			want = append(want, e.Type+" "+e.Reason+" note")
		}
	}
	for _, reason := range []string{"CreatedWorkload", "FinishedWorkload"} {
		quiet.Eventf(&corev1.Pod{}, nil, corev1.EventTypeNormal, reason, "Testing", "note")
	}
	if got := sent(sink); !slices.Equal(got, want) {
		t.Errorf("only what conditions say is left out: got %q, want %q", got, want)
	}
}
