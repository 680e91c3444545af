package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// peers in the order of the tables; the last is what the others are compared with.
var peers = []string{"bundled", "kubeflow", "builtin"}

// figure is one line of the comparison: of each profile, the median of its runs.
type figure struct {
	Group  string             `json:"group"`
	Name   string             `json:"name"`
	Values map[string]float64 `json:"values"`
	// Ratio is bundled's to builtin's.
	Ratio float64 `json:"bundledToBuiltin,omitempty"`
}

// comparison is all that a report says.
type comparison struct {
	Machine string         `json:"machine"`
	Runs    map[string]int `json:"runs"`
	Figures []*figure      `json:"figures"`
}

// report reads the runs in a folder, compares the profiles and leaves a page, a JSON and pictures.
func report(folder, base string) error {
	paths, err := filepath.Glob(filepath.Join(folder, "*.json"))
	if err != nil {
		return err
	}
	runs := map[string][]*loadRun{}
	c := &comparison{Runs: map[string]int{}}
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		r := &loadRun{}
		if err := json.Unmarshal(data, r); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		runs[r.Profile] = append(runs[r.Profile], r)
		c.Machine = r.Machine
		c.Runs[r.Profile]++
	}
	if len(runs) == 0 {
		return fmt.Errorf("no runs in %s; make bench makes them", folder)
	}
	c.compare(runs)
	text := c.markdown(filepath.Base(base))
	fmt.Print("\n" + text)
	if err := write(base, c, text); err != nil {
		return err
	}
	return c.draw(base)
}

// add adds a figure: value is asked of every run that has it.
func (c *comparison) add(group, name string, runs map[string][]*loadRun, value func(*loadRun) (float64, bool)) {
	f := &figure{Group: group, Name: name, Values: map[string]float64{}}
	for profile, all := range runs {
		var values []float64
		for _, r := range all {
			if v, has := value(r); has {
				values = append(values, v)
			}
		}
		if len(values) > 0 {
			slices.Sort(values)
			f.Values[profile] = values[len(values)/2]
		}
	}
	ours, have := f.Values["bundled"]
	theirs, has := f.Values["builtin"]
	if have && has && theirs != 0 {
		f.Ratio = ours / theirs
	}
	if len(f.Values) > 0 {
		c.Figures = append(c.Figures, f)
	}
}

