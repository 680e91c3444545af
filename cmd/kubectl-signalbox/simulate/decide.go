package simulate

import (
	"context"
	"fmt"
	"slices"
	"time"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/ptr"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	workloadevict "sigs.k8s.io/kueue/pkg/workload/evict"
)

// Decision is what Kueue decides about a Workload now, and the quota that it decides on.
type Decision struct {
	// Verdict is Running, Admitted, Preempts, Waits or Never. Decide doesn't follow what ends later, so Waits includes
	// what Ask returns as Stuck.
	Verdict Verdict
	// Message is Kueue's reason why the Workload isn't admitted: for Never in empty queues, for Waits if no other
	// Workload waits. It is about the fewest pods that the Workload may be admitted with. It is "" if Behind is set.
	Message string
	// Behind is set for Waits if only Workloads that wait ahead of it prevent the admission.
	Behind bool
	// Victims are those that it preempts.
	Victims []types.NamespacedName
	// Lower are those that it would preempt if its ClusterQueue preempted Workloads of lower priority, which it doesn't.
	Lower []types.NamespacedName
	// Ending are the evicted Workloads that still hold quota.
	Ending []types.NamespacedName
	// Quota is what it needs, for each flavor and resource of its ClusterQueue.
	Quota []Quota
}

// Decide returns what Kueue decides about one of the cluster's Workloads.
func Decide(ctx context.Context, cluster *Cluster, key types.NamespacedName, now time.Time) (*Decision, error) {
	wl := cluster.Workload(key)
	if wl == nil {
		return nil, fmt.Errorf("there is no Workload %s", key)
	}
	if holdsQuota(wl) {
		return &Decision{Verdict: Running}, nil
	}
	if message := cluster.unqueued(wl); message != "" {
		return &Decision{Verdict: Never, Message: message}, nil
	}
	own := kueue.ClusterQueueReference(cluster.clusterQueueOf(wl).Name)
	cluster = cluster.partOf(wl, sets.New(own))
	if message, err := cluster.inactive(ctx, own, now); err != nil || message != "" {
		return &Decision{Verdict: Never, Message: message}, err
	}
	d := &Decision{}
	for i := range cluster.Workloads {
		if other := &cluster.Workloads[i]; holdsQuota(other) && workloadevict.IsEvicted(other) {
			d.Ending = append(d.Ending, keyOf(other))
		}
	}
	asked := wl.DeepCopy() // without what Kueue said before, so that a message is of this decision
	apimeta.RemoveStatusCondition(&asked.Status.Conditions, kueue.WorkloadQuotaReserved)
	settled, err := Settle(ctx, cluster.Put(asked), now)
	if err != nil {
		return nil, err
	}
	is := settled.Workload(key)
	if d.Verdict = Admitted; holdsQuota(is) {
		if d.Victims = settled.victimsOf(is.UID); len(d.Victims) > 0 {
			d.Verdict = Preempts
		}
	} else if err := d.missing(ctx, cluster, asked, message(is) != "", now); err != nil {
		return nil, err
	}
	least := fewest(asked)
	d.Quota, err = cluster.holding(least, true).quota(ctx, least, now)
	return d, err
}

// missing finds out what a Workload lacks that isn't admitted. considered is set if Kueue gets to it.
func (d *Decision) missing(
	ctx context.Context, cluster *Cluster, asked *kueue.Workload, considered bool, now time.Time,
) error {
	least := fewest(asked)
	alone, err := settleOne(ctx, cluster.With([]kueue.Workload{*least}), least, now)
	if err != nil {
		return err
	}
	if d.Verdict, d.Message = Never, message(alone); !holdsQuota(alone) {
		return nil
	}
	running := cluster.holding(least, false)
	next, err := settleOne(ctx, running, least, now)
	if err != nil {
		return err
	}
	d.Verdict, d.Message = Waits, message(next)
	cq := cluster.clusterQueueOf(asked)
	if d.Behind = holdsQuota(next) || !considered && cq.Spec.QueueingStrategy == kueue.StrictFIFO; d.Behind {
		d.Message = ""
		return nil
	}
	settled, err := Settle(ctx, running.preempting(cq.Name), now)
	if err != nil {
		return err
	}
	d.Lower = settled.victimsOf(asked.UID)
	return nil
}

// preempting returns the cluster with a ClusterQueue that preempts Workloads of lower priority, if it preempts none.
func (c *Cluster) preempting(clusterQueue string) *Cluster {
	other := *c
	other.ClusterQueues = slices.Clone(c.ClusterQueues)
	for i := range other.ClusterQueues {
		if cq := &other.ClusterQueues[i]; cq.Name == clusterQueue {
			cq.Spec.Preemption = ptr.To(ptr.Deref(cq.Spec.Preemption, kueue.ClusterQueuePreemption{}))
			if p := &cq.Spec.Preemption.WithinClusterQueue; *p == "" || *p == kueue.PreemptionPolicyNever {
				*p = kueue.PreemptionPolicyLowerPriority
			}
		}
	}
	return &other
}

// settleOne returns a Workload as Kueue leaves it.
func settleOne(ctx context.Context, cluster *Cluster, wl *kueue.Workload, now time.Time) (*kueue.Workload, error) {
	settled, err := Settle(ctx, cluster, now)
	if err != nil {
		return nil, err
	}
	return settled.Workload(keyOf(wl)), nil
}

// fewest returns a Workload with the fewest pods that it may be admitted with. Kueue's messages are about all pods,
// also if fewer are enough.
func fewest(wl *kueue.Workload) *kueue.Workload {
	wl = wl.DeepCopy()
	for i := range wl.Spec.PodSets {
		if podSet := &wl.Spec.PodSets[i]; podSet.MinCount != nil {
			podSet.Count, podSet.MinCount = *podSet.MinCount, nil
		}
	}
	return wl
}
