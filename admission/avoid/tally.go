package avoid

import (
	"slices"
	"time"

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

// Tally counts who avoids a node, by its name. What a TrainJob without another pod says of an image counts only with
// alone: two users with the same mistake would blame a node.
func (p Policy) Tally(jobs []api.TrainJob, alone bool, now time.Time) map[string]Count {
	counts := map[string]Count{}
	for i := range jobs {
		if ptr.Deref(jobs[i].Spec.ManagedBy, "") == kueue.MultiKueueControllerName {
			continue // its nodes are another cluster's
		}
		for _, n := range p.Counted(jobs[i].Status.Avoided, now) {
			if n.Reason == NotStartedAlone && !alone {
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

// Shared returns the names of the nodes that TrainJobs of so many namespaces avoid, in order.
func Shared(counts map[string]Count, namespaces int) (names []string) {
	for name, c := range counts {
		if c.Namespaces.Len() >= namespaces {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}
