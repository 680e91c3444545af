package junit

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

func TestRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "junit.xml")
	for _, c := range []struct {
		why, content   string
		passed, failed int
		invalid        bool
	}{
		{"specs that were skipped, and nodes around specs that passed, don't count",
			`<testsuites><testsuite><testcase name="[It] a" status="passed"/><testcase name="[It] b" status="failed"/>` +
				`<testcase name="[It] c" status="skipped"/><testcase name="[BeforeSuite]" status="passed"/>` +
				`<testcase name="[It] d" status="passed"/><testcase name="[It] e" status="pending"/>` +
				`</testsuite></testsuites>`, 2, 1, false},
		{"a node around specs that failed counts",
			`<testsuites><testsuite><testcase name="[ReportAfterSuite] e" status="failed"/></testsuite></testsuites>`,
			0, 1, false},
		{"each way to fail counts", `<testsuites><testsuite><testcase name="[It] a" status="panicked"/>` +
			`<testcase name="[It] b" status="timedout"/><testcase name="[It] c" status="interrupted"/>` +
			`<testcase name="[It] d" status="aborted"/></testsuite></testsuites>`, 0, 4, false},
		{"no XML", "no XML", 0, 0, true},
	} {
		if err := os.WriteFile(path, []byte(c.content), 0o600); err != nil {
			t.Fatal(err)
		}
		cases, err := Read(path)
		if passed, failed := Count(cases); (err != nil) != c.invalid || passed != c.passed || failed != c.failed {
			t.Errorf("%s: %d passed, %d failed, %v", c.why, passed, failed, err)
		}
	}
	if _, err := Read(path + ".none"); err == nil {
		t.Error("a report that isn't there has no cases")
	}
}

func TestMessage(t *testing.T) {
	path := filepath.Join(t.TempDir(), "junit.xml")
	if err := os.WriteFile(path, []byte(`<testsuites><testsuite>
		<testcase name="[It] a" status="failed"><failure message="Timed out after 60.001s."/></testcase>
		<testcase name="[It] b" status="panicked"><error message="nil map"/></testcase>
		<testcase name="[It] c" status="skipped"><skipped message="skipped - Spec skipped because an earlier spec in an `+
		`ordered container failed"/></testcase>
		<testcase name="[It] d" status="skipped"><skipped message="skipped"/></testcase>
		<testcase name="[It] e" status="skipped"><skipped message="skipped - Spec skipped because a BeforeAll node failed"/>
		</testcase>
		</testsuite></testsuites>`), 0o600); err != nil {
		t.Fatal(err)
	}
	cases, err := Read(path)
	if err != nil || len(cases) != 5 {
		t.Fatal(cases, err)
	}
	if cases[0].Message() != "Timed out after 60.001s." || cases[1].Message() != "nil map" {
		t.Errorf("messages are %q and %q", cases[0].Message(), cases[1].Message())
	}
	if !cases[2].KeptOut() || cases[3].KeptOut() || !cases[4].KeptOut() {
		t.Error("the third case and the fifth were kept out by others")
	}
}

// TestFocus holds that a spec is found by what Ginkgo compares: the suite's description and the texts of its nodes.
func TestFocus(t *testing.T) {
	const suite = "Signalbox on a real control plane"
	for _, c := range []struct {
		why, name, text string
		found           bool
	}{
		{"the spec itself", "[It] Gangs place all pods (9)", "Gangs place all pods (9)", true},
		{"labels are no text", "[It] explain quota [plugin, kueue]", "explain quota", true},
		{"a text may end in brackets", "[It] has nodes [1]", "has nodes [1]", true},
		{"a longer text is another spec", "[It] Gangs place", "Gangs place all", false},
		{"a text within another one is another spec", "[It] place all", "Gangs place all", false},
		{"a dot is a dot", "[It] a.b", "a-b", false},
	} {
		focus := regexp.MustCompile(Case{Name: c.name, Suite: suite}.Focus())
		if got := focus.MatchString(suite + " " + c.text); got != c.found {
			t.Errorf("%s: %s finds %q: %v", c.why, focus, c.text, got)
		}
	}
}
