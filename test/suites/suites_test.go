package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// reports returns a command that stands for a suite: its n-th run writes the n-th report to where the flag of Ginkgo
// says, or to a fixed file, and notes its arguments. It fails if the report has a failure.
func reports(t *testing.T, fixed string, all ...string) []string {
	t.Helper()
	for n, content := range all {
		if content != "" {
			content = "<testsuites><testsuite>" + content + "</testsuite></testsuites>"
		}
		if err := os.WriteFile(fmt.Sprintf("report-%d", n+1), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return []string{"sh", "-c", `
		n=$(($(cat runs 2>/dev/null || echo 0) + 1)); echo $n >runs
		echo "$@" >>args
		to=` + fixed + `
		for a; do case $a in -ginkgo.junit-report=*) to=${a#*=};; esac; done
		if [ -s report-$n ]; then cp report-$n "$to"; fi
		! grep -q -E 'failed|panicked|timedout' report-$n`, "suite"}
}

func spec(name, status, message string) string {
	return fmt.Sprintf(`<testcase name="[It] %s" classname="Suite" status="%s"><failure message="%s"/></testcase>`,
		name, status, message)
}

func keptOut(name string) string {
	return `<testcase name="[It] ` + name + `" classname="Suite" status="skipped"><skipped message="skipped - Spec ` +
		`skipped because an earlier spec in an ordered container failed"/></testcase>`
}

func names(all []failure) string {
	var specs []string
	for _, f := range all {
		specs = append(specs, f.Spec+"="+f.Message)
	}
	return strings.Join(specs, " ")
}

func TestRun(t *testing.T) {
	after := `<testcase name="[AfterSuite]" classname="Suite" status="failed"/>`
	a, b, c := spec("a", "passed", ""), spec("b", "failed", "slow"), spec("c (1)", "failed", "late")
	for _, test := range []struct {
		why, focus string
		retry      bool
		reports    []string
		// args are of each run, and failed is of the whole.
		args           string
		passed         int
		flaked, failed string
		err            bool
	}{
		{why: "what passes isn't run again", retry: true, reports: []string{a}, args: "[]", passed: 1},
		{why: "without -retry nothing is run again", reports: []string{a + b}, args: "[]", passed: 1, failed: "b=slow",
			err: true},
		{why: "a spec that passes alone has flaked", retry: true, focus: "x",
			reports: []string{a + b, spec("b", "passed", "")}, args: "[-ginkgo.focus=x][-ginkgo.focus=^Suite b$]", passed: 2,
			flaked: "b=slow"},
		{why: "two that pass", retry: true,
			reports: []string{a + b + c, spec("b", "passed", "") + spec("c (1)", "passed", "")},
			args:    `[][-ginkgo.focus=^Suite b$|^Suite c \(1\)$]`, passed: 3, flaked: "b=slow c (1)=late"},
		{why: "one fails twice: its last message", retry: true,
			reports: []string{a + b + c, spec("b", "passed", "") + spec("c (1)", "panicked", "nil")},
			args:    `[][-ginkgo.focus=^Suite b$|^Suite c \(1\)$]`, passed: 2, flaked: "b=slow", failed: "c (1)=nil",
			err: true},
		{why: "more than may flake have failed", retry: true, reports: []string{b + c + spec("d", "panicked", "nil")},
			args: "[]", failed: "b=slow c (1)=late d=nil", err: true},
		{why: "others that the failed one kept out run too", retry: true,
			reports: []string{b + keptOut("e"), spec("b", "passed", "") + spec("e", "passed", "")},
			args:    `[][-ginkgo.focus=^Suite b$|^Suite e$]`, passed: 2, flaked: "b=slow"},
		{why: "a spec that doesn't run the second time has failed", retry: true,
			reports: []string{a + b, spec("b", "skipped", "")}, args: "[][-ginkgo.focus=^Suite b$]", passed: 1, failed: "b=slow",
			err: true},
		{why: "what runs after the specs failed the second time", retry: true,
			reports: []string{a + b, spec("b", "passed", "") + after}, args: "[][-ginkgo.focus=^Suite b$]", passed: 2,
			flaked: "b=slow", failed: "[AfterSuite]=", err: true},
		{why: "what runs after the specs failed", retry: true, reports: []string{a + b + after}, args: "[]", passed: 1,
			failed: "b=slow [AfterSuite]=", err: true},
		{why: "the suite took too long", retry: true, reports: []string{b + spec("c", "timedout", "late")}, args: "[]",
			failed: "b=slow c=late", err: true},
		{why: "no report, such as of a control plane that doesn't start", retry: true, reports: []string{""}, args: "[]",
			err: true},
		{why: "no spec ran", reports: []string{spec("a", "skipped", "")}, args: "[]", err: true},
		{why: "no report the second time", retry: true, reports: []string{a + b, ""},
			args: "[][-ginkgo.focus=^Suite b$]", passed: 1, failed: "b=slow", err: true},
	} {
		t.Run(test.why, func(t *testing.T) {
			t.Chdir(t.TempDir())
			args := []string{"run", "-name", "s", "-specs"}
			if test.retry {
				args = append(args, "-retry")
			}
			if test.focus != "" {
				args = append(args, "-focus", test.focus)
			}
			err := do(t.Context(), append(append(args, "--"), reports(t, "none", test.reports...)...))
			if (err != nil) != test.err {
				t.Errorf("error %v", err)
			}
			records, readErr := readRecords()
			if readErr != nil || len(records) != 1 {
				t.Fatal(records, readErr)
			}
			r := records[0]
			if r.OK == test.err || r.Passed != test.passed || names(r.Flaked) != test.flaked ||
				names(r.Failed) != test.failed {
				t.Errorf("recorded: %+v", r)
			}
			got, _ := os.ReadFile("args")
			if args := argsOf(string(got)); args != test.args {
				t.Errorf("arguments %s, want %s", args, test.args)
			}
		})
	}
}

// argsOf leaves out where the reports are written to.
func argsOf(noted string) string {
	var b strings.Builder
	for line := range strings.Lines(noted) {
		_, rest, _ := strings.Cut(strings.TrimSpace(line), ".xml")
		b.WriteString("[" + strings.TrimSpace(rest) + "]")
	}
	return b.String()
}

func TestRunOfStep(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := do(t.Context(), []string{"run", "-name", "make verify", "--", "true"}); err != nil {
		t.Error(err)
	}
	if err := do(t.Context(), []string{"run", "-name", "make docs", "--", "false"}); err == nil {
		t.Error("a failed step is an error")
	}
	if _, err := os.Stat(filepath.Join(folder, "make-verify.json")); err != nil {
		t.Error(err)
	}
	var out bytes.Buffer
	records, err := readRecords()
	if err != nil {
		t.Fatal(err)
	}
	if err := report(&out, records, false, time.Now()); err == nil || err.Error() != "failed: make docs" {
		t.Error(err)
	}
	for _, args := range [][]string{
		nil, {"walk"}, {"run", "--", "true"}, {"run", "-name", "x"}, {"steady", "--", "true"},
		{"beside", "--", "true"},
	} {
		if do(t.Context(), args) == nil {
			t.Errorf("%v is refused", args)
		}
	}
}

func TestReport(t *testing.T) {
	began := time.Date(2026, 11, 27, 12, 0, 0, 0, time.UTC)
	step := record{Name: "make verify", Began: began, Took: 90 * time.Second, OK: true}
	suite := record{Name: "bundled", Began: began.Add(90 * time.Second), Took: 1800 * time.Second, OK: true, Specs: true,
		Passed: 196, Flaked: []failure{{"Gangs wait", "Timed out\n\nafter 60 s"}}}
	var out bytes.Buffer
	if err := report(&out, []record{step, suite}, false, began.Add(2000*time.Second)); err != nil {
		t.Error(err)
	}
	want := []string{"", "step or suite                             seconds   passed   flaked   failed",
		"make verify                                    90",
		"bundled                                      1800      196        1        0",
		"all, some of them side by side               2000",
		"bundled: failed once, and passed when it was run again: Gangs wait", "    Timed out", "    after 60 s",
		"196 passed, 0 failed", ""}
	if got := strings.Split(out.String(), "\n"); strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s", out.String())
	}

	more := suite
	more.Name, more.Flaked = "kubeflow", []failure{{"b", ""}, {"c", ""}}
	if err := report(&out, []record{suite, more}, false, began); err == nil ||
		!strings.Contains(err.Error(), "3 specs passed only") {
		t.Errorf("three have flaked in all suites together: %v", err)
	}
	killed := record{Name: "node", Began: began, Specs: true}
	out.Reset()
	if err := report(&out, []record{killed}, false, began); err == nil || !strings.Contains(out.String(), "no end") {
		t.Errorf("a suite without an end has failed: %v\n%s", err, out.String())
	}
}

// TestLastLine holds that the last line, which CI is judged by, never says that nothing has failed of a run that has.
func TestLastLine(t *testing.T) {
	passed := record{Name: "bundled", OK: true, Specs: true, Passed: 196}
	flaked := passed
	flaked.Flaked = []failure{{"a", ""}, {"b", ""}, {"c", ""}}
	for _, test := range []struct {
		why     string
		records []record
		outside bool
		want    string
	}{
		{"nothing has failed", []record{passed}, false, "196 passed, 0 failed"},
		{"a failed spec counts once", []record{{Name: "a", Specs: true, Passed: 3, Failed: []failure{{"b", "slow"}}}}, false,
			"3 passed, 1 failed"},
		{"a step has failed", []record{passed, {Name: "verify"}}, false, "196 passed, 1 failed"},
		{"a suite has no report, or its control plane has failed", []record{passed, {Name: "node", Specs: true, Passed: 3}},
			false, "199 passed, 1 failed"},
		{"more have flaked than may", []record{flaked}, false, "193 passed, 3 failed"},
		{"a suite doesn't compile", []record{passed}, true, "196 passed, 1 failed"},
		{"nothing was recorded", nil, true, "0 passed, 1 failed"},
		{"what has failed is known", []record{passed, {Name: "verify"}}, true, "196 passed, 1 failed"},
	} {
		var out bytes.Buffer
		err := report(&out, test.records, test.outside, time.Now())
		lines := strings.Split(strings.TrimSpace(out.String()), "\n")
		if got := lines[len(lines)-1]; got != test.want || (err == nil) != strings.HasSuffix(got, " 0 failed") {
			t.Errorf("%s: got %q, error %v, want %q", test.why, got, err, test.want)
		}
	}
}

func TestSteady(t *testing.T) {
	t.Chdir(t.TempDir())
	a, b := spec("a", "passed", ""), spec("b", "failed", "slow")
	var out bytes.Buffer
	s := steady{junit: "r.xml", rounds: 4, atOnce: 1}
	s.command = reports(t, "r.xml", a+b, a+spec("b", "passed", ""), "", a+b)
	if err := s.run(t.Context(), &out); err == nil {
		t.Error("a spec that failed is an error")
	}
	for _, want := range []string{"round 1 of 4: 1 passed, 1 failed", "round 2 of 4: 2 passed, 0 failed",
		"round 3 of 4 has no report", "failed 2 of 4 times: b\n    slow\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
	if strings.Contains(out.String(), "times: a") {
		t.Error("a never failed")
	}

	out.Reset()
	s.rounds, s.command = 1, reports(t, "r.xml", a+"<!-- then its control plane failed -->")
	if err := os.Remove("runs"); err != nil {
		t.Fatal(err)
	}
	err := s.run(t.Context(), &out)
	if err == nil || !strings.Contains(out.String(), "1 of 1 times: what runs the specs") {
		t.Errorf("a round that failed outside of its specs has failed: %v\n%s", err, out.String())
	}
}

// TestSteadyAtOnce holds that each round has its own command and report: each waits for the other to begin.
func TestSteadyAtOnce(t *testing.T) {
	t.Chdir(t.TempDir())
	report := `<testsuites><testsuite>` + spec("a", "passed", "") + `</testsuite></testsuites>`
	s := steady{junit: "r-{round}.xml", rounds: 2, atOnce: 2, command: []string{"sh", "-c", "touch began-{round}; " +
		"until [ -e began-1 ] && [ -e began-2 ]; do :; done; printf %s '" + report + "' > r-{round}.xml"}}
	var out bytes.Buffer
	if err := s.run(t.Context(), &out); err != nil {
		t.Errorf("two rounds at once: %v", err)
	}
	for _, want := range []string{"round 1 of 2: 1 passed, 0 failed", "round 2 of 2: 1 passed, 0 failed"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
}

// TestBeside holds what a suite's success depends on, and that what prints to a file is shown.
func TestBeside(t *testing.T) {
	for _, test := range []struct {
		why            string
		suite          string
		others, builds string
		fails          bool
		// shown is of what the other commands printed.
		shown string
	}{
		{why: "all succeed, and only suites are shown", suite: "true", others: "echo other", builds: "echo built",
			shown: "other\n"},
		{why: "nothing is built", suite: "true", others: "echo other", shown: "other\n"},
		{why: "a suite beside fails", suite: "true", others: "false", builds: "echo built", fails: true},
		{why: "a build fails, and is shown", suite: "true", others: "echo other", builds: "ls /missing", fails: true,
			shown: "other\n"},
		{why: "the suite fails, and ends the others", suite: "false", others: "sleep 600", builds: "sleep 600",
			fails: true},
	} {
		t.Chdir(t.TempDir())
		var out bytes.Buffer
		b := beside{command: []string{test.suite}, others: [][]string{strings.Fields(test.others)}}
		if test.builds != "" {
			b.builds = [][]string{strings.Fields(test.builds)}
		}
		err := b.run(t.Context(), &out)
		_, shown, _ := strings.Cut(out.String(), "follows.\n")
		if (err != nil) != test.fails || !strings.HasPrefix(shown, test.shown) {
			t.Errorf("%s: got %v and %q", test.why, err, shown)
		}
		if built := strings.Contains(shown, "/missing"); built != strings.Contains(test.builds, "/missing") {
			t.Errorf("%s: what failed builds print is shown: %t", test.why, built)
		}
	}
}