func (c *comparison) compare(runs map[string][]*loadRun) {
	sizes, depths, faults := map[int]bool{}, map[int]bool{}, map[string]bool{}
	for _, all := range runs {
		for _, r := range all {
			for _, b := range r.Bursts {
				sizes[b.Jobs] = true
				for fault := range b.Faults {
					faults[fault] = true
				}
			}
			for _, w := range r.Waiting {
				depths[w.Waiting] = true
			}
		}
	}
	const waits = "A TrainJob that waits (its ClusterQueue is on hold)"
	ofQueued := func(value func(*queuedRun) float64) func(*loadRun) (float64, bool) {
		return func(r *loadRun) (float64, bool) {
			if r.Queued == nil {
				return 0, false
			}
			return value(r.Queued), true
		}
	}
	c.add(waits, "objects in etcd, itself among them, without events", runs, ofQueued(func(q *queuedRun) float64 { return float64(q.Stored.Objects) / float64(q.Jobs) }))
	c.add(waits, "bytes in etcd", runs, ofQueued(func(q *queuedRun) float64 { return float64(q.Stored.Bytes) / float64(q.Jobs) }))
	c.add(waits, "write requests by all, its submission among them", runs, ofQueued(func(q *queuedRun) float64 { return q.WritesPerJob["all"] }))
	for _, size := range slices.Sorted(maps.Keys(sizes)) {
		group := fmt.Sprintf("A burst of %d", size)
		ofBurst := func(value func(*burstRun) float64) func(*loadRun) (float64, bool) {
			return func(r *loadRun) (float64, bool) {
				for i := range r.Bursts {
					if r.Bursts[i].Jobs == size {
						return value(&r.Bursts[i]), true
					}
				}
				return 0, false
			}
		}
		c.add(group, "finished", runs, ofBurst(func(b *burstRun) float64 { return float64(b.Finished) }))
		c.add(group, "TrainJobs per second", runs, ofBurst(func(b *burstRun) float64 { return float64(b.Jobs) / b.Seconds }))
		c.add(group, "writes to the TrainJob per start", runs, ofBurst(func(b *burstRun) float64 { return b.StartWrites }))
		c.add(group, "write requests per TrainJob by Kueue, JobSet and who starts and builds", runs, ofBurst(func(b *burstRun) float64 { return b.WritesPerJob["controllers"] }))
		for _, who := range controllers {
			c.add(group, "… of them by "+who, runs, ofBurst(func(b *burstRun) float64 { return b.WritesPerJob[who] }))
		}
		c.add(group, "read requests per TrainJob by the same", runs, ofBurst(func(b *burstRun) float64 { return b.ReadsPerJob["controllers"] }))
		c.add(group, "conflicts", runs, ofBurst(func(b *burstRun) float64 { return float64(b.Conflicts) }))
		c.add(group, "dry runs", runs, ofBurst(func(b *burstRun) float64 { return float64(b.DryRuns) }))
		c.add(group, "CPU seconds of the same per 1,000", runs, ofBurst(func(b *burstRun) float64 { return b.CPU["controllers"] }))
		for _, who := range append(slices.Clone(controllers), "kube-apiserver") {
			c.add(group, "… CPU seconds of "+who+" per 1,000", runs, ofBurst(func(b *burstRun) float64 { return b.CPU[who] }))
		}
		for _, who := range controllers {
			c.add(group, "peak memory of "+who+", MiB", runs, ofBurst(func(b *burstRun) float64 { return float64(b.Peak[who]) / (1 << 20) }))
		}
		for _, s := range spans {
			for _, q := range []float64{0.5, 0.95, 0.99} {
				c.add(group, fmt.Sprintf("%s, p%.0f, ms", s, q*100), runs, ofBurst(func(b *burstRun) float64 { return quantile(b.LatencyMs[s.String()], q) }))
			}
		}
		c.add(group, "objects in etcd per finished TrainJob", runs, ofBurst(func(b *burstRun) float64 { return float64(b.Stored.Objects) / float64(b.Jobs) }))
		for _, fault := range slices.Sorted(maps.Keys(faults)) {
			c.add(group, fault, runs, ofBurst(func(b *burstRun) float64 { return float64(b.Faults[fault]) }))
		}
	}
	for _, depth := range slices.Sorted(maps.Keys(depths)) {
		group := fmt.Sprintf("While %d wait", depth)
		ofWaiting := func(value func(*waitingRun) float64) func(*loadRun) (float64, bool) {
			return func(r *loadRun) (float64, bool) {
				for i := range r.Waiting {
					if r.Waiting[i].Waiting == depth {
						return value(&r.Waiting[i]), true
					}
				}
				return 0, false
			}
		}
		s := span{admitted, started}
		for _, q := range []float64{0.5, 0.95, 0.99} {
			c.add(group, fmt.Sprintf("%s, p%.0f, ms", s, q*100), runs, ofWaiting(func(w *waitingRun) float64 { return quantile(w.LatencyMs[s.String()], q) }))
		}
		for _, who := range controllers {
			c.add(group, "peak memory of "+who+", MiB", runs, ofWaiting(func(w *waitingRun) float64 { return float64(w.Peak[who]) / (1 << 20) }))
		}
	}
}

func (c *comparison) markdown(name string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "# Side by side\n\n`make bench` makes this page: medians of %s, in turns, on one machine (%s). [README](../README.md) says how to read it.\n\n", c.runsInWords(), c.Machine)
	for _, picture := range pictures {
		fmt.Fprintf(&b, "![%s](%s-%s.svg)\n\n", picture.title, name, picture.name)
	}
	group := ""
	for _, f := range c.Figures {
		if f.Group != group {
			group = f.Group
			fmt.Fprintf(&b, "\n## %s\n\n| | %s | bundled / builtin |\n| --- |%s --: |\n", group, strings.Join(peers, " | "), strings.Repeat(" --: |", len(peers)))
		}
		cells := make([]string, 0, len(peers)+1)
		for _, p := range peers {
			if v, has := f.Values[p]; has {
				cells = append(cells, fmt.Sprintf("%.2f", v))
			} else {
				cells = append(cells, "")
			}
		}
		ratio := ""
		if f.Ratio != 0 {
			ratio = fmt.Sprintf("%.2f", f.Ratio)
		}
		fmt.Fprintf(&b, "| %s | %s | %s |\n", f.Name, strings.Join(cells, " | "), ratio)
	}
	return b.String()
}

func (c *comparison) runsInWords() string {
	var words []string
	for _, p := range peers {
		if n := c.Runs[p]; n > 0 {
			words = append(words, fmt.Sprintf("%d runs of %s", n, p))
		}
	}
	return strings.Join(words, ", ")
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
