package main

// severity says how bad a finding is.
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
