package integration

import (
	"context"
	"fmt"
	"slices"
	"time"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/controller/jobframework"
	"sigs.k8s.io/kueue/pkg/workload"
	workloadevict "sigs.k8s.io/kueue/pkg/workload/evict"

	"github.com/signalbox-dev/signalbox/integration/installed"
	"github.com/signalbox-dev/signalbox/podsets"
)

// unreachable describes the clusters of MultiKueue that can't be reached. Which of them an evicted Workload has run in
// is not known any more.
func (r reads) unreachable(ctx context.Context) ([]string, error) {
	var clusters kueue.MultiKueueClusterList
	if err := r.live.List(ctx, &clusters); err != nil {
		return nil, fmt.Errorf("listing the MultiKueueClusters: %w", err)
	}
	var lost []string
	for i := range clusters.Items {
		c := apimeta.FindStatusCondition(clusters.Items[i].Status.Conditions, kueue.MultiKueueClusterActive)
		if c == nil {
			lost = append(lost, "cluster "+clusters.Items[i].Name+" isn't connected yet")
		} else if c.Status != metav1.ConditionTrue {
			lost = append(lost, fmt.Sprintf("cluster %s can't be reached: %s", clusters.Items[i].Name, c.Message))
		}
	}
	return lost, nil
}

// dispatchedTrainer is the Trainer of a TrainJob that MultiKueue gives to another cluster. Nothing of it runs here;
// what it does there is in the status, which Kueue copies from that cluster and nobody writes here.
type dispatchedTrainer struct {
	trainerReads
	trainerStarts
}

func (t Trainer) dispatching() Trainer {
	away := dispatchedTrainer{t.trainerReads, t.trainerStarts}
	t.trainerReads, t.trainerRuns, t.trainerStarts = away, away, away
	return t
}

// startable rejects a TrainJob whose queue doesn't lead to another cluster: its quota would be held for nothing,
// because no Trainer runs it here. The rest is checked by the cluster that runs it.
func (dispatchedTrainer) startable(ctx context.Context, r reads, o *observed) error {
	if holdQuota(o.workloads.own) {
		return nil
	}
	queue := string(jobframework.QueueNameForObject(o.job))
	away, err := r.LeadsAway(ctx, o.job.Namespace, queue)
	if err != nil || away {
		return err
	}
	return blocked(ReasonNotDispatched, fmt.Errorf("spec.managedBy is %q, but the ClusterQueue of queue %q has no "+
		"admission check of MultiKueue, or Kueue's multiKueue.externalFrameworks doesn't list %s; name another queue, or "+
		"create the TrainJob without managedBy", kueue.MultiKueueControllerName, queue, installed.ExternalFramework))
}

// leftover finds out whether the cluster of an evicted TrainJob can be reached. What runs in one that can't may never
// end here; Kueue evicts after its workerLostTimeout, and the TrainJob is to run in another cluster then.
func (dispatchedTrainer) leftover(ctx context.Context, r reads, o *observed) (leftover, error) {
	left := o.left
	waits := slices.ContainsFunc(o.workloads.own, func(wl *kueue.Workload) bool {
		return podsets.HoldsQuota(wl) && !workload.IsAdmitted(wl)
	})
	stops := runsElsewhere(o.job) && slices.ContainsFunc(o.workloads.own, func(wl *kueue.Workload) bool {
		return podsets.HoldsQuota(wl) && workloadevict.IsEvicted(wl)
	})
	if !waits && !stops {
		return left, nil
	}
	clusters, err := r.unreachable(ctx)
	if waits {
		left.unreachable = clusters
	}
	if stops {
		left.lost, left.again = len(clusters) > 0, lostRecheck
	}
	return left, err
}

// lostRecheck is how often to see whether the cluster of an evicted TrainJob has been lost.
const lostRecheck = 5 * time.Second

func (dispatchedTrainer) active(o *observed) bool { return !o.left.lost && runsElsewhere(o.job) }

// ready doesn't depend on this cluster's runtime, which may have been edited or deleted since: Kueue evicts a TrainJob
// that isn't ready for long.
func (dispatchedTrainer) ready(o *observed) bool {
	wl := o.match()
	switch {
	case wl == nil:
		return false
	case o.hasPodSets(wl):
		return podsets.Ready(o.queue.effective.ReplicatedJobs, o.job.Status.JobsStatus)
	}
	return podsets.ReadyAsAdmitted(wl.Spec.PodSets, o.job.Status.JobsStatus)
}

// reclaimable returns nil if the runtime has changed: Kueue would reject pods that weren't admitted.
func (dispatchedTrainer) reclaimable(o *observed) []kueue.ReclaimablePod {
	if wl := o.match(); wl == nil || !o.hasPodSets(wl) {
		return nil
	}
	return outlived(o)
}

func (dispatchedTrainer) prepare(*observed) ([]step, string) {
	return nil, "the cluster that is to run it"
}

func (dispatchedTrainer) blocks(*observed, *metav1.Condition) bool { return false }
