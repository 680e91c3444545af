// Package junit reads Ginkgo's JUnit reports.
package junit

import (
	"encoding/xml"
	"fmt"
	"os"
	"regexp"
	"strings"
)

// Case is a spec of a report, or a node that runs before or after specs.
type Case struct {
	// Name has the type of the node before its text, and its labels after it.
	Name string `xml:"name,attr"`
	// Suite is the description that the suite was run with.
	Suite  string `xml:"classname,attr"`
	Status string `xml:"status,attr"`
	// Failure and Error have the message of one that failed, or that panicked.
	Failure message `xml:"failure"`
	Error   message `xml:"error"`
	Skipped message `xml:"skipped"`
}

type message struct {
	Text string `xml:"message,attr"`
}

// Read returns the cases of a report.
func Read(path string) ([]Case, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var report struct {
		Cases []Case `xml:"testsuite>testcase"`
	}
	if err := xml.Unmarshal(content, &report); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return report.Cases, nil
}

// Count returns how many specs have passed, and how many cases have failed: also what runs before and after specs.
func Count(cases []Case) (passed, failed int) {
	for _, c := range cases {
		switch {
		case c.Failed():
			failed++
		case c.Passed():
			passed++
		}
	}
	return passed, failed
}

// IsSpec reports whether the case is a spec.
func (c Case) IsSpec() bool { return strings.HasPrefix(c.Name, specPrefix) }

const specPrefix = "[It] "

// Passed reports whether the case is a spec that has passed.
func (c Case) Passed() bool { return c.IsSpec() && c.Status == "passed" }

// Failed reports whether the case has failed, for whatever reason.
func (c Case) Failed() bool {
	return c.Status != "passed" && c.Status != "skipped" && c.Status != "pending"
}

// KeptOut reports whether a spec didn't run because another one of its ordered container had failed, or what prepares
// the container.
func (c Case) KeptOut() bool {
	return c.IsSpec() && c.Status == "skipped" && keptOut.MatchString(c.Skipped.Text)
}

// Ginkgo v2.32.0, internal/group.go.
var keptOut = regexp.MustCompile(`Spec skipped because (an earlier spec in an ordered container|a \w+ node) failed`)

// Message returns why the case failed.
func (c Case) Message() string {
	if c.Failure.Text != "" {
		return c.Failure.Text
	}
	return c.Error.Text
}

// Title returns the text of a spec, with its labels.
func (c Case) Title() string { return strings.TrimPrefix(c.Name, specPrefix) }

var labels = regexp.MustCompile(` \[[^\[\]]*\]$`)

// Focus returns the regular expression by which Ginkgo runs this spec alone. Ginkgo compares it with the text, without
// the labels; a text may end in brackets itself.
func (c Case) Focus() string {
	title := regexp.QuoteMeta(c.Title())
	if without := labels.ReplaceAllString(c.Title(), ""); without != c.Title() {
		title = "(" + title + "|" + regexp.QuoteMeta(without) + ")"
	}
	return "^" + regexp.QuoteMeta(c.Suite) + " " + title + "$"
}
