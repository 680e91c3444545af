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

// Most returns the most pods of a PodSet with which Kueue would admit a Workload now, beside all that wait: at least so
// many, and as many as it has at most. It is 0 if there is no such number, or if anybody would be preempted for it.
// stays is a Workload that must keep its quota, whoever else is preempted. The cluster doesn't have the Workload.
func Most(
	ctx context.Context, cluster *Cluster, wl *kueue.Workload, name kueue.PodSetReference, least int32,
	stays types.NamespacedName, now time.Time,
) (int32, error) {
	whole := podset.FindPodSetByName(wl.Spec.PodSets, name)
	cq := cluster.clusterQueueOf(wl)
	if whole == nil || cq == nil || cluster.unqueued(wl) != "" {
		return 0, nil
	}
	cluster = cluster.partOf(wl, sets.New(kueue.ClusterQueueReference(cq.Name)))
	best, low, high := int32(0), least, whole.Count
	for middle := high; low <= high; middle = (low + high + 1) / 2 { // all of them first, as most will have room for
		tried := wl.DeepCopy()
		tried.Spec.PodSets = podsets.WithCount(wl.Spec.PodSets, name, middle)
		settled, err := Settle(ctx, cluster.Put(tried), now)
		if err != nil {
			return 0, err
		}
		is, other := settled.Workload(keyOf(wl)), settled.Workload(stays)
		if holdsQuota(is) && len(settled.victimsOf(wl.UID)) == 0 && other != nil && holdsQuota(other) {
			best, low = middle, middle+1
		} else {
			high = middle - 1
		}
	}
	return best, nil
}
