package simulate

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
)

// inTurn has Workloads end one after the other, in the order in which they got their quota.
func inTurn(_ *kueue.Workload, since time.Time) time.Time { return since.Add(1000 * time.Hour) }

// Ask returns what Kueue would do with one of the cluster's Workloads. lengths may be nil: then those that run are
// expected to end in the order in which they have started.
func Ask(
	ctx context.Context, cluster *Cluster, key types.NamespacedName, lengths Lengths, now time.Time,
) (*Answer, error) {
	wl := cluster.Workload(key)
	if wl == nil {
		return nil, fmt.Errorf("there is no Workload %s", key)
	}
	if holdsQuota(wl) {
		return &Answer{Verdict: Running, Admission: wl.Status.Admission}, nil
	}
	unqueued, cluster := cluster.unqueued(wl), cluster.Concerning(wl)
	if cq := cluster.clusterQueueOf(wl); unqueued == "" {
		var err error
		if unqueued, err = cluster.inactive(ctx, kueue.ClusterQueueReference(cq.Name), now); err != nil {
			return nil, err
		}
	}
	settled, err := Settle(ctx, cluster, now)
	if err != nil {
		return nil, err
	}
	is := settled.Workload(key)
	if holdsQuota(is) {
		answer := &Answer{Verdict: Admitted, Admission: is.Status.Admission, Victims: settled.victimsOf(is.UID)}
		if len(answer.Victims) > 0 {
			answer.Verdict = Preempts
		}
		return answer, nil
	}
	alone, err := settleOne(ctx, cluster.With([]kueue.Workload{*wl}), wl, now)
	if err != nil {
		return nil, err
	}
	answer := &Answer{Verdict: Never, Message: cmp.Or(unqueued, message(alone))}
	if holdsQuota(alone) {
		answer.Message = cmp.Or(unqueued, message(is))
		if lengths == nil {
			lengths = inTurn
		}
		if err := answer.waits(ctx, cluster, key, lengths, now); err != nil {
			return nil, err
		}
	}
	answer.Changes, err = changes(ctx, cluster, wl, answer.Verdict == Never, now)
	return answer, err
}

// waits completes the answer for a Workload that is admitted later.
func (a *Answer) waits(
	ctx context.Context, cluster *Cluster, key types.NamespacedName, lengths Lengths, now time.Time,
) error {
	forecast, err := Until(ctx, cluster, key, lengths, now)
	if err != nil {
		return err
	}
	if forecast.Admission == nil {
		a.Verdict, a.Ahead = Stuck, forecast.Stuck
		return nil
	}
	a.Verdict, a.Admission, a.Ahead = Waits, forecast.Admission, forecast.Ahead
	a.After, err = necessary(ctx, cluster, key, forecast.Ended, now)
	return err
}

// mostTried bounds how many ends are tried one by one.
const mostTried = 24

// necessary leaves out of those that have ended before a Workload is admitted the ones that it doesn't need.
func necessary(
	ctx context.Context, cluster *Cluster, key types.NamespacedName, ended []types.NamespacedName, now time.Time,
) ([]types.NamespacedName, error) {
	if len(ended) > mostTried {
		return ended, nil
	}
	needed := slices.Clone(ended)
	for _, candidate := range ended {
		rest := slices.DeleteFunc(slices.Clone(needed), func(k types.NamespacedName) bool { return k == candidate })
		settled, err := Settle(ctx, cluster.without(rest), now)
		if err != nil {
			return nil, err
		}
		if holdsQuota(settled.Workload(key)) {
			needed = rest
		}
	}
	return needed, nil
}
