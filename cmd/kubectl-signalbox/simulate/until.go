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
	f, w := &Forecast{At: now}, newWalk(cluster, lengths, now)
	waiting := map[types.NamespacedName]bool{}
	for i := range cluster.Workloads {
		if wl := &cluster.Workloads[i]; !holdsQuota(wl) {
			waiting[keyOf(wl)] = true
		}
	}
	for range maxEvents {
		settled, err := w.settle(ctx)
		if err != nil {
			return nil, err
		}
		for _, admitted := range settled.Admitted {
			if admitted == key {
				f.Admission = settled.Workload(key).Status.Admission
				return f, nil
			}
			if waiting[admitted] {
				f.Ahead = append(f.Ahead, admitted)
				delete(waiting, admitted) // it may be preempted, and get quota again
			}
		}
		next := w.next(settled)
		if next == nil {
			others := settled.without([]types.NamespacedName{key})
			f.Stuck = utilslices.Map(others.Workloads, func(wl *kueue.Workload) types.NamespacedName { return keyOf(wl) })
			return f, nil
		}
		f.At, f.Ended = w.at, append(f.Ended, *next)
	}
	return nil, fmt.Errorf("%s has no quota after %d others have ended", key, maxEvents)
}

// walk follows a cluster from one end of a Workload to the next.
type walk struct {
	cluster *Cluster
	lengths Lengths
	at      time.Time
	// since is when those that hold quota got it.
	since map[types.NamespacedName]time.Time
}

func newWalk(cluster *Cluster, lengths Lengths, now time.Time) *walk {
	w := &walk{cluster: cluster, lengths: lengths, at: now, since: map[types.NamespacedName]time.Time{}}
	for i := range cluster.Workloads {
		if wl := &cluster.Workloads[i]; holdsQuota(wl) {
			w.since[keyOf(wl)] = quotaSince(wl, now)
		}
	}
	return w
}

// settle has Kueue decide.
func (w *walk) settle(ctx context.Context) (*Outcome, error) {
	settled, err := Settle(ctx, w.cluster, w.at)
	if err != nil {
		return nil, err
	}
	for _, p := range settled.Preempted {
		w.since[p.Victim] = w.at // if it gets quota again at once
	}
	for _, admitted := range settled.Admitted {
		w.since[admitted] = w.at
	}
	w.cluster = settled.Cluster
	return settled, nil
}

// next goes on to when the first Workload of those that have quota ends, and returns it; nil if none has.
func (w *walk) next(settled *Outcome) *types.NamespacedName {
	var next *types.NamespacedName
	var at time.Time
	for i := range settled.Workloads {
		wl := &settled.Workloads[i]
		if !holdsQuota(wl) {
			continue
		}
		if end := w.endOf(wl); next == nil || end.Before(at) {
			next, at = new(keyOf(wl)), end
		}
	}
	if next != nil {
		w.at, w.cluster = at, settled.without([]types.NamespacedName{*next})
	}
	return next
}

// endOf returns when a Workload that has quota is expected to end, not before now: it may take longer than expected.
func (w *walk) endOf(wl *kueue.Workload) time.Time {
	end := w.lengths(wl, w.since[keyOf(wl)])
	if end.Before(w.at) {
		return w.at
	}
	return end
}

// quotaSince returns since when a Workload has had its quota, or else now.
func quotaSince(wl *kueue.Workload, now time.Time) time.Time {
	if c := apimeta.FindStatusCondition(wl.Status.Conditions, kueue.WorkloadQuotaReserved); c != nil {
		return c.LastTransitionTime.Time
	}
	return now
}
