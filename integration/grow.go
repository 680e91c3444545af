package integration

import (
	"context"
	"errors"
	"fmt"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/controller/jobframework"
	"sigs.k8s.io/kueue/pkg/util/podset"
	"sigs.k8s.io/kueue/pkg/workload"
	workloadfinish "sigs.k8s.io/kueue/pkg/workload/finish"
	"sigs.k8s.io/kueue/pkg/workloadslicing"

	"github.com/signalbox-dev/signalbox/admission/checkpoint"
	"github.com/signalbox-dev/signalbox/admission/grow"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/integration/managed"
	"github.com/signalbox-dev/signalbox/overrides"
	"github.com/signalbox-dev/signalbox/podsets"
	"github.com/signalbox-dev/signalbox/store/events"
)

// resolveGrowth decides whether a running TrainJob grows. What can't be read changes nothing: nobody waits for it.
func (r *resolver) resolveGrowth(ctx context.Context, o *situation) {
	wl := o.match()
	if wl == nil || o.stage != stageRunning || !runsOnQuota(o, wl) {
		return
	}
	switch {
	case podsets.SliceOf(wl) != nil && grow.Outgrown(wl, overrides.AdmittedNodes(o.entry)):
		o.queue.restarts = !holdQuota(o.workloads.aside) // else what it grows from isn't finished yet
		if o.ready() {
			within := checkpoint.Within(o.job, r.policy.CheckpointWithin)
			o.queue.awaits = grow.Awaited(wl, checkpoint.Saved(o.job, o.jobSet, o.now), within, o.now)
		}
	case r.policy.Grow.On() && growsHere(o) && len(o.workloads.aside) == 0 && o.ready():
		r.mayGrow(ctx, o, wl)
	}
}

// mayGrow decides whether a TrainJob grows that asks for it.
func (r *resolver) mayGrow(ctx context.Context, o *situation, wl *kueue.Workload) {
	answer := r.policy.Grow.May(grow.Input{
		Job: o.job, Workload: wl, Saved: checkpoint.Saved(o.job, o.jobSet, o.now), Started: startedAt(o.observed),
		Now: o.now,
	})
	o.neverGrows(answer.Never)
	left := r.policy.Grow.Asks() - o.now.Sub(o.memory.roomAsked)
	switch {
	case answer.Want == nil:
		o.queue.later(answer.Again)
	case left > 0:
		o.queue.later(left)
	default:
		o.memory.roomAsked = o.now
		o.queue.later(answer.Again)
		err := r.findRoom(ctx, o, wl, answer.Want)
		if errors.Is(err, ErrRoomBusy) {
			o.memory.roomAsked = o.now.Add(busyFor - r.policy.Grow.Asks())
			o.queue.later(busyFor)
			return
		}
		if err != nil {
			ctrl.LoggerFrom(ctx).Info("It isn't known whether there is room for more nodes", "reason", err.Error())
		}
	}
}

// busyFor is after how long a Room is asked again that answers another TrainJob.
const busyFor = 5 * time.Second

// growsHere reports whether a TrainJob asks to grow, and may by what it is. One of two clusters may not: Kueue compares
// the Workloads of both. Nor may one with a Workload of others.
func growsHere(o *situation) bool {
	return o.job.Annotations[api.GrowAnnotation] == "true" && !managed.Elsewhere(o.job) &&
		o.job.Labels[kueue.MultiKueueOriginLabel] == "" && jobframework.PrebuiltWorkloadNameFor(o.job) == ""
}

// neverGrows notes why a TrainJob doesn't grow, once.
func (o *situation) neverGrows(why string) {
	if why != "" && why != o.memory.neverTold {
		o.queue.never, o.memory.neverTold = why, why
	}
}

