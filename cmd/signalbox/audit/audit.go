// Package audit compares what runs with what was admitted. It doesn't rely on Signalbox's own decisions: it follows the
// owners of each pod by their UIDs, and compares what the pods request, and the nodes that they run on, with what Kueue
// assigned. It reads labels only of pods whose owners are gone. Look is a pure function of objects.
package audit

import (
	"slices"
)

// Look returns the breaches of rules in objects that were read at about the same time, sorted. Objects that were not
// read at the same moment break rules in passing; Lasting ignores such findings.
func Look(o Objects) []Finding {
	s := newSnapshot(o)
	findings := slices.Concat(s.auditPods(), s.auditQuota(), s.auditJobSets(), s.auditJobs())
	slices.SortFunc(findings, Finding.Compare)
	return findings
}
