package main

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// mostTimes is how many times as long the p99 of starts may be with the webhooks as it is without.
const mostTimes = 2

// hostileRow is what the page says of a kind.
type hostileRow struct {
	kind     string
	way      hostileWay
	measured []hostileMeasure // with the webhooks
	// compared are without the webhooks; those without hostile requests, where the kind doesn't pass through the API
	// server.
	compared []hostileMeasure
}

// rows returns the kinds in the order in which they were measured first.
func (r *hostileRun) rows() []hostileRow {
	var rows []hostileRow
	for _, m := range r.Measured {
		at := slices.IndexFunc(rows, func(row hostileRow) bool { return row.kind == m.Kind && row.way == m.Way })
		if at < 0 {
			at = len(rows)
			rows = append(rows, hostileRow{kind: m.Kind, way: m.Way})
		}
		if m.Registered {
			rows[at].measured = append(rows[at].measured, m)
		} else {
			rows[at].compared = append(rows[at].compared, m)
		}
	}
	for i := range rows {
		if rows[i].way == rawly {
			rows[i].compared = r.quiet()
		}
	}
	return rows
}

// quiet returns the measurements without hostile requests.
func (r *hostileRun) quiet() []hostileMeasure {
	var all []hostileMeasure
	for _, m := range r.Measured {
		if m.Way == quietly {
			all = append(all, m)
		}
	}
	return all
}

// quantilesOf returns a quantile of the starts of each measurement, sorted.
func quantilesOf(all []hostileMeasure, share float64) []float64 {
	var each []float64
	for _, m := range all {
		each = append(each, quantile(m.StartMs, share))
	}
	slices.Sort(each)
	return each
}

// times returns how many times as long the p99 is as what it is compared with, by the medians; 0 if there is nothing to
// compare.
func (row hostileRow) times() float64 {
	without := median(quantilesOf(row.compared, 0.99))
	if without == 0 {
		return 0
	}
	return median(quantilesOf(row.measured, 0.99)) / without
}

// median of sorted values: of an even number, the mean of the two in the middle.
func median(sorted []float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	return (sorted[(len(sorted)-1)/2] + sorted[len(sorted)/2]) / 2
}

// use returns the most that a manager used while a kind was sent, and all restarts.
func (row hostileRow) use() (most managerUse) {
	for _, m := range row.measured {
		most.WorkingSet = max(most.WorkingSet, m.Manager.WorkingSet)
		most.Resident = max(most.Resident, m.Manager.Resident)
		most.CPU = max(most.CPU, m.Manager.CPU)
		most.Restarts += m.Manager.Restarts
	}
	return most
}

// verdict returns an error that names each kind that delays others too much, that takes too much memory, or that ends a
// manager.
func (r *hostileRun) verdict() error {
	var all []error
	for _, row := range r.rows() {
		if times := row.times(); times > mostTimes {
			all = append(all, fmt.Errorf("%s (%s): the p99 of starts is %.1f times as long, more than %d", row.kind, row.way,
				times, mostTimes))
		}
		use := row.use()
		if use.WorkingSet >= r.Limit || use.Resident >= r.Limit {
			all = append(all, fmt.Errorf("%s (%s): a manager uses %d MiB (resident %d), and its limit is %d", row.kind, row.way,
				use.WorkingSet>>20, use.Resident>>20, r.Limit>>20))
		}
		if use.Restarts > 0 {
			all = append(all, fmt.Errorf("%s (%s): %d restarts of managers", row.kind, row.way, use.Restarts))
		}
	}
	return errors.Join(all...)
}

