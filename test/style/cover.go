package main

import (
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// pure are the packages that decide without a client; 95 % of their statements are to be covered, and 90 % of the
// others'.
var pure = []string{"overrides", "podsets", "admission", "events", "review", "audit"}

const (
	coveredPure   = 95.0
	coveredOthers = 90.0
)

var covered = regexp.MustCompile(`coverage: ([0-9.]+)% of statements`)

// printCoverage runs the unit tests of each package with Go files and prints how much they cover of its own statements.
// It reports whether one is under its bound.
func printCoverage(out io.Writer, root string, files []string) (under bool, err error) {
	var packages []string
	for _, file := range files {
		if dir := filepath.ToSlash(filepath.Dir(file)); !slices.Contains(packages, dir) {
			packages = append(packages, dir)
		}
	}
	for _, name := range packages {
		test := exec.Command("go", "test", "-cover", "./"+name)
		test.Dir = root
		output, err := test.CombinedOutput()
		if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
			return under, err
		} else if err != nil {
			return under, fmt.Errorf("the tests of %s fail: %s", name, output)
		}
		bound := coveredOthers
		if slices.Contains(pure, name) {
			bound = coveredPure
		}
		share, found := 0.0, covered.FindSubmatch(output)
		if found == nil && strings.Contains(string(output), "[no statements]") {
			continue
		}
		if found != nil {
			if share, err = strconv.ParseFloat(string(found[1]), 64); err != nil {
				return under, err
			}
		}
		mark := "ok"
		if share < bound {
			mark, under = "UNDER", true
		}
		fmt.Fprintf(out, "%-8s statements of %s covered by its unit tests: %.1f %% of at least %.0f\n",
			mark, name, share, bound)
	}
	return under, nil
}
