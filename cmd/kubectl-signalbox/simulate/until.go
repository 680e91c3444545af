package simulate

import (
	"context"
	"fmt"
	"time"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	utilslices "sigs.k8s.io/kueue/pkg/util/slices"
)

// Forecast is when a Workload gets quota, if others end when they are expected to.
type Forecast struct {
	// At is when it gets its quota.
	At time.Time
	// Admission is what it gets then.
	Admission *kueue.Admission
	// Ended are those that end before, in their order.
	Ended []types.NamespacedName
	// Ahead are those that waited with it, and get quota before it does.
	Ahead []types.NamespacedName
	// Stuck are those that wait in front of it and never get quota, so that it doesn't get any either: the head of a
	// strict queue, for example. Admission is nil then.
	Stuck []types.NamespacedName
}

// maxEvents bounds how many ends are followed.
const maxEvents = 20000

// Until follows the cluster from one end of a Workload to the next until one that waits gets quota.
func Until(
	ctx context.Context, cluster *Cluster, key types.NamespacedName, lengths Lengths, now time.Time,
) (*Forecast, error) {
	f := &Forecast{At: now}
	since := map[types.NamespacedName]time.Time{}
	waiting := map[types.NamespacedName]bool{}
	for i := range cluster.Workloads {
		if wl := &cluster.Workloads[i]; !holdsQuota(wl) {
			waiting[keyOf(wl)] = true
		} else {
			since[keyOf(wl)] = quotaSince(wl, now)
		}
	}
	for range maxEvents {
		settled, err := Settle(ctx, cluster, f.At)
		if err != nil {
			return nil, err
		}
		for _, p := range settled.Preempted {
			since[p.Victim] = f.At // if it gets quota again at once
		}
		for _, admitted := range settled.Admitted {
			since[admitted] = f.At
			if admitted == key {
				f.Admission = settled.Workload(key).Status.Admission
				return f, nil
			}
			if waiting[admitted] {
				f.Ahead = append(f.Ahead, admitted)
				delete(waiting, admitted) // it may be preempted, and get quota again
			}
		}
		next, end := nextEnd(settled.Workloads, since, lengths, f.At)
		if next == nil {
			others := settled.without([]types.NamespacedName{key})
			f.Stuck = utilslices.Map(others.Workloads, func(wl *kueue.Workload) types.NamespacedName { return keyOf(wl) })
			return f, nil
		}
		f.At, f.Ended = end, append(f.Ended, *next)
		cluster = settled.without([]types.NamespacedName{*next})
	}
	return nil, fmt.Errorf("%s has no quota after %d others have ended", key, maxEvents)
}

// nextEnd returns the Workload that ends first of those that have quota; nil if none has.
func nextEnd(
	workloads []kueue.Workload, since map[types.NamespacedName]time.Time, lengths Lengths, now time.Time,
) (next *types.NamespacedName, at time.Time) {
	for i := range workloads {
		wl := &workloads[i]
		if !holdsQuota(wl) {
			continue
		}
		key := keyOf(wl)
		end := lengths(wl, since[key])
		if end.Before(now) {
			end = now // it has taken longer than was expected
		}
		if next == nil || end.Before(at) {
			next, at = &key, end
		}
	}
	return next, at
}

// quotaSince returns since when a Workload has had its quota, or else now.
func quotaSince(wl *kueue.Workload, now time.Time) time.Time {
	if c := apimeta.FindStatusCondition(wl.Status.Conditions, kueue.WorkloadQuotaReserved); c != nil {
		return c.LastTransitionTime.Time
	}
	return now
}
