package main

import (
	"fmt"
	"slices"
)

const shareName = "CPU seconds per 1,000: Signalbox, and what it takes the place of (Trainer, and what Kueue spends " +
	"more)"

// compareShare compares what Signalbox costs with what it takes the place of: Kubeflow Trainer, and what Kueue spends
// more on its own integration.
func (c *comparison) compareShare(group string) {
	cpu := func(who, profile string) float64 {
		if f := c.find(group, "… CPU seconds of "+who+" per 1,000"); f != nil {
			return f.Values[profile]
		}
		return 0
	}
	ours, theirs := cpu("signalbox", "bundled"), cpu("trainer", "builtin")+cpu("kueue", "builtin")-cpu("kueue", "bundled")
	if ours > 0 && cpu("trainer", "builtin") > 0 {
		c.Figures = append(c.Figures, &figure{
			Group: group, Name: shareName,
			Values: map[string]float64{"bundled": ours, "builtin": theirs}, Ratio: ours / theirs,
		})
	}
}

func (c *comparison) compareWaiting(runs map[string][]*loadRun, depth int) {
	of := func(r *loadRun) *waitingRun {
		if i := slices.IndexFunc(r.Waiting, func(w waitingRun) bool { return w.Waiting == depth }); i >= 0 {
			return &r.Waiting[i]
		}
		return nil
	}
	s := span{admitted, started}
	for _, q := range quantiles {
		c.add(waitingGroup(depth), fmt.Sprintf("%s, p%.0f, ms", s, q*100), runs, func(r *loadRun) (float64, bool) {
			if w := of(r); w != nil {
				return quantile(w.LatencyMs[s.String()], q), true
			}
			return 0, false
		})
	}
	c.addFaults(waitingGroup(depth), runs, func(r *loadRun) (map[string]int, bool) {
		if w := of(r); w != nil {
			return w.Faults, true
		}
		return nil, false
	})
	c.addPeaks(waitingGroup(depth), runs, func(r *loadRun) map[string]int64 {
		if w := of(r); w != nil {
			return w.Peak
		}
		return nil
	})
}

func waitingGroup(depth int) string { return fmt.Sprintf("While %d wait and %d run", depth, running) }

// compareGrowth adds how the time to start grows from the fewest that wait: the ratio of the medians, and what it is at
// the least and at the most.
func (c *comparison) compareGrowth(depths []int) {
	const name = "admitted → started, p99, ms"
	if len(depths) < 2 {
		return
	}
	few := c.find(waitingGroup(depths[0]), name)
	for _, depth := range depths[1:] {
		many := c.find(waitingGroup(depth), name)
		f := &figure{
			Group:    fmt.Sprintf("How it grows over %d waiting", depths[0]),
			Name:     fmt.Sprintf("admitted → started, p99, with %d waiting: times", depth),
			Values:   map[string]float64{},
			Measured: map[string][]float64{},
			Missed:   map[string]float64{},
		}
		for profile, v := range many.Values {
			over, under := few.Measured[profile], many.Measured[profile]
			if len(over) == 0 || over[0] <= 0 {
				continue
			}
			f.Values[profile] = v / few.Values[profile]
			if len(over) > 1 && len(under) > 1 {
				f.Measured[profile] = []float64{under[0] / over[len(over)-1], under[len(under)-1] / over[0]}
				f.Missed[profile] = missed(len(over)) + missed(len(under))
			}
		}
		c.Figures = append(c.Figures, f)
	}
}
