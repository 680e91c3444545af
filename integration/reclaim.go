package integration

import (
	"time"

	"sigs.k8s.io/kueue/pkg/workload"

	"github.com/signalbox-dev/signalbox/podsets"
)

// reclaimEvery is the least time between two writes of what a running TrainJob gives back. The first comes at once, as
// that of an initializer. Of many ReplicatedJobs that end together, each would be a write that Kueue's scheduler
// follows.
const reclaimEvery = 10 * time.Second

// reclaims decides what a TrainJob gives back of its quota.
func reclaims(o *situation) reclaim {
	pods, wl := o.reclaimable(), o.match()
	if wl == nil || !workload.HasQuotaReservation(wl) {
		return reclaim{pods: pods}
	}
	stored := wl.Status.ReclaimablePods
	pods = podsets.AtLeast(podsets.AddNotAdmitted(pods, wl), stored)
	if workload.ReclaimablePodsAreEqual(workload.LimitReclaimablePodsToPodSetSizes(wl, pods), stored) {
		return reclaim{pods: pods}
	}
	if wait := reclaimEvery - o.now.Sub(o.memory.reclaimed); wait > 0 {
		return reclaim{pods: stored, later: wait}
	}
	return reclaim{pods: pods, changed: true}
}
