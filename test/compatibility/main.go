// Command compatibility keeps the table of docs/compatibility.md: on which releases the end-to-end suite has run, and
// with which result.
//
//	go run ./test/compatibility [--record JUNIT --releases RELEASES]
//
// Without flags it only writes the table of the recorded results.
package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/signalbox-dev/signalbox/test/junit"
)

const (
	resultsFile = "test/compatibility/results.json"
	page        = "docs/compatibility.md"
	begin       = "<!-- results: make test-versions -->\n"
	end         = "<!-- end of results -->\n"
)

// result is of one run of the end-to-end suite.
type result struct {
	// Passed and Failed are numbers of specs. Specs of other profiles and releases are in neither.
	Passed int `json:"passed"`
	Failed int `json:"failed"`
	// Date of the run, and the commit that it ran on.
	Date   string `json:"date"`
	Commit string `json:"commit"`
}

func main() {
	record := flag.String("record", "", "JUnit report of a run to record")
	releases := flag.String("releases", "", "what the run was on, such as KUBERNETES=1.37,KUEUE=0.18")
	names := flag.String("names", "", "version that is released, such as v0.1.0, to keep its names of")
	flag.Parse()
	does := func() error { return run(*record, *releases) }
	if *names != "" {
		does = func() error { return recordNames(*names) }
	}
	if err := does(); err != nil {
		fmt.Fprintln(os.Stderr, "compatibility:", err)
		os.Exit(1)
	}
}

func run(record, releases string) error {
	results, err := readResults()
	if err != nil {
		return err
	}
	if record != "" {
		if releases == "" {
			return errors.New("--record needs --releases")
		}
		if results[releases], err = readReport(record); err != nil {
			return err
		}
		content, err := json.MarshalIndent(results, "", "  ")
		if err != nil {
			return err
		}
		if err := os.WriteFile(resultsFile, append(content, '\n'), 0o644); err != nil {
			return err
		}
	}
	text, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	written, err := replaceTable(string(text), table(results))
	if err != nil {
		return err
	}
	return os.WriteFile(page, []byte(written), 0o644)
}

func readResults() (map[string]result, error) {
	results := map[string]result{}
	content, err := os.ReadFile(resultsFile)
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(content, &results); err != nil {
		return nil, fmt.Errorf("%s: %w", resultsFile, err)
	}
	return results, nil
}

// readReport returns the result in a JUnit report of Ginkgo, of today and of the commit that is checked out.
func readReport(path string) (result, error) {
	cases, err := junit.Read(path)
	if err != nil {
		return result{}, err
	}
	passed, failed := junit.Count(cases)
	commit, err := exec.Command("git", "rev-parse", "--short", "HEAD").Output()
	if err != nil {
		return result{}, fmt.Errorf("the commit that is checked out: %w", err)
	}
	return result{
		Passed: passed, Failed: failed,
		Date: time.Now().Format(time.DateOnly), Commit: strings.TrimSpace(string(commit)),
	}, nil
}

// defaults are the releases that a run is on if it names no others, and the role of Signalbox.
var defaults = map[string]string{"KUBERNETES": "1.36", "KUEUE": "0.19", "JOBSET": "0.12", "PROFILE": "bundled"}

// trainers are what the profiles mean for users.
var trainers = map[string]string{
	"bundled": "bundled", "kubeflow": "Kubeflow v2.3.0", "kubeflow-2.0": "Kubeflow v2.0.1",
	"kubeflow-2.1": "Kubeflow v2.1.0", "kubeflow-2.2.0": "Kubeflow v2.2.0", "kubeflow-2.2.1": "Kubeflow v2.2.1",
}

// table returns the rows of all results, those on the default releases first.
func table(results map[string]result) string {
	var b strings.Builder
	b.WriteString("| Kubernetes | Kueue | JobSet | Trainer | specs passed | failed | date | commit | command |\n" +
		"| --- | --- | --- | --- | --: | --: | --- | --- | --- |\n")
	keys := slices.SortedFunc(maps.Keys(results), func(a, b string) int {
		return cmp.Or(cmp.Compare(len(settings(a)), len(settings(b))), strings.Compare(a, b))
	})
	for _, key := range keys {
		on, r := maps.Clone(defaults), results[key]
		maps.Copy(on, settings(key))
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %d | %d | %s | %s | `make test-versions VERSIONS=%s` |\n",
			on["KUBERNETES"], on["KUEUE"], on["JOBSET"], trainers[on["PROFILE"]], r.Passed, r.Failed, r.Date, r.Commit, key)
	}
	return b.String()
}

// settings are what a run's releases differ in from the default ones.
func settings(releases string) map[string]string {
	set := map[string]string{}
	for _, s := range strings.Split(releases, ",") {
		name, value, _ := strings.Cut(s, "=")
		if defaults[name] != value {
			set[name] = value
		}
	}
	return set
}

// replaceTable returns the page with another table.
func replaceTable(text, table string) (string, error) {
	before, rest, found := strings.Cut(text, begin)
	_, after, ended := strings.Cut(rest, end)
	if !found || !ended {
		return "", fmt.Errorf("%s has no lines %q and %q around its table", page, begin, end)
	}
	return before + begin + "\n" + table + "\n" + end + after, nil
}
