package integration

import (
	"context"
	"errors"
	"math"
	"slices"
	"strconv"
	"time"

	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/util/priority"
	"sigs.k8s.io/kueue/pkg/workload"
	workloadevict "sigs.k8s.io/kueue/pkg/workload/evict"
	workloadfinish "sigs.k8s.io/kueue/pkg/workload/finish"

	"github.com/signalbox-dev/signalbox/admission/boost"
	"github.com/signalbox-dev/signalbox/admission/checkpoint"
	"github.com/signalbox-dev/signalbox/integration/managed"
	"github.com/signalbox-dev/signalbox/store/events"
)

// PriorityIndex finds Workloads that haven't finished by their priority, and those whose priority is that of a
// PriorityClass of pods by that kind.
const PriorityIndex = "signalbox.priority"

// PriorityIndexOf returns the values of PriorityIndex of a Workload.
func PriorityIndexOf(o client.Object) []string {
	wl := o.(*kueue.Workload)
	if workloadfinish.IsFinished(wl) {
		return nil
	}
	values := []string{strconv.Itoa(int(priority.Priority(wl)))}
	if ref := wl.Spec.PriorityClassRef; ref != nil && ref.Kind == kueue.PodPriorityClassKind {
		values = append(values, string(kueue.PodPriorityClassKind))
	}
	return values
}

// resolveBoost decides the boost of a TrainJob that runs on its quota, or may start. What can't be read changes
// nothing: nobody waits for it.
func (r *resolver) resolveBoost(ctx context.Context, o *situation) {
	wl, policy := o.match(), r.policy.Boost
	if wl == nil || !runsOnQuota(o, wl) {
		return
	}
	in := boost.Input{Workload: wl, Saved: checkpoint.Saved(o.job, o.jobSet, o.now), Now: o.now}
	mark, _ := boost.Of(wl)
	switch {
	case !policy.On() && mark == (boost.Mark{}):
		return
	case policy.On():
		inUse, err := r.priorities(ctx, wl)
		if err != nil {
			ctrl.LoggerFrom(ctx).Info("The priorities in use aren't known; a boost stays as it is", "reason", err.Error())
			return
		}
		in.Room = boost.Room(wl, inUse)
	}
	left := boost.Every - time.Second - o.now.Sub(o.memory.queueRead) // the time of a write is one of whole seconds
	switch asks := policy.AsksWhoWaits(wl, in.Saved, o.now); {
	case asks && left > 0 && mark.Value < boost.Highest:
		o.queue.later(left)
	case asks:
		o.memory.queueRead = o.now
		in.Waits = r.othersWait(ctx, wl)
	}
	o.queue.boost = ptr.To(policy.Decide(in))
}

// priorities returns the priorities in use: those of WorkloadPriorityClasses, that of Workloads without a class and,
// if a TrainJob has such a priority, those of PriorityClasses of pods. A class may be gone, or in another cluster, so
// those next above a Workload's that another TrainJob's has count, too. Other Workloads aren't in the cache.
func (r reads) priorities(ctx context.Context, wl *kueue.Workload) ([]int32, error) {
	var classes kueue.WorkloadPriorityClassList
	err := r.client.List(ctx, &classes, client.UnsafeDisableDeepCopy)
	inUse := []int32{0}
	for i := range classes.Items {
		inUse = append(inUse, classes.Items[i].Value)
	}
	own := int64(priority.Priority(wl))
	for above := own + 1; above <= min(own+int64(boost.Highest), math.MaxInt32); above++ {
		has, failed := r.anyWith(ctx, strconv.FormatInt(above, 10))
		if err = errors.Join(err, failed); has {
			inUse = append(inUse, int32(above)) //nolint:gosec // it is at most MaxInt32
		}
	}
	has, failed := r.anyWith(ctx, string(kueue.PodPriorityClassKind))
	if err = errors.Join(err, failed); err != nil || !has {
		return inUse, err
	}
	var ofPods schedulingv1.PriorityClassList
	err = r.client.List(ctx, &ofPods, client.UnsafeDisableDeepCopy)
	for i := range ofPods.Items {
		inUse = append(inUse, ofPods.Items[i].Value)
	}
	return inUse, err
}

