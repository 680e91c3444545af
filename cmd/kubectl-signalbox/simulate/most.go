package simulate

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/util/podset"

	"github.com/signalbox-dev/signalbox/podsets"
)

// Growth is a Workload that the cluster doesn't have, with as many pods of a PodSet as it may get at most.
type Growth struct {
	Workload *kueue.Workload
	PodSet   kueue.PodSetReference
	Least    int32 // pods of it that are enough
	// Stays is a Workload that must keep its quota, whoever else is preempted.
	Stays types.NamespacedName
}

// Most returns the most pods of the PodSet with which Kueue would admit a Workload now, beside all that wait. It is 0
// if the least are too many, or if anybody would be preempted for them.
func Most(ctx context.Context, cluster *Cluster, growth Growth, now time.Time) (int32, error) {
	wl, name := growth.Workload, growth.PodSet
	whole := podset.FindPodSetByName(wl.Spec.PodSets, name)
	cq := cluster.clusterQueueOf(wl)
	if whole == nil || cq == nil || cluster.unqueued(wl) != "" {
		return 0, nil
	}
	cluster = cluster.partOf(wl, sets.New(kueue.ClusterQueueReference(cq.Name)))
	best, low, high := int32(0), growth.Least, whole.Count
	for middle := high; low <= high; middle = (low + high + 1) / 2 { // all of them first, as most will have room for
		tried := wl.DeepCopy()
		tried.Spec.PodSets = podsets.WithCount(wl.Spec.PodSets, name, middle)
		settled, err := Settle(ctx, cluster.Put(tried), now)
		if err != nil {
			return 0, err
		}
		is, other := settled.Workload(keyOf(wl)), settled.Workload(growth.Stays)
		if holdsQuota(is) && len(settled.victimsOf(wl.UID)) == 0 && other != nil && holdsQuota(other) {
			best, low = middle, middle+1
		} else {
			high = middle - 1
		}
	}
	return best, nil
}
