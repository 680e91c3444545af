package integration

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/workload"
	workloadfinish "sigs.k8s.io/kueue/pkg/workload/finish"

	"github.com/signalbox-dev/signalbox/admission"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/integration/managed"
)

// resolve decides what an observed TrainJob is queued for, and whether a started one goes on. What depends on such a
// decision and needs a request is asked for then: whether its namespace takes what it needs, what its start is decided
// on, and why it has no pods.
func (r *resolver) resolve(ctx context.Context, o *situation) error {
	if err := r.resolveStage(ctx, o); err != nil {
		return err
	}
	r.resolveBoost(ctx, o)
	r.resolveGrowth(ctx, o)
	r.resolveFreed(ctx, o)
	return nil
}

func (r *resolver) resolveStage(ctx context.Context, o *situation) error {
	switch {
	case o.standing == managed.Owned:
		return nil
	case o.stage == stageRunning:
		return r.goesOn(ctx, o)
	case o.stage == stageSuspended && o.standing == managed.Queued:
		return r.queue(ctx, o)
	}
	return nil
}

// queue decides what a suspended TrainJob is queued for. That it can't be queued is a result.
func (r *resolver) queue(ctx context.Context, o *situation) error {
	err := r.decideQueue(o)
	if err == nil {
		err = o.trainer.startable(ctx, r.reads, o.observed)
	}
	if pending := (*admission.PendingError)(nil); errors.As(err, &pending) {
		err = pendingAt(o, pending)
	}
	if errors.As(err, &o.queue.blocked) {
		return nil
	}
	if err != nil {
		return err
	}
	wl := o.match()
	if wl == nil || !workload.IsAdmitted(wl) || !workload.IsActive(wl) || workloadfinish.IsFinished(wl) {
		return nil
	}
	return r.probeStart(ctx, o, wl)
}

// pendingAt returns what follows for a TrainJob of which it isn't known whether it can start. One that has a Workload
// was queued by an earlier answer: it isn't kept from running, or from being stopped. One that has waited longer than
// an answer takes is blocked, so that its user reads why.
func pendingAt(o *situation, pending *admission.PendingError) error {
	if len(o.workloads.own) > 0 {
		o.queue.again = pending.RetryAfter
		return nil
	}
	if o.now.Sub(o.job.CreationTimestamp.Time) < pendingFor {
		return pending
	}
	err := pending.Err
	c := apimeta.FindStatusCondition(o.job.Status.Conditions, api.ConditionBlocked)
	if c != nil && c.Reason == ReasonUnverified {
		err = errors.New(c.Message) // texts of network errors vary, and one write is enough
	}
	return &admission.BlockedError{Reason: ReasonUnverified, RetryAfter: pending.RetryAfter, Err: err}
}

// probeStart reads what the start of an admitted TrainJob is decided on.
func (r *resolver) probeStart(ctx context.Context, o *situation, wl *kueue.Workload) error {
	facts := &startFacts{flavors: map[kueue.ResourceFlavorReference]kueue.ResourceFlavorSpec{}}
	o.queue.start = facts
	counting, err := r.counting(ctx, wl.Namespace, o.queue.podSets)
	if err != nil {
		return err
	}
	uncounted, err := admission.Covers(o.asPartial(wl), o.queue.podSets, o.reclaimable(), counting)
	if errors.As(err, &facts.mismatch) {
		return nil
	}
	if err != nil {
		return err
	}
	if len(uncounted) > 0 {
		var cq kueue.ClusterQueue
		name := string(wl.Status.Admission.ClusterQueue)
		if err := r.live.Get(ctx, client.ObjectKey{Name: name}, &cq); err != nil {
			return fmt.Errorf("reading ClusterQueue %s: %w", name, err)
		}
		if err := admission.Uncovered(&cq, uncounted); errors.As(err, &facts.mismatch) {
			return nil
		}
	}
	for _, assignment := range wl.Status.Admission.PodSetAssignments {
		for _, name := range assignment.Flavors {
			var flavor kueue.ResourceFlavor
			err := r.client.Get(ctx, client.ObjectKey{Name: string(name)}, &flavor)
			if err != nil && !apierrors.IsNotFound(err) {
				return fmt.Errorf("reading ResourceFlavor %s: %w", name, err)
			}
			if err == nil {
				facts.flavors[name] = flavor.Spec // the decision names one that is missing
			}
		}
	}
	facts.jobs, err = o.trainer.startJobs(ctx, r.reads, o.observed)
	return err
}
