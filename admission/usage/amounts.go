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
