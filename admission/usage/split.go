package usage

import (
	"math"
	"time"
)

// Parts are what quota was held for, in thousandths of a unit and a second: of GPUs and cores, or of GiB. They never
// overflow: what is more than fits is the most that does.
type Parts struct {
	Useful, Lost, Idle, Unknown int64
}

// Plus returns the sums of two.
func (p Parts) Plus(other Parts) Parts {
	return Parts{
		Add(p.Useful, other.Useful), Add(p.Lost, other.Lost), Add(p.Idle, other.Idle), Add(p.Unknown, other.Unknown),
	}
}

// Total returns the sum of the parts.
func (p Parts) Total() int64 { return Add(Add(p.Useful, p.Lost), Add(p.Idle, p.Unknown)) }

// Add returns the sum of two amounts, neither of which is negative, or the most that fits.
func Add(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

// Share is what a run has held of a resource of a flavor.
type Share struct {
	Flavor, Resource string
	Parts
}

// Day is a day in UTC, such as 2026-11-28.
type Day string

// DayOf returns the day of a time.
func DayOf(t time.Time) Day { return Day(t.UTC().Format(time.DateOnly)) }

// Span is a part of a run on one day.
type Span struct {
	Day         Day
	From, Until time.Time
}

// MaxRetention is for how long a record may be kept, and how much of a run counts: the last 366 days.
const MaxRetention = 366 * 24 * time.Hour

// Spans returns the parts of a run on each of its days. The first is also returned if it is empty: a run of no time is
// one, too.
func (r *Run) Spans() []Span {
	from := later(r.From, r.Until.Add(-MaxRetention))
	var spans []Span
	for {
		next := from.Truncate(24 * time.Hour).Add(24 * time.Hour) // the zero time is a midnight in UTC
		until := earlier(r.Until, next)
		spans = append(spans, Span{DayOf(from), from, until})
		if !until.Before(r.Until) {
			return spans
		}
		from = until
	}
}

// Split returns what a run has held from one time to another. Of each resource, what is returned for adjacent times
// adds up to what is returned for both together.
func (r *Run) Split(from, until time.Time) []Share {
	from, until = later(from, r.From), earlier(until, r.Until)
	shares := make([]Share, 0, len(r.Amounts))
	for _, a := range r.Amounts {
		rate := rateOf(a)
		between := func(begin, end time.Time) int64 {
			begin, end = later(begin, from), earlier(end, until)
			if !begin.Before(end) {
				return 0
			}
			return rate.until(end.Sub(r.From)) - rate.until(begin.Sub(r.From))
		}
		s := Share{Flavor: a.Flavor, Resource: a.Resource}
		s.Idle = Add(between(r.From, r.Running), between(r.Ended, r.Until))
		s.Useful = between(r.Running, r.Saved)
		if rest := between(r.Saved, r.Ended); r.Reports || r.Succeeded {
			s.Lost = rest
		} else {
			s.Unknown = rest
		}
		shares = append(shares, s)
	}
	return shares
}
