package main

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/signalbox-dev/signalbox/test/hostile"
)

// mostTimes is how many times as long the p99 of starts may be as what it is compared with.
const mostTimes = 2

// hostileRow is what the page says of a kind.
type hostileRow struct {
	way  hostileWay
	kind string
	// measured are with the webhooks, and compared without.
	measured, compared []hostileMeasure
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
	return rows
}

// medianOf returns the median of what was measured.
func medianOf(all []hostileMeasure, value func(hostileMeasure) float64) float64 {
	var each []float64
	for _, m := range all {
		each = append(each, value(m))
	}
	if len(each) == 0 {
		return 0 // of a run that was stopped
	}
	slices.Sort(each)
	return (each[(len(each)-1)/2] + each[len(each)/2]) / 2
}

func p50(m hostileMeasure) float64 { return quantile(m.StartMs, 0.5) }

func p99(m hostileMeasure) float64 { return quantile(m.StartMs, 0.99) }

// times returns how many times as long the p99 is as what it is compared with; 0 if it is compared with nothing.
func (row hostileRow) times() float64 {
	if len(row.compared) == 0 || len(row.measured) == 0 {
		return 0
	}
	return medianOf(row.measured, p99) / medianOf(row.compared, p99)
}

// use returns the most that the managers used while a kind was sent, and all restarts.
func (row hostileRow) use() (most managerUse) {
	for _, m := range row.measured {
		most.Peak, most.CPU = max(most.Peak, m.Manager.Peak), max(most.CPU, m.Manager.CPU)
		most.Restarts += m.Manager.Restarts
	}
	return most
}

// verdict returns an error that names each kind that delays others too much, that takes too much memory, or that ends a
// manager.
func (r *hostileRun) verdict() error {
	var all []error
	for _, row := range r.rows() {
		bad := func(format string, args ...any) {
			all = append(all, fmt.Errorf("%s, %s: %s", row.way, row.kind, fmt.Sprintf(format, args...)))
		}
		if times := row.times(); times > mostTimes {
			bad("the p99 of starts is %.1f times as long, more than %d", times, mostTimes)
		}
		use := row.use()
		if use.Peak >= r.Limit {
			bad("a manager uses %d MiB, and its limit is %d", use.Peak>>20, r.Limit>>20)
		}
		if use.Restarts > 0 {
			bad("%d restarts of managers", use.Restarts)
		}
	}
	return errors.Join(all...)
}

// markdown returns the page.
func (r *hostileRun) markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "# Hostile requests\n\n`make bench WHAT=hostile` makes this page (%s; profile `node`). An honest "+
		"user submits %d TrainJobs in %.0f s. Meanwhile %d clients send hostile requests of one kind, evenly or as fast as "+
		"they are answered, for at most a minute: %d of each, and %d of each large TrainJob.\n\n", r.Machine, honestJobs,
		hostileTime.Seconds(), hostileClients, hostileRequests, largeEach)
	fmt.Fprintf(&b, "- **Dry runs** create TrainJobs of %s; one in 100 has %s and 2,000 list elements.\n"+
		"- **Large dry runs** create all of %s.\n"+
		"- **TrainJobs** are created by the hostile user, and changed again and again.\n"+
		"- **Reviews** come from %d pods without credentials, to all paths of all managers, with TrainJobs of the same "+
		"sizes; one in 10 is large, of which a third has %s. `groups`, `nesting` and `no end` have 1 to 3 MB each.\n"+
		"- **Compared** is the p99 with the same requests while Signalbox's webhooks are unregistered. A start is from the "+
		"request that creates the TrainJob to `suspend: false`.\n"+
		"- **Memory** is the peak of one manager's resident memory; its limit is %d MiB. CPU time is of all managers. Of "+
		"several rounds, times are medians.\n"+
		"- Kueue's webhooks for TrainJobs are removed: they decode them before Signalbox's is called.\n\n",
		ofSize(hostile.Small), ofSize(hostile.Read), ofSize(hostile.Full), attackerPods, ofSize(hostile.Full), r.Limit>>20)
	b.WriteString("| requests | kind | start p50, ms | p99, ms | p99 compared, ms | times | memory, MiB | CPU, s | " +
		"restarts | sent in, s | answers |\n| --- | --- |" + strings.Repeat(" --: |", 8) + " --- |\n")
	refused := map[string]int{}
	for _, row := range r.rows() {
		row.write(&b)
		for _, m := range row.measured {
			addTo(refused, m.Refused)
		}
	}
	fmt.Fprintf(&b, "\nCreations of honest TrainJobs that were refused and tried again: %s.\n\n", counts(refused))
	if err := r.verdict(); err != nil {
		fmt.Fprintf(&b, "**Not reached:**\n\n- %s\n", strings.ReplaceAll(err.Error(), "\n", "\n- "))
	} else {
		fmt.Fprintf(&b, "Each p99 is at most %d times as long, no manager was restarted, and none reached its limit.\n",
			mostTimes)
	}
	return b.String()
}

func ofSize(s hostile.Size) string { return fmt.Sprintf("at most %d kB", s.Bytes/1000) }

// write adds the row to a page.
func (row hostileRow) write(b *strings.Builder) {
	use, compared, times := row.use(), "", ""
	if row.times() > 0 {
		compared, times = fmt.Sprintf("%.0f", medianOf(row.compared, p99)), fmt.Sprintf("%.2f", row.times())
	}
	answers := map[string]int{}
	for _, m := range row.measured {
		addTo(answers, m.Answers)
	}
	seconds := medianOf(row.measured, func(m hostileMeasure) float64 { return m.Seconds })
	fmt.Fprintf(b, "| %s | %s | %.0f | %.0f | %s | %s | %d | %.1f | %d | %.0f | %s |\n", row.way, row.kind,
		medianOf(row.measured, p50), medianOf(row.measured, p99), compared, times, use.Peak>>20, use.CPU, use.Restarts,
		seconds, counts(answers))
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
