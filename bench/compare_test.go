package main

import (
	"encoding/json"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
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
			of("p99, ms", []float64{10, 10, 10}, nil), of("p99, ms", []float64{14, 14, 14}, nil), "worse", true,
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
		"a growth": {
			of("p99, with 10000 waiting: times", []float64{0.92}, nil),
			of("p99, with 10000 waiting: times", []float64{1.02}, nil), "0 worse", false,
		},
		"one restart each": {
			of("it is up to date after, s", []float64{15.5}, nil), of("it is up to date after, s", []float64{22.3}, nil),
			"0 worse", false,
		},
		"conflicts now and then": {
			of("conflicts", []float64{0, 0, 1}, nil), of("conflicts", []float64{0, 1, 1}, nil), "0 worse", false,
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

// TestCompareNoise holds that what differs between runs of the same isn't called worse: the measurements of a page are
// dealt out to two pages, a hundred times.
func TestCompareNoise(t *testing.T) {
	data, err := os.ReadFile("results/2026-11-26.json")
	if err != nil {
		t.Fatal(err)
	}
	page := comparison{}
	if err := json.Unmarshal(data, &page); err != nil {
		t.Fatal(err)
	}
	random := rand.New(rand.NewPCG(1, 1))
	compared, worse := 0, 0
	for range 100 {
		pages := deal(&page, random)
		for _, c := range changes(pages[0], pages[1]) {
			compared++
			if !c.isNoise() && c.by() > 0 {
				worse++
			}
		}
	}
	t.Logf("%d of %d figures are called worse", worse, compared)
	if compared == 0 || worse*200 > compared {
		t.Errorf("%d of %d figures are called worse", worse, compared)
	}
}

// deal deals the four measurements of each figure out to two pages.
func deal(page *comparison, random *rand.Rand) (pages [2]*comparison) {
	pages = [2]*comparison{{}, {}}
	for _, f := range page.Figures {
		halves := [2]*figure{}
		for i := range halves {
			halves[i] = &figure{Group: f.Group, Name: f.Name, Values: map[string]float64{}, Measured: map[string][]float64{}}
		}
		for profile, all := range f.Measured {
			if len(all) != 4 {
				continue
			}
			for i, n := range random.Perm(4) {
				half := halves[i%2]
				half.Measured[profile] = append(half.Measured[profile], all[n])
			}
			for _, half := range halves {
				slices.Sort(half.Measured[profile])
				half.Values[profile] = (half.Measured[profile][0] + half.Measured[profile][1]) / 2
			}
		}
		for i, half := range halves {
			if len(half.Values) == 0 {
				continue
			}
			if half.Values["builtin"] != 0 {
				half.Ratio = half.Values["bundled"] / half.Values["builtin"]
			}
			pages[i].Figures = append(pages[i].Figures, half)
		}
	}
	return pages
}
