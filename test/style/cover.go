package main

import (
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
var pure = []string{
	"overrides", "overrides/dialect", "overrides/legacy", "overrides/pipeline", "podsets", "admission",
	"admission/checkpoint", "admission/stalled", "admission/boost", "admission/usage", "store/events",
	"store/steps", "review", "trainer/status", "cmd/signalbox/audit",
}

// modulePath is the product's import path.
const modulePath = "github.com/signalbox-dev/signalbox"

const (
	coveredPure   = 95.0
	coveredOthers = 90.0
)

// covered is what go tool covdata prints of a package. A package without statements has its name on the line of the
// next.
var covered = regexp.MustCompile(`(\S+)\s+coverage: ([0-9.]+)% of statements`)

// printCoverage prints how much of each package with Go files its own unit tests cover, by what they left in data
// (go test -cover, with -test.gocoverdir). It reports whether one is under its bound.
func printCoverage(out io.Writer, data string, files []string) (under bool, err error) {
	output, err := exec.Command("go", "tool", "covdata", "percent", "-i", data).CombinedOutput()
	if err != nil {
		return false, fmt.Errorf("reading the coverage in %s, which make test-unit leaves: %w\n%s", data, err, output)
	}
	shares, err := sharesOf(string(output))
	if err != nil {
		return false, err
	}
	for _, name := range packagesOf(files) {
		share, bound, mark := shares[name], coveredOthers, "ok"
		if slices.Contains(pure, name) {
			bound = coveredPure
		}
		if share < bound {
			mark, under = "UNDER", true
		}
		fmt.Fprintf(out, "%-8s statements of %s covered by its unit tests: %.1f %% of at least %.0f\n",
			mark, name, share, bound)
	}
	return under, nil
}

// sharesOf returns how many percent of each package's statements are covered, by what go tool covdata prints.
func sharesOf(output string) (map[string]float64, error) {
	shares := map[string]float64{}
	for _, found := range covered.FindAllStringSubmatch(output, -1) {
		share, err := strconv.ParseFloat(found[2], 64)
		if err != nil {
			return nil, err
		}
		shares[strings.TrimPrefix(found[1], modulePath+"/")] = share
	}
	return shares, nil
}

// packagesOf returns the folders of files.
func packagesOf(files []string) []string {
	var packages []string
	for _, file := range files {
		if dir := filepath.ToSlash(filepath.Dir(file)); !slices.Contains(packages, dir) {
			packages = append(packages, dir)
		}
	}
	return packages
}
