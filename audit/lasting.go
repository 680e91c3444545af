package audit

import (
	"sync"
	"time"
)

// Lasting holds findings back until they have lasted: objects of several kinds are never read at the same moment.
type Lasting struct {
	// Idle and Other are how long a finding must have lasted: one of rule Idle, and one of any other rule. Default 0.
	Idle, Other time.Duration

	mu    sync.Mutex
	since map[Finding]time.Time
	// reported are the findings that Next has returned and that still last.
	reported map[Finding]bool
}

// SetPatience sets how long findings must have lasted. A Watcher may be running.
func (l *Lasting) SetPatience(other, idle time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.Other, l.Idle = other, idle
}

// Next takes the findings at a time, and returns those that have lasted and were not returned before. A finding that is
// missing once starts again.
func (l *Lasting) Next(findings []Finding, now time.Time) []Finding {
	l.mu.Lock()
	defer l.mu.Unlock()
	since, reported := map[Finding]time.Time{}, map[Finding]bool{}
	var lasting []Finding
	for _, f := range findings {
		first, known := l.since[f]
		if !known {
			first = now
		}
		since[f], reported[f] = first, l.reported[f]
		patience := l.Other
		if f.Rule == Idle {
			patience = l.Idle
		}
		if now.Sub(first) >= patience && !reported[f] {
			reported[f] = true
			lasting = append(lasting, f)
		}
	}
	l.since, l.reported = since, reported
	return lasting
}

// restart makes findings that Next has returned last again before it returns them again.
func (l *Lasting) restart(findings []Finding) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, f := range findings {
		delete(l.since, f)
		delete(l.reported, f)
	}
}

// Pending returns the number of findings that have not lasted yet.
func (l *Lasting) Pending() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for f := range l.since {
		if !l.reported[f] {
			n++
		}
	}
	return n
}
