// Package avoid knows which nodes a TrainJob keeps off: those on which its pods were lost, were rejected, didn't start,
// or failed at once. It reads and writes nothing.
//
// Mark says what a pod shows of its node (cause.go). Blame and Remember keep that in status.avoided of the TrainJob
// (judge.go). Choose decides which of these nodes are kept off (choose.go), by those that its pods fit (fits.go), also
// beside each other (beside.go). Apply writes them into what is queued (term.go). Shared is what TrainJobs of a
// namespace tell each other, and Tally counts the namespaces that avoid a node (tally.go).
package avoid

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"

	configapi "github.com/signalbox-dev/signalbox/api/config/v1alpha1"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// Policy is what the configuration says of nodes. The zero Policy avoids none.
type Policy struct {
	// For is for how long a node is avoided; 0 for not at all.
	For time.Duration
	// FailedWithin is how soon after its start a pod fails early; 0 for never.
	FailedWithin time.Duration
	// AtMost is how many nodes a TrainJob keeps off.
	AtMost int
}

// PolicyOf returns what a configuration says.
func PolicyOf(n configapi.Nodes) Policy {
	return Policy{For: n.AvoidFor.Duration, FailedWithin: n.FailedWithin.Duration, AtMost: n.AtMost}
}

// On reports whether nodes are avoided at all.
func (p Policy) On() bool { return p.For > 0 }

// skew is how far the clock of another replica may be ahead. What was remembered later than that counts not at all: it
// would never expire.
const skew = time.Minute

// Counted returns which of the nodes that are remembered count now: the latest first, and at most as many as are
// avoided.
func (p Policy) Counted(known []api.AvoidedNode, now time.Time) []api.AvoidedNode {
	counted := p.All(known, now)
	return counted[:min(len(counted), p.AtMost)]
}

// All returns all that count, the latest first.
func (p Policy) All(known []api.AvoidedNode, now time.Time) []api.AvoidedNode {
	if !p.On() || len(known) == 0 {
		return nil
	}
	counted := slices.DeleteFunc(slices.Clone(known), func(n api.AvoidedNode) bool {
		return !p.counts(n, now) || len(validation.IsDNS1123Subdomain(n.Name)) > 0
	})
	slices.SortFunc(counted, latestFirst)
	return counted
}

func latestFirst(a, b api.AvoidedNode) int {
	return cmp.Or(b.Time.Compare(a.Time.Time), cmp.Compare(a.Name, b.Name))
}

func (p Policy) counts(n api.AvoidedNode, now time.Time) bool {
	return n.Time.Sub(now) <= skew && now.Before(n.Time.Add(p.For))
}

// Names returns the names of nodes, as text.
func Names(nodes []api.AvoidedNode) string {
	names := make([]string, 0, len(nodes))
	for _, n := range nodes {
		names = append(names, n.Name)
	}
	return strings.Join(names, ", ")
}

// Left returns after which time one of some nodes isn't avoided any more; 0 for never.
func (p Policy) Left(counted []api.AvoidedNode, now time.Time) (left time.Duration) {
	for _, n := range counted {
		if d := n.Time.Add(p.For).Sub(now); left == 0 || d < left {
			left = d
		}
	}
	return left
}
