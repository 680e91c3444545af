package avoid

import (
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// Index finds the TrainJobs that remember nodes of this cluster, by the value Remembers.
const (
	Index     = "signalbox.avoided"
	Remembers = "true"
)

// IndexOf returns the values of Index of a TrainJob.
func IndexOf(o client.Object) []string {
	job, ok := o.(*api.TrainJob)
	if !ok || len(job.Status.Avoided) == 0 || elsewhere(job) {
		return nil
	}
	return []string{Remembers}
}

// elsewhere reports whether another cluster runs a TrainJob: its nodes are that one's.
func elsewhere(job *api.TrainJob) bool {
	return ptr.Deref(job.Spec.ManagedBy, "") == kueue.MultiKueueControllerName
}

// Shared returns which nodes that the TrainJobs of a namespace remember count for all of them: those that there are,
// the latest first. What may be a program's own failure isn't shared.
func (p Policy) Shared(jobs []api.TrainJob, nodes []corev1.Node, now time.Time) []api.AvoidedNode {
	if !p.On() || len(jobs) == 0 {
		return nil
	}
	is, last := Present(nodes), map[string]api.AvoidedNode{}
	for i := range jobs {
		for _, n := range jobs[i].Status.Avoided {
			known, again := last[n.Name]
			certain := n.Reason == Lost || n.Reason == Rejected || n.Reason == NotStarted
			if certain && p.counts(n, now) && is(n) && (!again || latestFirst(n, known) < 0) {
				last[n.Name] = n
			}
		}
	}
	return slices.SortedFunc(maps.Values(last), latestFirst)
}

// Further returns which of the shared nodes a TrainJob keeps off besides those that it counts of its own: the first,
// and as many as make up the most that it may.
func (p Policy) Further(own, shared []api.AvoidedNode) []api.AvoidedNode {
	others := slices.DeleteFunc(slices.Clone(shared), func(n api.AvoidedNode) bool {
		return slices.ContainsFunc(own, func(o api.AvoidedNode) bool { return o.Name == n.Name })
	})
	return others[:min(len(others), max(p.AtMost-len(own), 0))]
}

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
		if elsewhere(&jobs[i]) {
			continue
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
