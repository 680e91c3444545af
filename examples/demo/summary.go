package main

import (
	"fmt"
	"io"
	"time"

	"github.com/signalbox-dev/signalbox/test/audit"
)

// summarize prints what happened, with the writes counted from the API server's audit log after an offset.
func summarize(out io.Writer, b *board, log string, from int64) error {
	var starts, preempted, finished, failed int
	var waiting []string
	for _, name := range b.order {
		r := b.rows[name]
		starts += r.starts
		preempted += r.preempted
		switch r.state {
		case "Finished":
			finished++
		case "Failed":
			failed++
		default:
			waiting = append(waiting, fmt.Sprintf("  %s: %s", r.name, r.reason))
		}
	}
	writes, err := countWrites(log, from)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "\nAfter %s: %d TrainJobs submitted, %d starts, %d preempted, %d finished, %d failed, %d waiting.\n",
		time.Since(b.start).Round(time.Second), len(b.order), starts, preempted, finished, failed, len(waiting))
	for _, line := range waiting {
		fmt.Fprintln(out, line)
	}
	printWrites(out, b, writes)
	if failed > 0 || finished+len(waiting) != len(b.order) {
		return fmt.Errorf("%d TrainJobs failed", failed)
	}
	return nil
}

// printWrites prints the number of writes per start, apart for TrainJobs that were preempted.
func printWrites(out io.Writer, b *board, writes map[string]int) {
	var starts, startWrites int
	var preempted, restarts, restartWrites int
	for _, name := range b.order {
		switch r := b.rows[name]; {
		case r.starts == 0:
		case r.preempted == 0:
			starts, startWrites = starts+r.starts, startWrites+writes[name]
		default:
			preempted, restarts, restartWrites = preempted+1, restarts+r.starts, restartWrites+writes[name]
		}
	}
	if starts > 0 {
		fmt.Fprintf(out, "Writes to the TrainJob per start, from the audit log: %.2f (%d TrainJobs that ran undisturbed).\n",
			float64(startWrites)/float64(starts), starts)
	}
	if preempted > 0 {
		fmt.Fprintf(out, "The %d preempted took %d writes for %d starts and %d stops, each stop being suspended and then "+
			"cleared.\n", preempted, restartWrites, restarts, restarts-preempted)
	}
}

// countWrites returns the number of writes to each TrainJob after an offset, by its name, without those of the user.
func countWrites(log string, from int64) (map[string]int, error) {
	counts := map[string]int{}
	_, err := audit.Since(log, from, func(r audit.Request) bool {
		if r.ObjectRef.Resource == "trainjobs" && r.ObjectRef.Subresource == "" && r.User.Username != "user" &&
			(r.Verb == "patch" || r.Verb == "update") {
			counts[r.ObjectRef.Name]++
		}
		return false
	})
	return counts, err
}
