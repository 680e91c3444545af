package explain

import (
	"cmp"
	"slices"
	"time"

	"k8s.io/utils/ptr"
	kueueconfig "sigs.k8s.io/kueue/apis/config/v1beta2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/workload"
	workloadfinish "sigs.k8s.io/kueue/pkg/workload/finish"
)

// Waiting is a Workload that waits in the same ClusterQueue.
type Waiting struct {
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	Priority  int32     `json:"priority"`
	Since     time.Time `json:"since"`
}

// ahead returns the Workloads that Kueue considers before the TrainJob's: by priority, then by age.
func (f *Facts) ahead() []Waiting { return f.waiting(func(order int) bool { return order < 0 }) }

func (f *Facts) behind() []Waiting { return f.waiting(func(order int) bool { return order > 0 }) }

func (f *Facts) waiting(which func(order int) bool) []Waiting {
	lq := f.localQueue()
	if lq == nil || f.Workload == nil {
		return nil
	}
	queues := map[string]bool{}
	for i := range f.Cluster.LocalQueues {
		if q := &f.Cluster.LocalQueues[i]; q.Spec.ClusterQueue == lq.Spec.ClusterQueue {
			queues[q.Namespace+"/"+q.Name] = true
		}
	}
	var all []*kueue.Workload
	for i := range f.Cluster.Workloads {
		wl := &f.Cluster.Workloads[i]
		if workload.IsActive(wl) && !workloadfinish.IsFinished(wl) && !workload.HasQuotaReservation(wl) &&
			wl.UID != f.Workload.UID && queues[wl.Namespace+"/"+string(wl.Spec.QueueName)] && which(order(wl, f.Workload)) {
			all = append(all, wl)
		}
	}
	slices.SortStableFunc(all, order)
	var waiting []Waiting
	for _, wl := range all {
		waiting = append(waiting, Waiting{wl.Namespace, Owner(wl), ptr.Deref(wl.Spec.Priority, 0), queuedAt(wl)})
	}
	return waiting
}

// order is that of Kueue's queues (pkg/cache/queue/cluster_queue.go, baseCompareFunc).
func order(a, b *kueue.Workload) int {
	return cmp.Or(cmp.Compare(ptr.Deref(b.Spec.Priority, 0), ptr.Deref(a.Spec.Priority, 0)),
		queuedAt(a).Compare(queuedAt(b)))
}

// queuedAt returns since when a Workload is in its place in the queue: its creation, or its last eviction for another
// reason than preemption.
func queuedAt(wl *kueue.Workload) time.Time {
	return workload.Ordering{PodsReadyRequeuingTimestamp: kueueconfig.EvictionTimestamp}.GetQueueOrderTimestamp(wl).Time
}
