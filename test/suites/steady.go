package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/signalbox-dev/signalbox/test/junit"
)

// steady runs a suite several times while all processors are busy. The command writes its report to junit. "{round}" in
// both is the round's number, so that several can run at once.
type steady struct {
	command []string
	junit   string
	rounds  int
	// atOnce is how many rounds run beside each other: what keeps the processors busy instead of a program.
	atOnce int
}

// round is what one round found. It has a report if err is nil.
type round struct {
	ran, err error
	cases    []junit.Case
}

// run prints each round and the specs that failed, and returns an error if one failed.
func (s steady) run(ctx context.Context, out io.Writer) error {
	if s.junit == "" || s.rounds < 1 || s.atOnce < 1 {
		return errors.New("name the report by -junit, a number of -rounds, and how many run -at-once")
	}
	ends := busy(ctx, runtime.NumCPU()+1-s.atOnce)
	defer ends()
	failed, last, unread := map[string]int{}, map[string]string{}, 0
	for number, r := range s.all(ctx) {
		if r.err != nil {
			unread++
			fmt.Fprintf(out, "steady: round %d of %d has no report: %v\n", number, s.rounds, errors.Join(r.ran, r.err))
			continue
		}
		passed, _ := junit.Count(r.cases)
		all := failures(r.cases)
		if r.ran != nil && len(all) == 0 {
			all = []failure{{"what runs the specs", r.ran.Error()}}
		}
		fmt.Fprintf(out, "steady: round %d of %d: %d passed, %d failed\n", number, s.rounds, passed, len(all))
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

// all runs the rounds, and yields each with its number when it has ended.
func (s steady) all(ctx context.Context) iter.Seq2[int, round] {
	type numbered struct {
		number int
		round
	}
	return func(yield func(int, round) bool) {
		ended := make(chan numbered, s.rounds)
		var group errgroup.Group
		group.SetLimit(s.atOnce)
		go func() {
			defer close(ended)
			for number := 1; number <= s.rounds && ctx.Err() == nil; number++ {
				group.Go(func() error { ended <- numbered{number, s.round(ctx, number)}; return nil })
			}
			_ = group.Wait() // no round returns an error
		}()
		for r := range ended {
			if !yield(r.number, r.round) {
				return
			}
		}
	}
}

// round runs the command once, and reads its report.
func (s steady) round(ctx context.Context, number int) (r round) {
	of := func(text string) string { return strings.ReplaceAll(text, "{round}", strconv.Itoa(number)) }
	if r.err = os.Remove(of(s.junit)); r.err != nil && !os.IsNotExist(r.err) {
		return r
	}
	command := slices.Clone(s.command)
	for i := range command {
		command[i] = of(command[i])
	}
	r.ran = execute(ctx, command)
	r.cases, r.err = junit.Read(of(s.junit))
	return r
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

// busy keeps that many processors busy until the context ends or the returned function is called.
func busy(ctx context.Context, processors int) context.CancelFunc {
	ctx, cancel := context.WithCancel(ctx)
	for range processors {
		go func() {
			sum := [sha256.Size]byte{}
			for ctx.Err() == nil {
				sum = sha256.Sum256(sum[:])
			}
		}()
	}
	return cancel
}
