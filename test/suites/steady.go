package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"runtime"
	"slices"

	"github.com/signalbox-dev/signalbox/test/junit"
)

// steady runs a suite several times while all processors are busy. The command writes its report to junit.
type steady struct {
	command []string
	junit   string
	rounds  int
}

// run prints each round and the specs that failed, and returns an error if one failed.
func (s steady) run(ctx context.Context, out io.Writer) error {
	if s.junit == "" || s.rounds < 1 {
		return errors.New("name the report by -junit, and a number of -rounds")
	}
	ends := busy(ctx)
	defer ends()
	failed, last, unread := map[string]int{}, map[string]string{}, 0
	for round := 1; round <= s.rounds && ctx.Err() == nil; round++ {
		if err := os.Remove(s.junit); err != nil && !os.IsNotExist(err) {
			return err
		}
		ran := execute(ctx, s.command)
		cases, err := junit.Read(s.junit)
		if err != nil {
			unread++
			fmt.Fprintf(out, "steady: round %d of %d has no report: %v\n", round, s.rounds, errors.Join(ran, err))
			continue
		}
		passed, _ := junit.Count(cases)
		all := failures(cases)
		if ran != nil && len(all) == 0 {
			all = []failure{{"what runs the specs", ran.Error()}}
		}
		fmt.Fprintf(out, "steady: round %d of %d: %d passed, %d failed\n", round, s.rounds, passed, len(all))
		for _, f := range all {
			failed[f.Spec]++
			last[f.Spec] = f.Message
		}
	}
	s.print(out, failed, last)
	if len(failed) > 0 || unread > 0 || ctx.Err() != nil {
		return fmt.Errorf("%d specs failed in %d rounds, and %d rounds have no report", len(failed), s.rounds, unread)
	}
	return nil
}

// print prints the specs that failed, the most frequent first, with what they said last.
func (s steady) print(out io.Writer, failed map[string]int, last map[string]string) {
	specs := slices.SortedFunc(maps.Keys(failed), func(a, b string) int {
		return cmp.Or(cmp.Compare(failed[b], failed[a]), cmp.Compare(a, b))
	})
	for _, spec := range specs {
		fmt.Fprintf(out, "steady: failed %d of %d times: %s\n", failed[spec], s.rounds, spec)
		for _, line := range firstLines(last[spec]) {
			fmt.Fprintln(out, "    "+line)
		}
	}
}

// busy keeps each processor busy until the context ends or the returned function is called.
func busy(ctx context.Context) context.CancelFunc {
	ctx, cancel := context.WithCancel(ctx)
	for range runtime.NumCPU() {
		go func() {
			sum := [sha256.Size]byte{}
			for ctx.Err() == nil {
				sum = sha256.Sum256(sum[:])
			}
		}()
	}
	return cancel
}
