package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/signalbox-dev/signalbox/integration/installed"
)

// TestPage holds that the page shows the results that were recorded, and that none of them failed.
func TestPage(t *testing.T) {
	t.Chdir("../..")
	results, err := readResults()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	want, err := replaceTable(string(text), table(results))
	if err != nil {
		t.Fatal(err)
	}
	if want != string(text) {
		t.Errorf("%s is stale: run go run ./test/compatibility", page)
	}
	for releases, r := range results {
		if r.Failed > 0 || r.Passed == 0 {
			t.Errorf("%s: %d specs passed, %d failed; a release that fails isn't supported", releases, r.Passed, r.Failed)
		}
	}
}

func TestTable(t *testing.T) {
	got := table(map[string]result{
		"KUEUE=0.18,KUBERNETES=1.37": {Passed: 3, Date: "2026-01-02", Commit: "abc"},
		"KUBERNETES=1.34":            {Passed: 2}, "PROFILE=bundled": {Passed: 1}, "PROFILE=kubeflow-2.1": {Failed: 4},
	})
	lines := strings.Split(strings.TrimSpace(got), "\n")[2:]
	for n, want := range []string{
		"| 1.36 | 0.19 | 0.12 | bundled | 1 |", "| 1.34 | 0.19 | 0.12 | bundled | 2 |",
		"| 1.36 | 0.19 | 0.12 | Kubeflow v2.1.0 | 0 | 4 |",
		"| 1.37 | 0.18 | 0.12 | bundled | 3 | 0 | 2026-01-02 | abc | `make test-versions " +
			"VERSIONS=KUEUE=0.18,KUBERNETES=1.37` |",
	} {
		if !strings.HasPrefix(lines[n], want) {
			t.Errorf("line %d is %q, want %q", n, lines[n], want)
		}
	}
}

func TestReadReport(t *testing.T) {
	path := filepath.Join(t.TempDir(), "junit.xml")
	for content, want := range map[string]result{
		`<testsuites><testsuite><testcase name="[It] a" status="passed"/><testcase name="[It] b" status="failed"/>` +
			`<testcase name="[It] c" status="skipped"/><testcase name="[BeforeSuite]" status="passed"/>` +
			`<testcase name="[It] d" status="passed"/><testcase name="[ReportAfterSuite] e" status="failed"/>` +
			`</testsuite></testsuites>`: {Passed: 2, Failed: 2},
		"no XML": {},
	} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := readReport(path)
		if (want == result{}) != (err != nil) || got.Passed != want.Passed || got.Failed != want.Failed {
			t.Errorf("%s: got %+v, %v", content, got, err)
		}
	}
	if _, err := readReport(path + ".none"); err == nil {
		t.Error("a report that isn't there has no result")
	}
}

// TestChart holds that the chart rejects what the manager rejects.
func TestChart(t *testing.T) {
	t.Chdir("../../charts/signalbox")
	for file, wants := range map[string][]string{
		"Chart.yaml": {fmt.Sprintf("kubeVersion: \">=%s.0-0\"", installed.Kubernetes.Oldest)},
		"templates/checks.yaml": {
			fmt.Sprintf("Install Kueue v%s or later", installed.Kueue.Oldest),
			fmt.Sprintf("Install JobSet v%s or later", installed.JobSet.Oldest)},
	} {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range wants {
			if !strings.Contains(string(content), want) {
				t.Errorf("%s has no %q, which integration/releases.go says", file, want)
			}
		}
	}
}
