package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// glance are the figures that a reader is to see first: the name of a figure, and how its group begins.
var glance = []struct{ group, figure string }{
	{"A burst of 100", "writes to the TrainJob per start"},
	{"A burst of 100", "write requests per TrainJob by Kueue, JobSet and who starts and builds"},
	{"A burst of 100", lateName},
	{"A TrainJob that waits", "objects in etcd, itself among them, without events"},
	{"A TrainJob that waits", "write requests by all, its submission among them"},
	{"A burst of 500", "finished"},
	{"A burst of 500", "TrainJobs per second"},
	{"A burst of 500", "admitted → started, p99, ms"},
	{"A burst of 500", span{submitted, bound}.String() + ", p50, ms"},
	{"A burst of 500", "CPU seconds of the same per 1,000"},
	{"A burst of 500", shareName},
	{"A burst of 2000", "TrainJobs per second"},
	{"A burst of 2000", "CPU seconds of the same per 1,000"},
	{"How it grows", "admitted → started, p99, with 10000 waiting: times"},
	{"The manager is restarted while 10000", "it is up to date after, s"},
	{"The manager is restarted while 10000", "its peak memory, MiB"},
	{"All runs", "findings of `signalbox audit`"},
}

func (c *comparison) markdown(name string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "# Side by side\n\n`make bench` makes this page, of runs one after the other on one machine (%s). "+
		"Of several runs of the same it has the median, and beside it the least and the most. "+
		"[README](../README.md) says how to read it.\n", c.Machine)
	b.WriteString("\n## At a glance\n\n" + heading(peers))
	for _, g := range glance {
		for _, f := range c.Figures {
			if f.Name == g.figure && (f.Group == g.group || strings.HasPrefix(f.Group, g.group+" ")) {
				f.row(&b, f.Group+": "+f.Name, peers)
			}
		}
	}
	b.WriteString("\n")
	for _, picture := range pictures {
		fmt.Fprintf(&b, "![%s](%s-%s.svg)\n\n", picture.title, name, picture.name)
	}
	group, first := "", (*figure)(nil)
	for _, f := range c.Figures {
		if f.Group != group {
			group, first = f.Group, f
			fmt.Fprintf(&b, "\n## %s\n\n%s%s", group, f.runs(peers), heading(peers))
		}
		f.row(&b, f.Name+f.fewer(first), peers)
	}
	return b.String()
}

// heading returns that of a table.
func heading(columns []string) string {
	return fmt.Sprintf("| | %s | %s / %s |\n| --- |%s --: |\n", strings.Join(columns, " | "), columns[0],
		columns[len(columns)-1], strings.Repeat(" --: |", len(columns)))
}

// row writes the figure as a row of a table.
func (f *figure) row(b *strings.Builder, name string, columns []string) {
	cells := make([]string, 0, len(columns))
	for _, p := range columns {
		if v, has := f.Values[p]; has {
			cell := fmt.Sprintf("%.2f", v)
			if all := f.Measured[p]; len(all) > 1 && all[0] != all[len(all)-1] {
				cell += fmt.Sprintf(" (%.2f–%.2f)", all[0], all[len(all)-1])
			}
			cells = append(cells, cell)
		} else {
			cells = append(cells, "")
		}
	}
	ratio := ""
	if f.Ratio != 0 {
		ratio = fmt.Sprintf("%.2f", f.Ratio)
	}
	fmt.Fprintf(b, "| %s | %s | %s |\n", name, strings.Join(cells, " | "), ratio)
}

// runs says how often the figure was measured.
func (f *figure) runs(columns []string) string {
	if f.Missed != nil {
		return f.ofMedians()
	}
	words := []string{}
	for _, p := range columns {
		if n := len(f.Measured[p]); n > 0 {
			words = append(words, fmt.Sprintf("%d of %s", n, p))
		}
	}
	if len(words) == 0 {
		return ""
	}
	return "Runs: " + strings.Join(words, ", ") + "." + f.confidence() + "\n\n"
}

// missed is the probability that the median isn't between the least and the greatest of n measurements, whatever the
// distribution: all are on one side of it.
func missed(n int) float64 { return math.Pow(2, float64(1-n)) }

