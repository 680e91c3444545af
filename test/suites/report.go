package main

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
)

// report prints the table of all steps and suites, the specs that flaked and those that failed, and the sums as the
// last line. It returns an error if something failed, or if too many specs flaked. failed is set if the run has: it may
// have failed outside of all steps. The last line counts whatever has failed, with or without a spec.
func report(out io.Writer, records []record, failed bool, now time.Time) error {
	fmt.Fprintf(out, "\n%-40s %8s %8s %8s %8s\n", "step or suite", "seconds", "passed", "flaked", "failed")
	passed, failures, flaked, bad := 0, 0, 0, []string{}
	for _, r := range records {
		fmt.Fprintln(out, strings.TrimRight(r.row(), " "))
		passed, failures, flaked = passed+r.Passed, failures+len(r.Failed), flaked+len(r.Flaked)
		if !r.OK {
			bad = append(bad, r.Name)
			failures += max(1-len(r.Failed), 0)
		}
	}
	if flaked > maxFlaked {
		passed, failures = passed-flaked, failures+flaked
	} else if failed && len(bad) == 0 {
		bad, failures = []string{"something outside of these steps"}, 1
	}
	if len(records) > 0 {
		fmt.Fprintf(out, "%-40s %8.0f\n", "all, some of them side by side", now.Sub(records[0].Began).Seconds())
	}
	for _, r := range records {
		r.list(out, "failed once, and passed when it was run again", r.Flaked)
		r.list(out, "failed", r.Failed)
	}
	fmt.Fprintf(out, "%d passed, %d failed\n", passed, failures)
	var err error
	if len(bad) > 0 {
		err = errors.New("failed: " + strings.Join(bad, ", "))
	}
	if flaked > maxFlaked {
		err = errors.Join(err, fmt.Errorf("%d specs passed only when they were run again; %d may", flaked, maxFlaked))
	}
	return err
}

func (r record) row() string {
	took := "no end"
	if r.Took > 0 {
		took = fmt.Sprintf("%.0f", r.Took.Seconds())
	}
	counts := ""
	if r.Specs {
		counts = fmt.Sprintf("%8d %8d %8d", r.Passed, len(r.Flaked), len(r.Failed))
	}
	if !r.OK {
		counts += "  failed"
	}
	return fmt.Sprintf("%-40s %8s %s", r.Name, took, counts)
}

// list prints failures, each with the first lines of why.
func (r record) list(out io.Writer, what string, all []failure) {
	for _, f := range all {
		fmt.Fprintf(out, "%s: %s: %s\n", r.Name, what, f.Spec)
		for _, line := range firstLines(f.Message) {
			fmt.Fprintln(out, "    "+line)
		}
	}
}

// firstLines returns at most five lines of a message, of at most 200 characters each.
func firstLines(message string) []string {
	var lines []string
	for line := range strings.Lines(message) {
		if line = strings.TrimRight(line, " \n"); line == "" {
			continue
		}
		if len(lines) == 5 {
			return append(lines, "…")
		}
		if runes := []rune(line); len(runes) > 200 {
			line = string(runes[:200]) + "…"
		}
		lines = append(lines, line)
	}
	return lines
}
