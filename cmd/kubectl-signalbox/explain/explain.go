// Package explain says why a TrainJob is in the state that it is in, from the objects that a user may read. Everything
// in it is a pure function of these objects.
package explain

import (
	"slices"

	utilpriority "sigs.k8s.io/kueue/pkg/util/priority"

	"github.com/signalbox-dev/signalbox/cmd/kubectl-signalbox/simulate"
)

// Explanation is what is known of a TrainJob.
type Explanation struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	State     string `json:"state"`
	Standing
	Cause Cause `json:"cause"`
	// Flavors are what it asks for and what there is.
	Flavors []simulate.Quota `json:"flavors,omitempty"`
	// Ahead are the first of those that are considered before it.
	Ahead []Waiting `json:"ahead,omitempty"`
	// Timeline is what has happened to it.
	Timeline []Moment `json:"timeline,omitempty"`
	Related
	// Missing are the rights that would show more.
	Missing []string `json:"missingRights,omitempty"`
}

// Related is what others have to do with it.
type Related struct {
	// Dependencies are the TrainJobs that it runs after, each followed by those that it waits for itself.
	Dependencies []Dependency `json:"dependencies,omitempty"`
	// Clusters are what it is in those that MultiKueue has asked to run it.
	Clusters []InCluster `json:"clusters,omitempty"`
}

// InCluster is what a TrainJob is in another cluster.
type InCluster struct {
	Cluster string `json:"cluster"`
	// Explanation is nil if it isn't known; Unknown says why.
	Explanation *Explanation `json:"explanation,omitempty"`
	Unknown     string       `json:"unknown,omitempty"`
}

// Standing is where a TrainJob stands in its queue.
type Standing struct {
	Queue string `json:"queue,omitempty"`
	// ClusterQueue is "" if it isn't known.
	ClusterQueue string `json:"clusterQueue,omitempty"`
	Priority     int32  `json:"priority"`
	// Place is where it waits in its ClusterQueue, from 1; 0 if it doesn't wait, or if that isn't known. Waiting is how
	// many wait there.
	Place   int `json:"place,omitempty"`
	Waiting int `json:"waiting,omitempty"`
}

// Brief explains the state of a TrainJob without what others do: for lists.
func Brief(f *Facts) *Explanation {
	e := &Explanation{
		Namespace: f.Job.Namespace, Name: f.Job.Name, State: f.shown(),
		Standing: Standing{Queue: f.queueName(), ClusterQueue: f.clusterQueueName()},
	}
	if f.Workload != nil {
		e.Priority = utilpriority.Priority(f.Workload)
	}
	if e.Cause = f.cause(); waits[e.Cause.Code] {
		e.Place, e.Waiting = f.Position()
	}
	return e
}

const mostAhead = 100

// Explain explains the state of a TrainJob.
func Explain(f *Facts) *Explanation {
	e := Brief(f)
	e.Dependencies = f.Dependencies
	e.Timeline, e.Missing = f.timeline(), slices.Clone(f.Missing)
	if waits[e.Cause.Code] {
		e.Ahead = f.ahead(mostAhead)
		if f.Decision != nil {
			e.Flavors = f.Decision.Quota
		}
	}
	return e
}

// waits are the causes of TrainJobs that wait for quota.
var waits = map[Code]bool{
	CodeNoFlavor: true, CodeNoResource: true, CodeTooLarge: true, CodeBorrowed: true, CodeLimit: true, CodeCohort: true,
	CodeShort: true, CodeNoPreempt: true, CodePreempting: true, CodeBehind: true, CodeTopology: true, CodeUnknown: true,
}
