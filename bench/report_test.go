package main

import (
	"slices"
	"testing"
)

// TestInTurns holds that what one run has measured twice counts twice, but for peaks of memory; and what is said of a
// ratio of medians.
func TestInTurns(t *testing.T) {
	const key = "admitted → started"
	waiting := func(n int, ms float64, peak int64) waitingRun {
		return waitingRun{Waiting: n, LatencyMs: map[string][]float64{key: {ms}}, Peak: map[string]int64{"kueue": peak << 20}}
	}
	burst := func(seconds float64, peak int64) burstRun {
		return burstRun{Jobs: 100, Seconds: seconds, Peak: map[string]int64{"kueue": peak << 20}}
	}
	c := &comparison{}
	c.compare(map[string][]*loadRun{"bundled": {{
		Profile: "bundled",
		Bursts:  []burstRun{burst(10, 1), burst(20, 2)},
		Waiting: []waitingRun{waiting(100, 400, 3), waiting(100, 500, 4), waiting(9, 100, 5), waiting(9, 200, 6)},
	}}})
	for _, want := range []struct {
		group, name string
		measured    []float64
	}{
		{"A burst of 100", "TrainJobs per second", []float64{5, 10}},
		{"A burst of 100", "peak memory of kueue, MiB", []float64{1}},
		{waitingGroup(100), key + ", p99, ms", []float64{400, 500}},
		{waitingGroup(100), "peak memory of kueue, MiB", []float64{3}},
		{"How it grows over 9 waiting", key + ", p99, with 100 waiting: times", []float64{2, 5}},
	} {
		f := c.find(want.group, want.name)
		if f == nil || !slices.Equal(f.Measured["bundled"], want.measured) {
			t.Errorf("%s, %s: got %+v, want %v", want.group, want.name, f, want.measured)
		}
	}
	if f := c.find("How it grows over 9 waiting", key+", p99, with 100 waiting: times"); f.Missed["bundled"] != 1 {
		t.Errorf("two measurements each promise nothing: got %v", f.Missed)
	}
}