// anyWith reports whether a Workload has a value of PriorityIndex.
func (r reads) anyWith(ctx context.Context, value string) (bool, error) {
	var list kueue.WorkloadList
	err := r.client.List(ctx, &list, client.MatchingFields{PriorityIndex: value}, client.Limit(1),
		client.UnsafeDisableDeepCopy)
	return len(list.Items) > 0, err
}

// othersWait reports whether others wait for the quota of a Workload, and may preempt it for that: in its ClusterQueue
// or, if that borrows from its cohort, maybe in another. It returns nil if that isn't known.
func (r reads) othersWait(ctx context.Context, wl *kueue.Workload) *bool {
	var cq kueue.ClusterQueue
	name := string(wl.Status.Admission.ClusterQueue)
	if err := r.live.Get(ctx, client.ObjectKey{Name: name}, &cq); err != nil {
		ctrl.LoggerFrom(ctx).Info("It isn't known whether others wait for the quota of a TrainJob", "clusterQueue", name,
			"reason", err.Error())
		return nil
	}
	within := kueue.PreemptionPolicyNever
	if cq.Spec.Preemption != nil {
		within = cq.Spec.Preemption.WithinClusterQueue
	}
	return ptr.To(cq.Status.PendingWorkloads > 0 && within != kueue.PreemptionPolicyNever || borrows(&cq))
}

func borrows(cq *kueue.ClusterQueue) bool {
	return slices.ContainsFunc(cq.Status.FlavorsUsage, func(f kueue.FlavorUsage) bool {
		return slices.ContainsFunc(f.Resources, func(u kueue.ResourceUsage) bool { return u.Borrowed.Sign() > 0 })
	})
}

// runsOnQuota reports whether a Workload is one on whose quota its TrainJob runs, or is about to start, here. One that
// was evicted, or is to stop, does no more: without quota, a boost would have it jump its queue.
func runsOnQuota(o *situation, wl *kueue.Workload) bool {
	switch {
	case o.stage != stageRunning && o.stage != stageSuspended || wl != o.match() || managed.Elsewhere(o.job):
		return false
	case o.queue.blocked != nil || stoppedByUser(o.job) || deactivating(o.observed) || overdueEnd(o.observed):
		return false
	}
	return workload.IsAdmitted(wl) && wl.Status.Admission != nil && workload.IsActive(wl) &&
		!workloadevict.IsEvicted(wl) && !workloadfinish.IsFinished(wl) && wl.DeletionTimestamp.IsZero()
}

// unboost takes the boost from Workloads on whose quota nothing runs, or is to run. Those of deleted TrainJobs go with
// them.
func (p *plan) unboost(o *situation) {
	for _, wl := range o.workloads.own {
		if wl.Annotations[boost.MarkAnnotation] != "" && !runsOnQuota(o, wl) && wl.DeletionTimestamp.IsZero() {
			p.Do(unboost{wl})
			p.Later(boostRetry)
		}
	}
}

// boostRetry is after how long a boost is written or removed again that could not be; usually an event comes first.
const boostRetry = time.Minute

// boost adds what is done with the boost of a TrainJob. One that starts gets it before that.
func (p *plan) boost(o *situation, a *asked) {
	decided := o.queue.boost
	if decided == nil || a.stop != nil || o.stage != stageRunning && a.start == nil {
		return
	}
	wl := o.match()
	if decided.Narrow && (decided.Write || a.start != nil) {
		p.Do(tell{events.NoBoost.Of(boost.Highest)})
	}
	p.Later(decided.Again)
	if decided.Write {
		p.Do(setBoost{wl, decided.Mark})
		p.Later(boostRetry)
	}
}