// confidence says how sure it is that a median lies in its brackets.
func (f *figure) confidence() string {
	sure := map[int]bool{}
	for _, all := range f.Measured {
		if len(all) > 1 {
			sure[len(all)] = true
		}
	}
	var words []string
	for _, n := range slices.Backward(slices.Sorted(maps.Keys(sure))) {
		words = append(words, fmt.Sprintf("%.0f %% of %d runs", 100*(1-missed(n)), n))
	}
	if len(words) == 0 {
		return ""
	}
	return " Brackets are a confidence interval of the median: " + strings.Join(words, ", ") + "."
}

// ofMedians says what the brackets of a ratio of medians are.
func (f *figure) ofMedians() string {
	if len(f.Missed) == 0 {
		return ""
	}
	return fmt.Sprintf("Brackets are the least over the greatest measurement, and the greatest over the least: an "+
		"interval of at least %.0f %% confidence.\n\n", 100*(1-slices.Max(slices.Collect(maps.Values(f.Missed)))))
}

// fewer says how often the figure was measured, where that is less than the first of its group.
func (f *figure) fewer(first *figure) string {
	for p, values := range f.Measured {
		if len(values) < len(first.Measured[p]) {
			return fmt.Sprintf(" (in %d of the runs)", len(values))
		}
	}
	return ""
}

// trainRun is what one measurement of trainings gives to a page.
type trainRun struct {
	Machine string `json:"machine"`
	// Title is the page's, and Says what was measured.
	Title string `json:"title"`
	Says  string `json:"says"`
	// Columns are the page's, the first of which is compared with the last. Column is that of the measurement.
	Columns []string `json:"columns"`
	Column  string   `json:"column"`
	Figures []row    `json:"figures"`
}

// row is a figure of a measurement.
type row struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
}

func (r *trainRun) add(name string, value float64) { r.Figures = append(r.Figures, row{name, value}) }

// addQuantiles adds the median of some times in seconds, and the 99th of 100.
func (r *trainRun) addQuantiles(name string, sorted []float64) {
	r.add(name+", median, s", quantile(sorted, 0.5))
	r.add(name+", 99th of 100, s", quantile(sorted, 0.99))
}

// write leaves the measurement as JSON.
func (r *trainRun) write(path string) error {
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, append(data, '\n'), 0o644)
}

// runsIn reads the runs in a folder.
func runsIn[R any](folder string) (runs []*R, err error) {
	paths, err := filepath.Glob(filepath.Join(folder, "*.json"))
	if err != nil {
		return nil, err
	}
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		r := new(R)
		if err := json.Unmarshal(data, r); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		runs = append(runs, r)
	}
	if len(runs) == 0 {
		return nil, fmt.Errorf("no runs in %s; make bench makes them", folder)
	}
	return runs, nil
}

// beside compares measurements of trainings, and returns their page.
func beside(runs []*trainRun) (*comparison, string) {
	first, c := runs[0], &comparison{Machine: runs[0].Machine}
	var names []string
	measured := map[string]map[string][]float64{}
	for _, r := range runs {
		for _, f := range r.Figures {
			if measured[f.Name] == nil {
				names, measured[f.Name] = append(names, f.Name), map[string][]float64{}
			}
			measured[f.Name][r.Column] = append(measured[f.Name][r.Column], f.Value)
		}
	}
	var b strings.Builder
	for i, name := range names {
		f := &figure{Group: first.Title, Name: name, Measured: measured[name]}
		c.addMeasured(f, first.Columns)
		if i == 0 {
			fmt.Fprintf(&b, "# %s\n\n%s On one machine (%s), one after the other.\n\n%s%s", first.Title, first.Says,
				first.Machine, f.runs(first.Columns), heading(first.Columns))
		}
		f.row(&b, name, first.Columns)
	}
	return c, b.String()
}

// find returns a figure; nil where there is none.
func (c *comparison) find(group, name string) *figure {
	for _, f := range c.Figures {
		if f.Group == group && f.Name == name {
			return f
		}
	}
	return nil
}
