package main

import "testing"

// TestConfidence holds what the page says of its brackets.
func TestConfidence(t *testing.T) {
	for name, test := range map[string]struct {
		measured map[string][]float64
		want     string
	}{
		"one run each":    {map[string][]float64{"bundled": {1}, "builtin": {2}}, ""},
		"as many of each": {map[string][]float64{"bundled": {1, 2, 3, 4}, "builtin": {1, 2, 3, 4}}, "88 % of 4 runs."},
		"more of one than both": {map[string][]float64{"bundled": {1, 2, 3}, "builtin": {1, 2}},
			"75 % of 3 runs, 50 % of 2 runs."},
	} {
		got := (&figure{Measured: test.measured}).confidence()
		if test.want != "" {
			test.want = " Brackets are a confidence interval of the median: " + test.want
		}
		if got != test.want {
			t.Errorf("%s: got %q, want %q", name, got, test.want)
		}
	}
}
