package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"time"
)

// summarize says what happened, with the writes counted from the API server's audit log.
func summarize(out io.Writer, b *board, audit string, from int64) error {
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
	byJob, err := countWrites(audit, from)
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
func countWrites(path string, from int64) (map[string]int, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if _, err := file.Seek(from, io.SeekStart); err != nil {
		return nil, err
	}
	counts := map[string]int{}
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var e struct {
			Verb      string
			User      struct{ Username string }
			ObjectRef struct{ Resource, Subresource, Name string }
		}
		if json.Unmarshal(lines.Bytes(), &e) != nil { // the last line may be half written
			continue
		}
		if e.ObjectRef.Resource == "trainjobs" && e.ObjectRef.Subresource == "" && e.User.Username != "user" && (e.Verb == "patch" || e.Verb == "update") {
			counts[e.ObjectRef.Name]++
		}
	}
	return counts, lines.Err()
}

func size(path string) (int64, error) {
	info, err := os.Stat(path)
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}