// markdown returns the page.
func (r *hostileRun) markdown() string {
	var b strings.Builder
	rounds := 0
	for _, m := range r.Measured {
		rounds = max(rounds, m.Round+1)
	}
	fmt.Fprintf(&b, "# Hostile requests\n\n`make bench-hostile` makes this page (%s; profile `node`). While %d honest "+
		"TrainJobs are submitted in %.0f s, %d clients send %d hostile requests of one kind, in the same time or as fast as "+
		"they are answered. A start is from the request that creates a TrainJob to `suspend: false`. Times are medians of "+
		"%d rounds, with the least and the greatest. They are compared with the same requests while the webhooks are "+
		"unregistered; those of raw reviews with no hostile requests, measured %d times. Memory is the most of one manager "+
		"in all rounds, its limit is %d MiB. CPU seconds are of both managers, in the worst round.\n\n",
		r.Machine, r.Jobs, r.Seconds, r.Clients, r.Requests, rounds, len(r.quiet()), r.Limit>>20)
	for _, w := range []struct {
		way  hostileWay
		what string
	}{
		{quietly, "Without hostile requests"},
		{dryly, "Dry runs: a user creates a TrainJob"},
		{fully, "Large dry runs: a user creates TrainJobs of 2.7 MB"},
		{really, "TrainJobs: a user creates them, and changes them again and again"},
		{rawly, "Reviews: pods without credentials send them to the port of the webhooks"},
	} {
		rows := slices.DeleteFunc(r.rows(), func(row hostileRow) bool { return row.way != w.way })
		if len(rows) == 0 {
			continue
		}
		fmt.Fprintf(&b, "## %s\n\n", w.what)
		b.WriteString("| kind | start p50, ms | p99, ms | p99 compared, ms | times | working set, MiB | resident, MiB | " +
			"CPU, s | restarts | sent in, s | answers |\n|" + " --- |" + strings.Repeat(" --: |", 9) + " --- |\n")
		for _, row := range rows {
			row.write(&b)
		}
		b.WriteString("\n")
	}
	refused, faults := map[string]int{}, map[string]int{}
	for _, m := range r.Measured {
		addTo(refused, m.Refused)
		addTo(faults, m.Faults)
	}
	fmt.Fprintf(&b, "Creations of honest TrainJobs that were refused and tried again: %s. Faults: %s.\n\n",
		counts(refused), counts(faults))
	if err := r.verdict(); err != nil {
		fmt.Fprintf(&b, "**Not reached:**\n\n- %s\n", strings.ReplaceAll(err.Error(), "\n", "\n- "))
	} else {
		fmt.Fprintf(&b, "Each p99 is at most %d times as long, no manager was restarted, and none reached its limit.\n",
			mostTimes)
	}
	return b.String()
}

// write adds the row to a page.
func (row hostileRow) write(b *strings.Builder) {
	use := row.use()
	compared, times, seconds := "", "", []float64{}
	if len(row.compared) > 0 {
		compared, times = spread(quantilesOf(row.compared, 0.99)), fmt.Sprintf("%.2f", row.times())
	}
	answers := map[string]int{}
	for _, m := range row.measured {
		addTo(answers, m.Hostile.Answers)
		seconds = append(seconds, m.Hostile.Seconds)
	}
	slices.Sort(seconds)
	fmt.Fprintf(b, "| %s | %s | %s | %s | %s | %d | %d | %.1f | %d | %.0f | %s |\n", row.kind,
		spread(quantilesOf(row.measured, 0.5)), spread(quantilesOf(row.measured, 0.99)), compared, times,
		use.WorkingSet>>20, use.Resident>>20, use.CPU, use.Restarts, median(seconds), counts(answers))
}

// spread returns the median of sorted values, with the least and the greatest.
func spread(sorted []float64) string {
	if len(sorted) == 0 {
		return ""
	}
	return fmt.Sprintf("%.0f (%.0f–%.0f)", median(sorted), sorted[0], sorted[len(sorted)-1])
}

func addTo(all, some map[string]int) {
	for name, n := range some {
		all[name] += n
	}
}

// counts returns what was counted, in a line.
func counts(all map[string]int) string {
	var each []string
	for _, name := range slices.Sorted(maps.Keys(all)) {
		each = append(each, fmt.Sprintf("%s: %d", name, all[name]))
	}
	if len(each) == 0 {
		return "none"
	}
	return strings.Join(each, ", ")
}
