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
	add := func(name string, value func(*waitingRun) float64) {
		c.add(waitingGroup(depth), name, runs, func(r *loadRun) (float64, bool) {
			for i := range r.Waiting {
				if r.Waiting[i].Waiting == depth {
					return value(&r.Waiting[i]), true
				}
			}
			return 0, false
		})
	}
	s := span{admitted, started}
	for _, q := range quantiles {
		add(fmt.Sprintf("%s, p%.0f, ms", s, q*100),
			func(w *waitingRun) float64 { return quantile(w.LatencyMs[s.String()], q) })
	}
	c.addFaults(waitingGroup(depth), runs, func(r *loadRun) (map[string]int, bool) {
		i := slices.IndexFunc(r.Waiting, func(w waitingRun) bool { return w.Waiting == depth })
		if i < 0 {
			return nil, false
		}
		return r.Waiting[i].Faults, true
	})
	for _, who := range controllers {
		add("peak memory of "+who+", MiB", func(w *waitingRun) float64 { return float64(w.Peak[who]) / (1 << 20) })
	}
}
