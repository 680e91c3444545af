package admission

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

func TestNote(t *testing.T) {
	if got := Note("as it is"); got != "as it is" {
		t.Errorf("a short message is passed on: got %q", got)
	}
	for _, letter := range []string{"x", "…"} { // of one byte and of three
		if got := Note(strings.Repeat(letter, 1000)); len(got) > 1000 || len(got) < 800 || !utf8.ValidString(got) {
			t.Errorf("an event's message has a limit, and is text: got %d bytes, valid %t", len(got), utf8.ValidString(got))
		}
	}
}

func TestBehind(t *testing.T) {
	at := func(uid, version string) *api.TrainJob {
		return &api.TrainJob{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "job", UID: types.UID(uid), ResourceVersion: version}}
	}
	clk := clocktesting.NewFakeClock(time.Date(2026, 11, 20, 0, 0, 0, 0, time.UTC))
	w := NewWriter(nil, clk, true)
	if w.Behind(at("uid", "1")) {
		t.Error("nothing was written, so nothing is late")
	}
	w.wrote(at("uid", "100"))
	if !w.Behind(at("uid", "99")) || w.Behind(at("uid", "100")) || w.Behind(at("uid", "101")) {
		t.Error("what is older than our last write is late, and nothing else")
	}
	other := at("other", "1")
	if w.Behind(other) {
		t.Error("another TrainJob of that name has versions of its own")
	}
	clk.Step(lateCache + time.Second)
	if w.Behind(at("uid", "99")) {
		t.Error("an API server that was set back is believed after a while")
	}
	w.wrote(at("uid", "200"))
	w.Forget(client.ObjectKeyFromObject(other))
	if w.Behind(at("uid", "1")) {
		t.Error("a TrainJob that is gone is forgotten")
	}
}
