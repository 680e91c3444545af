package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/signalbox-dev/signalbox/test/hostile"
)

// TestHostileVerdict holds what ends `bench hostile` with an error, and what is compared with what.
func TestHostileVerdict(t *testing.T) {
	starts := func(all float64) []float64 { return slices.Repeat([]float64{all}, honestJobs) }
	good := func() *hostileRun {
		return &hostileRun{Limit: 512 << 20, Measured: []hostileMeasure{
			{Way: quietly, Kind: "none", Registered: true, StartMs: starts(100)},
			{Way: dryly, Kind: "a", Registered: true, StartMs: starts(390)},
			{Way: dryly, Kind: "a", StartMs: starts(200), Manager: managerUse{Peak: 600 << 20, Restarts: 1}},
			{Way: fully, Kind: "b", Registered: true, StartMs: starts(900)},
			{Way: rawly, Kind: "a", Registered: true, StartMs: starts(190)},
			{Way: rawly, Kind: "a", StartMs: starts(100)},
		}}
	}
	for _, test := range []struct {
		reason string
		change func(all []hostileMeasure)
		want   string // the beginning of the error; "" for none
	}{
		{"without the webhooks, and of large ones, nothing is bounded but what managers use", func([]hostileMeasure) {}, ""},
		{"starts are slower with the webhooks", func(all []hostileMeasure) { all[1].StartMs = starts(410) },
			"dry runs, a: the p99 of starts is 2.0 times"},
		{"two of a hundred starts are slower", func(all []hostileMeasure) { copy(all[4].StartMs[98:], []float64{300, 300}) },
			"reviews, a: the p99 of starts is 3.0 times"},
		{"a manager is at its limit", func(all []hostileMeasure) { all[3].Manager.Peak = 512 << 20 },
			"large dry runs, b: a manager uses 512 MiB"},
		{"a manager was restarted", func(all []hostileMeasure) { all[0].Manager.Restarts = 1 },
			"no requests, none: 1 restarts"},
	} {
		r := good()
		test.change(r.Measured)
		got := fmt.Sprint(r.verdict())
		if test.want == "" && got != "<nil>" || !strings.HasPrefix(got, test.want) || strings.Contains(got, "\n") {
			t.Errorf("%s: %q, want %q", test.reason, got, test.want)
		}
		if page := r.markdown(); test.want != "" && !strings.Contains(page, test.want) {
			t.Errorf("%s: the page doesn't say so:\n%s", test.reason, page)
		}
	}
}

// TestHostileTurns holds that a round measures each kind of the API server's with the webhooks and without, and that
// the next begins with the other.
func TestHostileTurns(t *testing.T) {
	kinds := []hostileKind{{way: quietly}, {way: dryly}, {way: really}, {way: fully}, {way: rawly}}
	for round, want := range []string{
		"no requests true, dry runs false, dry runs true, TrainJobs true, TrainJobs false, large dry runs true, " +
			"reviews true, reviews false",
		"no requests true, dry runs true, dry runs false, TrainJobs false, TrainJobs true, large dry runs true, " +
			"reviews false, reviews true",
	} {
		var got []string
		for _, turn := range inRound(kinds, round) {
			got = append(got, fmt.Sprintf("%s %t", turn.way, turn.registered))
		}
		if strings.Join(got, ", ") != want {
			t.Errorf("round %d: %v, want %s", round, got, want)
		}
	}
}

// TestHostileTexts holds that each hostile TrainJob is sent, as large as it is said to be.
func TestHostileTexts(t *testing.T) {
	for _, size := range []hostile.Size{hostile.Small, hostile.Read} {
		all, n := size.TrainJobs("", ""), 0
		for kind, texts := range trainJobs(all) {
			for _, text := range texts {
				if n++; len(text) > size.Bytes*21/20+1000 {
					t.Errorf("%s has %d bytes, more than %d", kind, len(text), size.Bytes)
				}
			}
		}
		if n != len(all) {
			t.Errorf("%d TrainJobs are sent, want %d", n, len(all))
		}
	}
	seldom := [][]byte{[]byte("a"), []byte("b")}
	for n, want := range map[int]string{0: "u", 98: "u", 99: "a", 100: "u", 199: "b", 299: "a"} {
		if got := (texts{[][]byte{[]byte("u")}, seldom, 100}).of(n); string(got) != want {
			t.Errorf("request %d has body %s, want %s", n, got, want)
		}
	}
}
