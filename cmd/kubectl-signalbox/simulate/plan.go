package simulate

import (
	"context"
	"errors"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
)

// Turn is for how long a Workload is expected to have quota.
type Turn struct {
	Workload types.NamespacedName
	// From is when it gets its quota, or since when it has had it; To is when it ends or is preempted.
	From, To time.Time
	// Admission is what it has.
	Admission *kueue.Admission
	// By is the UID of the Workload that it is preempted for; "" if it ends.
	By types.UID
}

// Plan is what becomes of a cluster's Workloads, if they end when they are expected to.
type Plan struct {
	// Turns are in the order in which they begin, in each part of the cluster.
	Turns []Turn
	// Complete is false if there was no time to follow all of it: later turns are missing then.
	Complete bool
}

// Ahead returns the turns of all Workloads that begin before the horizon. It ends early when the context does, with
// what it has found until then.
func Ahead(ctx context.Context, cluster *Cluster, lengths Lengths, now, horizon time.Time) (*Plan, error) {
	plan := &Plan{Complete: true}
	for _, part := range cluster.parts() {
		turns, err := part.turns(ctx, lengths, now, horizon)
		if err != nil && ctx.Err() == nil {
			return nil, err
		}
		plan.Turns, plan.Complete = append(plan.Turns, turns...), plan.Complete && err == nil
	}
	return plan, nil
}

// parts returns the parts of the cluster that decide about each other's Workloads.
func (c *Cluster) parts() (all []*Cluster) {
	seen := sets.New[kueue.ClusterQueueReference]()
	for i := range c.ClusterQueues {
		name := kueue.ClusterQueueReference(c.ClusterQueues[i].Name)
		if seen.Has(name) {
			continue
		}
		names := sets.New(name)
		all = append(all, c.partOf(nil, names))
		seen = seen.Union(names)
	}
	return all
}

// has reports whether a ClusterQueue is in this part of the cluster.
func (c *Cluster) has(name kueue.ClusterQueueReference) bool {
	return slices.ContainsFunc(c.ClusterQueues, func(cq kueue.ClusterQueue) bool { return cq.Name == string(name) })
}

// turns follows a part of the cluster.
func (c *Cluster) turns(ctx context.Context, lengths Lengths, now, horizon time.Time) ([]Turn, error) {
	var turns []Turn
	open := map[types.NamespacedName]int{} // in turns
	begin := func(wl *kueue.Workload, at time.Time) {
		open[keyOf(wl)] = len(turns)
		turns = append(turns, Turn{Workload: keyOf(wl), From: at, Admission: wl.Status.Admission})
	}
	w := newWalk(c, lengths, now)
	for i := range c.Workloads {
		wl := &c.Workloads[i] // it may be in two parts, if its LocalQueue leads elsewhere now
		if holdsQuota(wl) && c.has(wl.Status.Admission.ClusterQueue) {
			begin(wl, w.since[keyOf(wl)])
		}
	}
	defer func() {
		for key, i := range open {
			if wl := w.cluster.Workload(key); wl != nil {
				turns[i].To = w.endOf(wl)
			}
		}
	}()
	for range maxEvents {
		settled, err := w.settle(ctx)
		if err != nil {
			return turns, errors.Join(err, ctx.Err())
		}
		for _, p := range settled.Preempted {
			if i, found := open[p.Victim]; found {
				turns[i].To, turns[i].By = w.at, p.By
				delete(open, p.Victim)
			}
		}
		for i := range settled.Workloads {
			wl := &settled.Workloads[i] // one that was preempted may have quota again at once
			if _, found := open[keyOf(wl)]; !found && holdsQuota(wl) && c.has(wl.Status.Admission.ClusterQueue) {
				begin(wl, w.at)
			}
		}
		ended := w.next(settled)
		if ended == nil {
			return turns, nil
		}
		if i, found := open[*ended]; found {
			turns[i].To = w.at
			delete(open, *ended)
		}
		if w.at.After(horizon) {
			return turns, nil
		}
	}
	return turns, nil
}
