package audit

import (
	"slices"
	"testing"
	"time"
)

func TestLasting(t *testing.T) {
	l, now := &Lasting{Other: 5 * time.Second, Idle: time.Minute}, time.Unix(1_700_000_000, 0)
	runs, idle := Finding{Rule: Unquoted, Object: "a"}, Finding{Rule: Idle, Object: "b"}
	for _, step := range []struct {
		reason string
		after  time.Duration
		now    []Finding
		want   []Finding
	}{
		{"reads are never of one moment", 0, []Finding{runs, idle}, nil},
		{"a finding that is missing once starts again", 4 * time.Second, []Finding{idle}, nil},
		{"it starts again", 6 * time.Second, []Finding{runs, idle}, nil},
		{"it has lasted", 11 * time.Second, []Finding{runs, idle}, []Finding{runs}},
		{"it is reported once, and quota for nothing later", 61 * time.Second, []Finding{runs, idle}, []Finding{idle}},
	} {
		if got := l.Next(step.now, now.Add(step.after)); !slices.Equal(got, step.want) {
			t.Errorf("%s: got %v, want %v", step.reason, got, step.want)
		}
	}
	if len(l.Pending()) != 0 {
		t.Errorf("all were reported, %v are pending", l.Pending())
	}
}

func TestSetPatience(t *testing.T) {
	l, now := &Lasting{}, time.Unix(1_700_000_000, 0)
	l.SetPatience(time.Second, time.Minute)
	if got := l.Next([]Finding{{Rule: Unquoted}}, now); got != nil || len(l.Pending()) != 1 {
		t.Errorf("a finding must last: got %v, %v pending", got, l.Pending())
	}
}

// TestOnce simulates an audit each second. It must end, whatever is found.
func TestOnce(t *testing.T) {
	const patience = 5
	stays, idle := Finding{Rule: Unquoted, Object: "stays"}, Finding{Rule: Idle, Object: "idle"}
	passing := func(second int) Finding {
		return Finding{Rule: Unquoted, Object: "passing", Says: string(rune(second))}
	}
	cases := map[string]struct {
		reason string
		found  func(second int) []Finding
		// unconfirmed is whether the API server confirms nothing.
		unconfirmed            bool
		ends, reported, pended int
	}{
		"nothing": {reason: "a second audit shows that the first was no accident",
			found: func(int) []Finding { return nil }, ends: 1},
		"what lasts": {reason: "it is reported",
			found: func(int) []Finding { return []Finding{stays} }, ends: patience, reported: 1},
		"quota for nothing": {reason: "it must last longer",
			found: func(int) []Finding { return []Finding{stays, idle} }, ends: 3 * patience, reported: 2},
		"what is gone": {reason: "nothing is left", found: func(second int) []Finding {
			return []Finding{stays}[:max(0, 1-second)]
		}, ends: 1},
		"churn": {reason: "one is always pending",
			found: func(second int) []Finding { return []Finding{passing(second)} }, ends: 2, pended: 1},
		"churn beside what lasts": {reason: "later ones don't prolong it",
			found: func(second int) []Finding { return []Finding{stays, passing(second)} }, ends: patience + 1, reported: 1,
			pended: 1},
		"one that comes later": {reason: "it is awaited too", found: func(second int) []Finding {
			return append([]Finding{passing(second), stays}[:1+min(1, second)], idle)
		}, ends: 3*patience + 1, reported: 2, pended: 1},
		"one that comes and goes": {reason: "each time it is another", found: func(second int) []Finding {
			return []Finding{stays}[:1-second%2]
		}, ends: 1},
		"one each second that lasts": {reason: "those that come in the second patience are not awaited",
			found: func(second int) (all []Finding) {
				for n := range second + 1 {
					all = append(all, passing(n))
				}
				return all
			}, ends: 2 * patience, reported: patience + 1, pended: patience},
		"no confirmation": {reason: "it is pending for two patiences",
			found: func(int) []Finding { return []Finding{stays} }, unconfirmed: true, ends: 2 * patience, pended: 1},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			l, done, start := &Lasting{Other: patience * time.Second, Idle: 3 * patience * time.Second}, Once(), time.Unix(0, 0)
			reported := 0
			for second := 0; ; second++ {
				now := start.Add(time.Duration(second) * time.Second)
				lasting := l.Next(c.found(second), now)
				if c.unconfirmed {
					l.restart(lasting, now)
				} else {
					reported += len(lasting)
				}
				pending := l.Pending()
				if done(second+1, pending) {
					if second != c.ends || reported != c.reported || len(pending) != c.pended {
						t.Errorf("%s: ended after second %d with %d reported and %d pending, want %d, %d, %d", c.reason, second,
							reported, len(pending), c.ends, c.reported, c.pended)
					}
					return
				}
				if second > 10*patience {
					t.Fatalf("%s: it has not ended", c.reason)
				}
			}
		})
	}
}
