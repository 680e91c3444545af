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
	// countNoise is how far counts of two runs may differ: they are exact, but not each run meets the same conflicts.
	countNoise = 0.02
	// timeNoise is how far times, CPU seconds and memory may differ where one run was measured, and so no spread is known.
	timeNoise = 0.25
)

// change is a figure of two pages.
type change struct {
	group, name   string
	before, after float64
	// noise is how far the two may differ without a cause, as a part of the first.
	noise float64
	// ratio says that the figures are bundled's to the peer's, which a slower machine doesn't change.
	ratio bool
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
		word := "better"
		switch by := c.by(); {
		case math.Abs(by) <= c.noise:
			continue
		case by > 0:
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
		if was.Ratio != 0 && f.Ratio != 0 {
			c.before, c.after, c.ratio = was.Ratio, f.Ratio, true
			c.noise = math.Hypot(c.noise, math.Hypot(was.spread("builtin"), f.spread("builtin")))
		}
		all = append(all, c)
	}
	return all
}

// spread is half the range of what was measured of a profile, as a part of the median; at least what a count or a time
// differs by anyhow.
func (f *figure) spread(profile string) float64 {
	least, single := countNoise, countNoise
	for _, unit := range []string{", ms", "CPU", "memory", "per second", ", s"} {
		if strings.Contains(f.Name, unit) {
			least, single = timeNoise/5, timeNoise
		}
	}
	measured := f.Measured[profile]
	if len(measured) < 2 || f.Values[profile] == 0 {
		return single
	}
	return max(least, (measured[len(measured)-1]-measured[0])/2/f.Values[profile])
}
