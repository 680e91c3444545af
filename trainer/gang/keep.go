package gang

import (
	"context"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/store/events"
)

// Outlook returns how the groups of a TrainJob are placed, and which are to be released.
func (g *Groups) Outlook() Outlook {
	if g == nil || g.plan == nil {
		return Outlook{groups: g}
	}
	o := outlookOf(g)
	for n, group := range g.plan.groups {
		name := g.plan.podGroup(group)
		if counted, exists := g.counted[name]; exists {
			due, wait := releaseDue(g.states[name], group.Pods, counted)
			o.Again = sooner(o.Again, wait)
			if due {
				o.due[n] = counted
			}
		}
	}
	return o
}

// Keep deletes the objects that the present start of a TrainJob doesn't need, creates PodGroups again that were deleted
// while it runs, and releases gangs that can't be placed again.
func (g *Gangs) Keep(ctx context.Context, o Outlook) error {
	seen := o.groups
	if seen == nil {
		return nil
	}
	if err := g.deleteExcept(ctx, seen); err != nil || seen.plan == nil {
		return err
	}
	for name := range seen.states {
		g.unplaced.set(types.NamespacedName{Namespace: seen.job.Namespace, Name: name}, slices.Contains(o.refused, name))
	}
	objects := &groupObjects{Gangs: g, version: seen.version, job: seen.job, plan: seen.plan}
	for n, group := range seen.plan.groups {
		name := seen.plan.podGroup(group)
		state, found := seen.states[name]
		if !found {
			if err := objects.restore(ctx, n, countPods(seen.pods[name], seen.now)); err != nil {
				return err
			}
			continue
		}
		counted, due := o.due[n]
		if !due {
			continue
		}
		if err := objects.release(ctx, n, state, counted.present); err != nil {
			return err
		}
		g.recorder.Send(seen.job, events.GangReleased.Of(group, counted.succeeded))
		gangsReleased.Inc()
	}
	return nil
}

// deleteExcept deletes the TrainJob's objects that its plan doesn't have, in their order.
func (g *Gangs) deleteExcept(ctx context.Context, seen *Groups) error {
	for _, o := range seen.objects {
		uid := o.GetUID()
		_, deleted := g.deleted.Load(uid)
		if deleted || seen.plan.has(o.GetName()) || !o.GetDeletionTimestamp().IsZero() {
			continue
		}
		err := g.config.Client.Delete(ctx, o, client.Preconditions{UID: &uid})
		if client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("deleting %s: %w", o.GetName(), err)
		}
		g.deleted.Store(uid, nil)
	}
	return nil
}

// restore creates the nth group's PodGroup unless this process has created it and the cache is stale.
func (o *groupObjects) restore(ctx context.Context, n int, pods gangPods) error {
	group := o.plan.groups[n]
	name := o.plan.podGroup(group)
	if _, created := o.created.Load(types.NamespacedName{Namespace: o.job.Namespace, Name: name}); created {
		return nil
	}
	policy := o.plan.policy
	if policy == api.GangPolicyGang && pods.wasPlaced(group.Pods) {
		policy = api.GangPolicyBasic
	}
	ctrl.LoggerFrom(ctx).Info("Creating a PodGroup again that was deleted while its TrainJob runs",
		"trainJob", client.ObjectKeyFromObject(o.job), "podGroup", name, "policy", policy)
	return o.create(ctx, n, policy)
}
