package main

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
)

// peers in the order of the tables; the last is what the others are compared with.
var peers = []string{"bundled", "kubeflow", "builtin"}

// quantiles that are reported of a distribution.
var quantiles = []float64{0.5, 0.95, 0.99}

// figure is one line of the comparison: of each profile, the median of its runs.
type figure struct {
	Group  string             `json:"group"`
	Name   string             `json:"name"`
	Values map[string]float64 `json:"values"`
	// Measured are what the medians are of, in order.
	Measured map[string][]float64 `json:"measured,omitempty"`
	// Missed is the probability that a median isn't within what was measured, where that isn't a matter of how many
	// measurements there are: a ratio of two medians.
	Missed map[string]float64 `json:"missed,omitempty"`
	// Ratio is the first column's to the last's: bundled's to builtin's, of most pages.
	Ratio float64 `json:"bundledToBuiltin,omitempty"`
}

// comparison is all that a report says.
type comparison struct {
	Machine string    `json:"machine"`
	Figures []*figure `json:"figures"`
}

// report reads the runs in a folder, compares the profiles and leaves a page, a JSON and pictures.
func report(folder, base string) error {
	all, err := runsIn[loadRun](folder)
	if err != nil {
		return err
	}
	runs, c := map[string][]*loadRun{}, &comparison{}
	for _, r := range all {
		runs[r.Profile] = append(runs[r.Profile], r)
		c.Machine = r.Machine
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
	measured := map[string][]float64{}
	for profile, all := range runs {
		for _, r := range all {
			if v, has := value(r); has {
				measured[profile] = append(measured[profile], v)
			}
		}
	}
	c.addMeasured(&figure{Group: group, Name: name, Measured: measured}, peers)
}

// addMeasured adds a figure with the medians of what was measured, if anything was, and the ratio of the first of some
// columns to the last.
func (c *comparison) addMeasured(f *figure, columns []string) {
	f.Values = map[string]float64{}
	for column, values := range f.Measured {
		slices.Sort(values)
		f.Values[column] = (values[len(values)/2] + values[(len(values)-1)/2]) / 2
	}
	ours, have := f.Values[columns[0]]
	theirs, has := f.Values[columns[len(columns)-1]]
	if have && has && theirs != 0 {
		f.Ratio = ours / theirs
	}
	if len(f.Values) > 0 {
		c.Figures = append(c.Figures, f)
	}
}

// inTurns makes runs of their own of what one run has measured again: bursts of the same size, and as many TrainJobs
// waiting. Those have no peaks of memory, because a process keeps the peak of what was measured before.
func inTurns(runs []*loadRun) (all []*loadRun) {
	for _, r := range runs {
		first := *r
		bursts, burstsAgain := firstOf(r.Bursts, func(b burstRun) int { return b.Jobs })
		depths, depthsAgain := firstOf(r.Waiting, func(w waitingRun) int { return w.Waiting })
		first.Bursts, first.Waiting = bursts, depths
		all = append(all, &first)
		for _, b := range burstsAgain {
			b.Peak = nil
			all = append(all, &loadRun{Profile: r.Profile, Machine: r.Machine, Bursts: []burstRun{b}})
		}
		for _, w := range depthsAgain {
			w.Peak = nil
			all = append(all, &loadRun{Profile: r.Profile, Machine: r.Machine, Waiting: []waitingRun{w}})
		}
	}
	return all
}

// firstOf divides measurements into the first of each size, and those that were made again.
func firstOf[T any](measured []T, size func(T) int) (first, again []T) {
	seen := map[int]bool{}
	for _, m := range measured {
		if seen[size(m)] {
			again = append(again, m)
			continue
		}
		seen[size(m)] = true
		first = append(first, m)
	}
	return first, again
}

func (c *comparison) compare(measured map[string][]*loadRun) {
	runs := map[string][]*loadRun{}
	for profile, all := range measured {
		runs[profile] = inTurns(all)
	}
	sizes, depths := map[int]bool{}, map[int]bool{}
	for _, all := range runs {
		for _, r := range all {
			for i := range r.Bursts {
				sizes[r.Bursts[i].Jobs] = true
			}
			for i := range r.Waiting {
				depths[r.Waiting[i].Waiting] = true
			}
		}
	}
	c.compareQueued(runs)
	for _, size := range slices.Sorted(maps.Keys(sizes)) {
		c.compareBursts(runs, size)
	}
	c.compareSmall(runs)
	deeper := slices.Sorted(maps.Keys(depths))
	for _, depth := range deeper {
		c.compareWaiting(runs, depth)
	}
	c.compareGrowth(deeper)
	c.compareRestarts(runs)
	c.add("All runs", "findings of `signalbox audit`", measured, func(r *loadRun) (float64, bool) {
		found := 0
		for _, n := range r.Findings {
			found += n
		}
		return float64(found), r.Findings != nil
	})
}

func (c *comparison) compareQueued(runs map[string][]*loadRun) {
	add := func(name string, value func(*queuedRun) float64) {
		c.add("A TrainJob that waits (its ClusterQueue is on hold)", name, runs, func(r *loadRun) (float64, bool) {
			if r.Queued == nil {
				return 0, false
			}
			return value(r.Queued), true
		})
	}
	add("objects in etcd, itself among them, without events",
		func(q *queuedRun) float64 { return float64(q.Stored.Objects) / float64(q.Jobs) })
	add("bytes in etcd", func(q *queuedRun) float64 { return float64(q.Stored.Bytes) / float64(q.Jobs) })
	add("write requests by all, its submission among them", func(q *queuedRun) float64 { return q.WritesPerJob["all"] })
}

// lateName is the figure of what is written when all is over: Signalbox takes the finalizers from the Workloads then.
const lateName = "write requests per TrainJob by the same in the 75 s after the end of all"

// conflicts is the figure of the requests that were refused because the object had changed.
const conflicts = "conflicts"

// compareSmall adds what is measured once in each run, and the latency of an eviction.
func (c *comparison) compareSmall(runs map[string][]*loadRun) {
	s := span{evicted, released}
	for _, q := range quantiles {
		c.add(fmt.Sprintf("%d running TrainJobs are evicted at once", running),
			fmt.Sprintf("%s, p%.0f, ms", s, q*100), runs, func(r *loadRun) (float64, bool) {
				if r.Running == nil {
					return 0, false
				}
				return quantile(r.Running.LatencyMs[s.String()], q), true
			})
	}
	kept := func(name string, value func(stored) float64) {
		c.add("A TrainJob that runs", name, runs, func(r *loadRun) (float64, bool) {
			if r.Running == nil {
				return 0, false
			}
			return value(r.Running.Stored) / float64(r.Running.Jobs), true
		})
	}
	kept("objects in etcd, itself among them, without events", func(s stored) float64 { return float64(s.Objects) })
	kept("bytes in etcd", func(s stored) float64 { return float64(s.Bytes) })
}

// addPeaks adds the peaks of memory of the controllers.
func (c *comparison) addPeaks(group string, runs map[string][]*loadRun, of func(*loadRun) map[string]int64) {
	for _, who := range controllers {
		c.add(group, "peak memory of "+who+", MiB", runs, func(r *loadRun) (float64, bool) {
			peaks := of(r)
			return float64(peaks[who]) / (1 << 20), peaks != nil
		})
	}
}

// addFaults adds a line for every kind of fault that any run has seen, and for each that matters most in any case.
func (c *comparison) addFaults(group string, runs map[string][]*loadRun, of func(*loadRun) (map[string]int, bool)) {
	kinds := map[string]bool{startedTwice: true, wrongPlacement: true, quotaOverused: true}
	for _, all := range runs {
		for _, r := range all {
			faults, _ := of(r)
			for kind := range faults {
				kinds[kind] = true
			}
		}
	}
	for _, kind := range slices.Sorted(maps.Keys(kinds)) {
		c.add(group, kind, runs, func(r *loadRun) (float64, bool) {
			faults, has := of(r)
			return float64(faults[kind]), has
		})
	}
}

func (c *comparison) compareRestarts(runs map[string][]*loadRun) {
	depths := map[int]bool{}
	for _, all := range runs {
		for _, r := range all {
			if r.Restart != nil {
				depths[r.Restart.Waiting] = true
			}
		}
	}
	for _, depth := range slices.Sorted(maps.Keys(depths)) {
		group := fmt.Sprintf("The manager is restarted while %d wait and Kueue is quiet; %d were admitted meanwhile",
			depth, running)
		add := func(name string, value func(*restartRun) float64) {
			c.add(group, name, runs, func(r *loadRun) (float64, bool) {
				if r.Restart == nil || r.Restart.Waiting != depth {
					return 0, false
				}
				return value(r.Restart), true
			})
		}
		add("its webhooks serve after, s", func(r *restartRun) float64 { return r.ReadySeconds })
		add("those that were admitted are started after, s", func(r *restartRun) float64 { return r.StartedSeconds })
		add("it is up to date after, s", func(r *restartRun) float64 { return r.InStepSeconds })
		for _, kind := range []string{startedTwice, wrongPlacement, quotaOverused} {
			add(kind, func(r *restartRun) float64 { return float64(r.Faults[kind]) })
		}
		add("its peak memory, MiB", func(r *restartRun) float64 { return float64(r.Peak) / (1 << 20) })
	}
}

func (c *comparison) compareBursts(runs map[string][]*loadRun, size int) {
	group := fmt.Sprintf("A burst of %d", size)
	of := func(r *loadRun) *burstRun {
		if i := slices.IndexFunc(r.Bursts, func(b burstRun) bool { return b.Jobs == size }); i >= 0 {
			return &r.Bursts[i]
		}
		return nil
	}
	add := func(name string, value func(*burstRun) float64) {
		c.add(group, name, runs, func(r *loadRun) (float64, bool) {
			if b := of(r); b != nil {
				return value(b), true
			}
			return 0, false
		})
	}
	add("finished", func(b *burstRun) float64 { return float64(b.Finished) })
	add("TrainJobs per second", func(b *burstRun) float64 { return float64(b.Jobs) / b.Seconds })
	add("writes to the TrainJob per start", func(b *burstRun) float64 { return b.StartWrites })
	add("write requests per TrainJob by Kueue, JobSet and who starts and builds",
		func(b *burstRun) float64 { return b.WritesPerJob["controllers"] })
	add("… of them events", func(b *burstRun) float64 { return b.WritesPerJob["events"] })
	for _, who := range controllers {
		add("… of them by "+who, func(b *burstRun) float64 { return b.WritesPerJob[who] })
	}
	c.add(group, lateName, runs, func(r *loadRun) (float64, bool) {
		if b := of(r); b != nil && b.Late {
			return b.LateWrites, true
		}
		return 0, false
	})
	add("read requests per TrainJob by the same", func(b *burstRun) float64 { return b.ReadsPerJob["controllers"] })
	add(conflicts, func(b *burstRun) float64 { return float64(b.Conflicts) })
	add("dry runs", func(b *burstRun) float64 { return float64(b.DryRuns) })
	add("CPU seconds of the same per 1,000", func(b *burstRun) float64 { return b.CPU["controllers"] })
	for _, who := range append(slices.Clone(controllers), "kube-apiserver") {
		add("… CPU seconds of "+who+" per 1,000", func(b *burstRun) float64 { return b.CPU[who] })
	}
	c.addPeaks(group, runs, func(r *loadRun) map[string]int64 {
		if b := of(r); b != nil {
			return b.Peak
		}
		return nil
	})
	addLatencies(add)
	add("objects in etcd per finished TrainJob, without events",
		func(b *burstRun) float64 { return float64(b.Stored.Objects) / float64(b.Jobs) })
	add("bytes in etcd per finished TrainJob",
		func(b *burstRun) float64 { return float64(b.Stored.Bytes) / float64(b.Jobs) })
	c.compareShare(group)
	c.addFaults(group, runs, func(r *loadRun) (map[string]int, bool) {
		if b := of(r); b != nil {
			return b.Faults, true
		}
		return nil, false
	})
}

// addLatencies adds the quantiles of the spans that a burst has.
func addLatencies(add func(name string, value func(*burstRun) float64)) {
	for _, s := range spans {
		if s.from == evicted {
			continue // none is in a burst
		}
		for _, q := range quantiles {
			add(fmt.Sprintf("%s, p%.0f, ms", s, q*100),
				func(b *burstRun) float64 { return quantile(b.LatencyMs[s.String()], q) })
		}
	}
}
