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
	lasts map[Finding]lasts
}

// lasts is since when a finding lasts, and whether Next has returned it.
type lasts struct {
	since    time.Time
	reported bool
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
	all := map[Finding]lasts{}
	var lasting []Finding
	for _, f := range findings {
		is, known := l.lasts[f]
		if !known {
			is.since = now
		}
		patience := l.Other
		if f.Rule == Idle {
			patience = l.Idle
		}
		if now.Sub(is.since) >= patience && !is.reported {
			is.reported = true
			lasting = append(lasting, f)
		}
		all[f] = is
	}
	l.lasts = all
	return lasting
}

// restart makes findings that Next has returned last again, from now on, before it returns them again.
func (l *Lasting) restart(findings []Finding, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, f := range findings {
		l.lasts[f] = lasts{since: now}
	}
}

// Pending returns the findings that have not lasted yet, each with the time since when it lasts.
func (l *Lasting) Pending() map[Finding]time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	pending := map[Finding]time.Time{}
	for f, is := range l.lasts {
		if !is.reported {
			pending[f] = is.since
		}
	}
	return pending
}

// Once returns a done for Watcher.Run that ends it after at most twice the longer time of Lasting, whatever the cluster
// does. It waits until each finding of the first audit has lasted, is gone or starts again, and then once more for
// those that are pending at that moment. Later ones don't prolong it: in a cluster whose pods come and go, one is
// always pending.
func Once() func(audits int, pending map[Finding]time.Time) bool {
	var awaited map[Finding]time.Time
	last := false
	return func(audits int, pending map[Finding]time.Time) bool {
		if audits == 1 {
			awaited = pending
			return false
		}
		for f, since := range awaited {
			if now, still := pending[f]; still && now.Equal(since) {
				return false
			}
		}
		if last || len(pending) == 0 {
			return true
		}
		awaited, last = pending, true
		return false
	}
}
