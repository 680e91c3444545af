package avoid

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/ptr"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// Count is who avoids a node.
type Count struct {
	// Namespaces are those of the TrainJobs that avoid it.
	Namespaces sets.Set[string]
	TrainJobs  int
	// Last is the latest of what is remembered of it.
	Last api.AvoidedNode
}

// Present returns which of what is remembered counts for all: what isn't the users' own mistake, of nodes that there
// are. What a TrainJob without another pod says of an image doesn't: two users with the same mistake would blame a
// node.
func Present(nodes []corev1.Node) func(api.AvoidedNode) bool {
	byName := map[string]*corev1.Node{}
	for i := range nodes {
		byName[nodes[i].Name] = &nodes[i]
	}
	return func(n api.AvoidedNode) bool {
		node := byName[n.Name]
		return n.Reason != NotStartedAlone && node != nil && !Replaced(n, node)
	}
}

// Tally counts who avoids a node, by its name, of what is remembered as asked.
func (p Policy) Tally(jobs []api.TrainJob, is func(api.AvoidedNode) bool, now time.Time) map[string]Count {
	counts := map[string]Count{}
	for i := range jobs {
		if ptr.Deref(jobs[i].Spec.ManagedBy, "") == kueue.MultiKueueControllerName {
			continue // its nodes are another cluster's
		}
		for _, n := range p.Counted(jobs[i].Status.Avoided, now) {
			if !is(n) {
				continue
			}
			c := counts[n.Name]
			if c.Namespaces == nil {
				c.Namespaces = sets.New[string]()
			}
			c.Namespaces.Insert(jobs[i].Namespace)
			c.TrainJobs++
			if c.Last.Time.Before(&n.Time) {
				c.Last = n
			}
			counts[n.Name] = c
		}
	}
	return counts
}
