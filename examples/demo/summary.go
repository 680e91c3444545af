package main

import (
	"fmt"
	"io"
	"time"

	"github.com/signalbox-dev/signalbox/test/audit"
)

// summarize says what happened, with the writes counted from the API server's audit log.
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
			waiting = append(waiting, fmt.Sprintf("  %s: %s", r.name, r.why))
		}
	}
	byJob, err := countWrites(log, from)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "\nAfter %s: %d TrainJobs submitted, %d starts, %d preempted, %d finished, %d failed, %d waiting.\n",
		time.Since(b.start).Round(time.Second), len(b.order), starts, preempted, finished, failed, len(waiting))
	for _, line := range waiting {
		fmt.Fprintln(out, line)
	}
	var plain, plainWrites, moved, movedStarts, movedWrites int
	for _, name := range b.order {
		switch r := b.rows[name]; {
		case r.starts == 0:
		case r.preempted == 0:
			plain, plainWrites = plain+r.starts, plainWrites+byJob[name]
		default:
			moved, movedStarts, movedWrites = moved+1, movedStarts+r.starts, movedWrites+byJob[name]
		}
	}
	if plain > 0 {
		fmt.Fprintf(out, "Writes to the TrainJob per start, from the audit log: %.2f (%d TrainJobs that ran undisturbed).\n", float64(plainWrites)/float64(plain), plain)
	}
	if moved > 0 {
		fmt.Fprintf(out, "The %d preempted took %d writes for %d starts and %d stops, each stop being suspended and then cleared.\n", moved, movedWrites, movedStarts, movedStarts-moved)
	}
	if failed > 0 || finished+len(waiting) != len(b.order) {
		return fmt.Errorf("%d TrainJobs failed", failed)
	}
	return nil
}

// countWrites counts the requests that change a TrainJob, by all but the user, by the TrainJob's name.
func countWrites(log string, from int64) (map[string]int, error) {
	counts := map[string]int{}
	_, err := audit.Since(log, from, func(r audit.Request) bool {
		if r.ObjectRef.Resource == "trainjobs" && r.ObjectRef.Subresource == "" && r.User.Username != "user" && (r.Verb == "patch" || r.Verb == "update") {
			counts[r.ObjectRef.Name]++
		}
		return false
	})
	return counts, err
}
