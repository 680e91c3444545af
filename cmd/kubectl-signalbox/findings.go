package main

import (
	"fmt"
	"strings"
)

type severity string

// finding is something that doctor has found.
type finding struct {
	Severity severity `json:"severity"`
	// About is what was looked at, such as "flavor a100".
	About string `json:"about"`
	Text  string `json:"text"`
	// Do is the command, or what else to do.
	Do string `json:"do,omitempty"`
}

const (
	bad  severity = "error"
	poor severity = "warning"
)

// report is all that doctor says.
type report struct {
	Findings []finding `json:"findings"`
	// Checked are the checks that were made.
	Checked []string `json:"checked"`
	// Missing are the rights that the user lacks, so that something was not checked.
	Missing []string `json:"missingRights,omitempty"`
}

func (r *report) add(severity severity, about, text, do string) {
	r.Findings = append(r.Findings, finding{severity, about, text, do})
}

func (r *report) write(s *session) {
	for _, f := range r.Findings {
		fmt.Fprintf(s.streams.Out, "%s: %s: %s\n", strings.ToUpper(string(f.Severity)), f.About, f.Text)
		if f.Do != "" {
			fmt.Fprintf(s.streams.Out, "    %s\n", f.Do)
		}
	}
	if len(r.Findings) == 0 {
		fmt.Fprintln(s.streams.Out, "Nothing was found.")
	}
	fmt.Fprintf(s.streams.Out, "Checked: %s.\n", strings.Join(r.Checked, ", "))
	if len(r.Missing) > 0 {
		fmt.Fprintf(s.streams.Out, "Not fully checked, for lack of rights: %s.\n", strings.Join(r.Missing, "; "))
	}
}
