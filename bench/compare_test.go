package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestComparePages holds which differences are named, and that only those for the worse are an error.
func TestComparePages(t *testing.T) {
	of := func(name string, bundled, builtin []float64) *figure {
		f := &figure{Group: "A burst", Name: name, Values: map[string]float64{}, Measured: map[string][]float64{}}
		for profile, values := range map[string][]float64{"bundled": bundled, "builtin": builtin} {
			if len(values) > 0 {
				f.Measured[profile], f.Values[profile] = values, values[len(values)/2]
			}
		}
		if f.Values["builtin"] != 0 {
			f.Ratio = f.Values["bundled"] / f.Values["builtin"]
		}
		return f
	}
	for name, test := range map[string]struct {
		before, after *figure
		says          string
		fails         bool
	}{
		"equal": {
			of("writes", []float64{10}, nil), of("writes", []float64{10}, nil), "1 figures compared, 0 worse", false,
		},
		"a count more": {
			of("writes", []float64{10}, nil), of("writes", []float64{11}, nil), "worse: A burst: writes", true,
		},
		"a count less": {
			of("writes", []float64{10}, nil), of("writes", []float64{9}, nil), "better: A burst: writes", false,
		},
		"a time in noise": {of("p99, ms", []float64{10}, nil), of("p99, ms", []float64{12}, nil), "0 worse", false},
		"a time in its spread": {
			of("p99, ms", []float64{6, 10, 14}, nil), of("p99, ms", []float64{9, 14, 15}, nil), "0 worse", false,
		},
		"a time out of its spread": {
			of("p99, ms", []float64{10, 10, 10}, nil), of("p99, ms", []float64{12, 12, 12}, nil), "worse", true,
		},
		"a slower machine": {
			of("CPU", []float64{10, 10}, []float64{20, 20}), of("CPU", []float64{20, 20}, []float64{40, 40}), "0 worse", false,
		},
		"less throughput": {
			of("TrainJobs per second", []float64{10, 10}, nil), of("TrainJobs per second", []float64{5, 5}, nil), "worse", true,
		},
		"a finding where there was none": {
			of("findings of audit", []float64{0}, nil), of("findings of audit", []float64{1}, nil), "worse", true,
		},
		"nothing in common": {of("a", []float64{1}, nil), of("b", []float64{1}, nil), "not compared: A burst: a", true},
		"the peer alone":    {of("a", []float64{1}, nil), of("a", nil, []float64{1}), "0 figures", true},
	} {
		t.Run(name, func(t *testing.T) {
			var paths []string
			for i, f := range []*figure{test.before, test.after} {
				data, err := json.Marshal(comparison{Figures: []*figure{f}})
				if err != nil {
					t.Fatal(err)
				}
				paths = append(paths, filepath.Join(t.TempDir(), []string{"before", "after"}[i]))
				if err := os.WriteFile(paths[i], data, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			var out strings.Builder
			if err := comparePages(&out, paths[0], paths[1]); (err != nil) != test.fails {
				t.Errorf("got error %v", err)
			}
			if !strings.Contains(out.String(), test.says) {
				t.Errorf("want %q in\n%s", test.says, out.String())
			}
		})
	}
}
