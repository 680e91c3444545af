package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strings"
)

const (
	// countNoise is how far counts of two runs may differ: they are exact, but not each run meets the same states.
	countNoise = 0.05
	// timeNoise is how far times, CPU seconds and memory of two runs may differ: a restart took 15.5 to 22.3 s. Half of
	// it, and of the other, is taken where at least three measurements are known.
	timeNoise = 0.35
	// conflictNoise is how many more or fewer conflicts a burst may have.
	conflictNoise = 2
)

// widened is how much wider than half the range of n measurements the noise of their median is taken to be: the fewer
// there are, the less of the spread they show.
func widened(n int) float64 {
	switch n {
	case 2:
		return 3
	case 3:
		return 2
	}
	return 1.5
}

// change is a figure of two pages.
type change struct {
	group, name   string
	before, after float64
	// noise is how far the two may differ without a cause, as a part of the first.
	noise float64
	// ratio says that the figures are bundled's to the peer's, which a slower machine doesn't change.
	ratio bool
	// overlap says that what was measured for the two pages overlaps.
	overlap bool
}

// by is how much the figure has changed, as a part of the first; more is worse. Of a figure that was 0, any is too
// much.
func (c change) by() float64 {
	by := c.after/c.before - 1
	if strings.Contains(c.name, "per second") || c.name == "finished" {
		by = -by
	}
	return by
}

// isNoise reports whether the two may differ without a cause.
func (c change) isNoise() bool {
	return c.overlap || math.Abs(c.by()) <= c.noise ||
		c.name == conflicts && math.Abs(c.after-c.before) <= conflictNoise
}

// comparePages prints the figures of two pages that differ by more than noise, and returns an error if one is worse.
func comparePages(out io.Writer, before, after string) error {
	var pages [2]comparison
	for i, path := range []string{before, after} {
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if err := json.Unmarshal(data, &pages[i]); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	for _, f := range missing(&pages[0], &pages[1]) {
		fmt.Fprintf(out, "not compared: %s: %s: %s has it alone\n", f.Group, f.Name, before)
	}
	compared, worse := 0, 0
	for _, c := range changes(&pages[0], &pages[1]) {
		compared++
		if c.isNoise() {
			continue
		}
		word := "better"
		if c.by() > 0 {
			word = "worse"
			worse++
		}
		of := ""
		if c.ratio {
			of = " times the peer's"
		}
		fmt.Fprintf(out, "%s: %s: %s: %.4g → %.4g%s (%+.0f %%, noise %.0f %%)\n", word, c.group, c.name, c.before, c.after,
			of, 100*(c.after/c.before-1), 100*c.noise)
	}
	fmt.Fprintf(out, "%d figures compared, %d worse by more than noise\n", compared, worse)
	switch {
	case compared == 0:
		return fmt.Errorf("%s and %s have no figure in common", before, after)
	case worse > 0:
		return fmt.Errorf("%d figures are worse", worse)
	}
	return nil
}

// missing are the figures of Signalbox that the later page doesn't have in a group of both: measured no more, or by
// another name. A group that one page lacks was left out on purpose, as QUICK=1 does.
func missing(before, after *comparison) (all []*figure) {
	for _, f := range before.Figures {
		_, had := f.Values["bundled"]
		related := func(g *figure) bool { return g.Group == f.Group }
		same := func(g *figure) bool { return related(g) && g.Name == f.Name }
		if had && slices.ContainsFunc(after.Figures, related) && !slices.ContainsFunc(after.Figures, same) {
			all = append(all, f)
		}
	}
	return all
}

// changes are the figures that both pages have and that aren't 0 in both. Where both have the peer, ratios to it are
// compared.
func changes(before, after *comparison) (all []change) {
	type key struct{ group, name string }
	old := map[key]*figure{}
	for _, f := range before.Figures {
		old[key{f.Group, f.Name}] = f
	}
	for _, f := range after.Figures {
		was := old[key{f.Group, f.Name}]
		if was == nil {
			continue
		}
		_, had := was.Values["bundled"]
		_, has := f.Values["bundled"]
		if !had || !has || was.Values["bundled"] == 0 && f.Values["bundled"] == 0 {
			continue
		}
		c := change{group: f.Group, name: f.Name, before: was.Values["bundled"], after: f.Values["bundled"]}
		c.noise = math.Hypot(was.spread("bundled"), f.spread("bundled"))
		c.overlap = overlap(was.Measured["bundled"], f.Measured["bundled"])
		if was.Ratio != 0 && f.Ratio != 0 && f.Name != conflicts {
			c.before, c.after, c.ratio = was.Ratio, f.Ratio, true
			c.noise = math.Hypot(c.noise, math.Hypot(was.spread("builtin"), f.spread("builtin")))
			c.overlap = overlap(was.ratios(), f.ratios())
		}
		all = append(all, c)
	}
	return all
}

// overlap reports whether two ranges overlap. One measurement isn't a range.
func overlap(a, b []float64) bool {
	return len(a) > 1 && len(b) > 1 && a[0] <= b[len(b)-1] && b[0] <= a[len(a)-1]
}

// ratios are the least and the greatest ratio to the peer of what was measured.
func (f *figure) ratios() []float64 {
	ours, theirs := f.Measured["bundled"], f.Measured["builtin"]
	if len(ours) < 2 || len(theirs) < 2 || theirs[0] <= 0 {
		return nil
	}
	return []float64{ours[0] / theirs[len(theirs)-1], ours[len(ours)-1] / theirs[0]}
}

// spread is how far the median of what was measured of a profile may be off, as a part of it: at least what counts or
// times differ by anyhow.
func (f *figure) spread(profile string) float64 {
	least := countNoise
	for _, unit := range []string{", ms", "CPU", "memory", "per second", ", s", ": times"} {
		if strings.Contains(f.Name, unit) {
			least = timeNoise
		}
	}
	measured := f.Measured[profile]
	n := len(measured)
	if n < 2 || f.Values[profile] == 0 {
		return least
	}
	if n > 2 {
		least /= 2
	}
	return max(least, widened(n)*(measured[n-1]-measured[0])/2/f.Values[profile])
}
