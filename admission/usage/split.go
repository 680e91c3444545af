package usage

import (
	"cmp"
	"math"
	"math/bits"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
)

// Amount is how much of a resource of a flavor a run holds.
type Amount struct {
	Flavor, Resource string
	Quantity         resource.Quantity
}

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

// rate is how much is held in each millisecond, as a fraction.
type rate struct{ amount, per uint64 }

// rateOf returns the rate of an amount: bytes are counted in GiB, and all else in its own unit.
func rateOf(a Amount) rate {
	whole := a.Quantity.Value()
	if a.Quantity.Cmp(*resource.NewQuantity(math.MaxInt64, resource.DecimalSI)) >= 0 {
		whole = math.MaxInt64 // a quantity may be more than fits
	}
	switch {
	case inBytes(a.Resource):
		return rate{positive(whole), 1 << 30}
	case whole > math.MaxInt64/1000:
		return rate{positive(whole), 1}
	}
	return rate{positive(a.Quantity.MilliValue()), 1000}
}

func positive(n int64) uint64 { return uint64(max(n, 0)) }

// inBytes reports whether a resource is counted in bytes.
func inBytes(name string) bool {
	return name == string(corev1.ResourceMemory) || name == string(corev1.ResourceEphemeralStorage) ||
		strings.HasPrefix(name, corev1.ResourceHugePagesPrefix)
}

// until returns what is held in a time. It grows with the time, so that a difference of two is never negative.
func (r rate) until(d time.Duration) int64 {
	high, low := bits.Mul64(r.amount, positive(d.Milliseconds()))
	if high >= r.per {
		return math.MaxInt64
	}
	quotient, _ := bits.Div64(high, low, r.per)
	return int64(min(quotient, math.MaxInt64))
}

// amountsOf returns what Kueue has counted of an admission, by flavor and resource, in their order.
func amountsOf(admitted *kueue.Admission) []Amount {
	var all []Amount
	for i := range admitted.PodSetAssignments {
		a := &admitted.PodSetAssignments[i]
		for name, quantity := range a.ResourceUsage {
			flavor, counted := a.Flavors[name]
			if !counted || quantity.IsZero() {
				continue // the ClusterQueue has no quota of it
			}
			at := slices.IndexFunc(all, func(o Amount) bool { return o.Flavor == string(flavor) && o.Resource == string(name) })
			if at < 0 {
				all = append(all, Amount{string(flavor), string(name), quantity.DeepCopy()})
			} else {
				all[at].Quantity.Add(quantity)
			}
		}
	}
	slices.SortFunc(all, func(a, b Amount) int {
		return cmp.Or(cmp.Compare(a.Flavor, b.Flavor), cmp.Compare(a.Resource, b.Resource))
	})
	return all
}