// findRoom finds out whether there is room for more nodes, and notes the slice for them.
func (r *resolver) findRoom(ctx context.Context, o *situation, wl *kueue.Workload, want *grow.Want) error {
	var cq kueue.ClusterQueue
	name := string(wl.Status.Admission.ClusterQueue)
	if err := r.live.Get(ctx, client.ObjectKey{Name: name}, &cq); err != nil {
		return fmt.Errorf("reading ClusterQueue %s: %w", name, err)
	}
	if never := grow.Suits(&cq); never != "" {
		o.neverGrows(never)
		return nil
	}
	most := want.Free(&cq, wl)
	if most < want.Least {
		return nil
	}
	more, err := r.morePods(ctx, o, want, most-want.Have)
	if most = want.Have + more; err != nil || most < want.Least {
		return err
	}
	guard, policy := r.policy.Grow.Guard, &admissionregistrationv1.ValidatingAdmissionPolicy{}
	if err := r.live.Get(ctx, client.ObjectKey{Name: guard}, policy); err != nil {
		return fmt.Errorf("reading ValidatingAdmissionPolicy %s, without which others might be preempted: %w", guard, err)
	}
	slice := want.Slice(wl, most, overrides.AdmittedNodes(o.entry))
	// There is one name for what replaces a Workload, so that there is one slice.
	slice.Name = jobframework.GenerateWorkloadNameWithExtra(o.job.Name, o.job.UID, managed.Kind, wl.Name)
	count, err := r.policy.Grow.Room.Most(ctx, slice, want.PodSet, want.Least)
	if err != nil || count == 0 {
		return err
	}
	slice.Spec.PodSets = podsets.WithCount(slice.Spec.PodSets, want.PodSet, count)
	o.queue.slice = slice
	return nil
}

// morePods returns how many further pods the TrainJob's namespace takes, at most so many. Those that it refuses would
// cost the TrainJob its quota when it is started with them.
func (r *resolver) morePods(ctx context.Context, o *situation, want *grow.Want, most int32) (int32, error) {
	for i := range o.jobSet.Spec.ReplicatedJobs {
		if rj := &o.jobSet.Spec.ReplicatedJobs[i]; kueue.NewPodSetReference(rj.Name) == want.PodSet {
			return r.placement.MorePods(ctx, o.job, rj, most)
		}
	}
	return 0, nil
}

// grow adds what is done with a running TrainJob that grows, or may.
func (p *plan) grow(o *situation, a *asked) {
	if o.stage != stageRunning || a.stop != nil {
		return
	}
	q := &o.queue
	if q.never != "" {
		p.Do(tell{events.NotGrown.Of(q.never)})
	}
	if q.slice != nil {
		p.Do(createSlice{q.slice})
		p.Later(grow.Waits(q.slice, o.now))
	}
	switch {
	case !q.restarts:
	case o.now.Before(q.awaits):
		p.Later(min(q.awaits.Sub(o.now), awaitsRecheck))
	default:
		p.Do(stop{suspend{reason: "it grows"}, ptr.To(events.Grows.Of(grownTo(o.match())))})
	}
}

// grownTo returns the pods that a slice has more of, for messages.
func grownTo(wl *kueue.Workload) string {
	slice := podsets.SliceOf(wl)
	return fmt.Sprintf("%d of %d pods of %s", podset.FindPodSetByName(wl.Spec.PodSets, slice.PodSet).Count, slice.Of,
		slice.PodSet)
}

// setAside adds what is done with the Workloads of a TrainJob that don't stand for it. What Kueue has finished, or may
// not admit any more, is deleted. What Kueue was to finish when it admitted the slice, and didn't, is finished here.
func (p *plan) setAside(o *situation) {
	holder := holderOf(o.workloads.own)
	if holder != nil && podsets.SliceOf(holder) != nil && !podsets.Finalized(holder) && holder.DeletionTimestamp.IsZero() {
		p.Do(finalize{holder}) // it was to be withdrawn when Kueue admitted it
	}
	for _, wl := range o.workloads.aside {
		if podsets.Replaced(wl) && (o.now.Before(o.queue.awaits) || deactivating(o.observed)) {
			continue // its use is recorded before it is deleted, and what is saved next is of it, too
		}
		if !podsets.HoldsQuota(wl) {
			if left := mayBeAdmitted(o, holder, wl); left > 0 {
				p.Later(left)
			} else {
				p.Do(withdraw{wl})
				p.Later(recheckDelay)
			}
			continue
		}
		if left := grow.Replaces(holder, o.now); left > 0 {
			p.Later(left)
			continue
		}
		p.Do(finishWorkload{wl, kueue.WorkloadSliceReplaced, "Replaced by Workload " + holder.Name})
	}
}

// mayBeAdmitted returns for how long a slice may wait to replace the Workload that its TrainJob runs on; 0 if it is to
// be deleted. Without what it replaces, Kueue would take it for a Workload of its own.
func mayBeAdmitted(o *situation, holder, slice *kueue.Workload) time.Duration {
	replaces := workloadslicing.ReplacementForKey(slice)
	if holder == nil || workloadfinish.IsFinished(slice) || replaces == nil || *replaces != workload.Key(holder) ||
		o.stage != stageRunning || !growsHere(o) || !runsOnQuota(o, holder) {
		return 0
	}
	return grow.Waits(slice, o.now)
}
