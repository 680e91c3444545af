package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/signalbox-dev/signalbox/test/junit"
)

// maxFlaked is how many specs may pass only when they are tried again, in all suites together.
const maxFlaked = 2

// suite is a command to run and record.
type suite struct {
	name    string
	command []string
	// specs is whether the command runs a suite of Ginkgo, which focus and retry are for.
	specs bool
	focus string
	retry bool
}

// run runs the command, and its failed specs once more. It returns an error if the command failed, unless all specs
// that failed passed the second time.
func (s suite) run(ctx context.Context) error {
	if s.name == "" {
		return errors.New("a suite needs a -name")
	}
	r := record{Name: s.name, Specs: s.specs, Began: time.Now()}
	if err := r.write(); err != nil {
		return err
	}
	err := s.try(ctx, &r)
	r.OK, r.Took = err == nil, time.Since(r.Began)
	return errors.Join(err, r.write())
}

func (s suite) try(ctx context.Context, r *record) error {
	if !s.specs {
		return execute(ctx, s.command)
	}
	first, err := s.round(ctx, "", s.focus)
	failed := 0
	if r.Passed, failed = junit.Count(first); err == nil && r.Passed+failed == 0 {
		return errors.New("no spec ran: the labels and the focus of the suite match none")
	}
	r.Failed = failures(first)
	again := triable(first)
	if err == nil || !s.retry || len(again) == 0 || ctx.Err() != nil {
		return err
	}
	fmt.Printf("\nRunning again what failed or didn't run of %s: %s\n", s.name, strings.Join(titles(again), "; "))
	focus := make([]string, 0, len(again))
	for _, c := range again {
		focus = append(focus, c.Focus())
	}
	second, err := s.round(ctx, "-again", strings.Join(focus, "|"))
	r.merge(again, second)
	if err == nil && len(r.Failed) > 0 {
		err = errors.New("specs didn't run the second time: " + r.Failed[0].Spec)
	}
	return err
}

// round runs the command once, and returns the cases of its report: none if it wrote no report.
func (s suite) round(ctx context.Context, suffix, focus string) ([]junit.Case, error) {
	// The suite runs in a directory of its own.
	path, err := filepath.Abs("junit-" + s.name + suffix + ".xml")
	if err != nil {
		return nil, err
	}
	if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
		return nil, err
	}
	command := append(slices.Clone(s.command), "-ginkgo.junit-report="+path)
	if focus != "" {
		command = append(command, "-ginkgo.focus="+focus)
	}
	ran := execute(ctx, command)
	cases, err := junit.Read(path)
	if err != nil {
		return nil, errors.Join(ran, err)
	}
	return cases, ran
}

// triable returns the specs to run again: those that failed, and those that they kept from running. It returns none if
// more failed than may flake, or if something else than specs failed: then the run has failed anyway.
func triable(cases []junit.Case) (again []junit.Case) {
	failed := 0
	for _, c := range cases {
		switch {
		case c.Failed() && (!c.IsSpec() || c.Status != "failed" && c.Status != "panicked"):
			return nil // a suite that was interrupted, or took too long, has other specs that didn't run
		case c.Failed():
			failed++
			again = append(again, c)
		case c.KeptOut():
			again = append(again, c)
		}
	}
	if failed == 0 || failed > maxFlaked {
		return nil
	}
	return again
}

// merge adds the result of the specs that were run again to that of the first run.
func (r *record) merge(again, second []junit.Case) {
	r.Failed = failures(slices.DeleteFunc(slices.Clone(second), func(c junit.Case) bool { return c.IsSpec() }))
	for _, c := range again {
		at := slices.IndexFunc(second, func(other junit.Case) bool { return other.Name == c.Name })
		switch {
		case at < 0 || !second[at].Passed():
			if at >= 0 && second[at].Failed() {
				c = second[at]
			}
			r.Failed = append(r.Failed, failureOf(c))
		case c.Failed():
			r.Passed++
			r.Flaked = append(r.Flaked, failureOf(c))
		default:
			r.Passed++
		}
	}
}

func failures(cases []junit.Case) (all []failure) {
	for _, c := range cases {
		if c.Failed() {
			all = append(all, failureOf(c))
		}
	}
	return all
}

func titles(cases []junit.Case) (all []string) {
	for _, c := range cases {
		all = append(all, c.Title())
	}
	return all
}
