package explain

import (
	"cmp"
	"slices"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	utilpriority "sigs.k8s.io/kueue/pkg/util/priority"
	utilqueue "sigs.k8s.io/kueue/pkg/util/queue"
	utilslices "sigs.k8s.io/kueue/pkg/util/slices"
	"sigs.k8s.io/kueue/pkg/workload"
	workloadfinish "sigs.k8s.io/kueue/pkg/workload/finish"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/cmd/kubectl-signalbox/simulate"
	"github.com/signalbox-dev/signalbox/podsets"
)

// Queues is a cluster's queues and Workloads with an index, which is computed once for all TrainJobs.
type Queues struct {
	simulate.Cluster
	locals   map[utilqueue.LocalQueueReference]*kueue.LocalQueue
	names    map[string][]string // LocalQueues by namespace
	clusters map[string]*kueue.ClusterQueue
	owned    map[owner]*kueue.Workload
	lines    map[string][]*kueue.Workload // what waits in each ClusterQueue, in Kueue's order
	places   map[types.UID]int            // of a Workload in its line, from 0
}

// owner is the namespace of a Workload, and the UID of an owner that it names.
type owner struct {
	namespace string
	uid       types.UID
}

// NewQueues returns the index of a cluster.
func NewQueues(cluster simulate.Cluster) *Queues {
	q := &Queues{
		Cluster: cluster, locals: utilslices.ToRefMap(cluster.LocalQueues, utilqueue.Key), names: map[string][]string{},
		clusters: utilslices.ToRefMap(cluster.ClusterQueues, func(cq *kueue.ClusterQueue) string { return cq.Name }),
		owned:    map[owner]*kueue.Workload{}, lines: map[string][]*kueue.Workload{}, places: map[types.UID]int{},
	}
	for i := range cluster.LocalQueues {
		lq := &cluster.LocalQueues[i]
		q.names[lq.Namespace] = append(q.names[lq.Namespace], lq.Name)
	}
	for i := range cluster.Workloads {
		q.add(&cluster.Workloads[i])
	}
	by := cluster.Ordering()
	for _, line := range q.lines {
		slices.SortStableFunc(line, func(a, b *kueue.Workload) int {
			// As Kueue v0.19.2, pkg/cache/queue/cluster_queue.go, baseCompareFunc.
			return cmp.Or(cmp.Compare(utilpriority.Priority(b), utilpriority.Priority(a)),
				by.GetQueueOrderTimestamp(a).Compare(by.GetQueueOrderTimestamp(b).Time))
		})
		for place, wl := range line {
			q.places[wl.UID] = place
		}
	}
	return q
}

func (q *Queues) add(wl *kueue.Workload) {
	for _, ref := range wl.OwnerReferences {
		by := owner{wl.Namespace, ref.UID}
		if found := q.owned[by]; found == nil || follows(wl, found) {
			q.owned[by] = wl
		}
	}
	lq := q.locals[utilqueue.KeyFromWorkload(wl)]
	if lq != nil && ptr.Deref(lq.Spec.StopPolicy, kueue.None) == kueue.None && workload.IsAdmissible(wl) {
		name := string(lq.Spec.ClusterQueue)
		q.lines[name] = append(q.lines[name], wl)
	}
}

// follows reports whether a Workload is a job's rather than another one: it stands for it (podsets.Counts), isn't
// finished, or was made later.
func follows(wl, other *kueue.Workload) bool {
	if counts, _ := podsets.Counts([]*kueue.Workload{other, wl}); len(counts) == 1 {
		return counts[0] == wl
	}
	if finished := workloadfinish.IsFinished(wl); finished != workloadfinish.IsFinished(other) {
		return !finished
	}
	return other.CreationTimestamp.Before(&wl.CreationTimestamp)
}

// WorkloadOf returns a TrainJob's Workload: the one that isn't finished, or else the last; nil if there is none.
func (q *Queues) WorkloadOf(job *api.TrainJob) *kueue.Workload {
	return q.owned[owner{job.Namespace, job.UID}]
}

// Line returns what waits in a ClusterQueue, in Kueue's order.
func (q *Queues) Line(clusterQueue string) []*kueue.Workload { return q.lines[clusterQueue] }
