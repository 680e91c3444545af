package gang

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/store/events"
)

// Keep reconciles the groups of a TrainJob. While the TrainJob runs and has a JobSet, it creates the PodGroups that the
// JobSet's pods name and that don't exist; it deletes all others. It returns the condition GangScheduled (nil for
// none), and after how long to call it again (0 to wait for a change).
func (g *Gangs) Keep(ctx context.Context, job *api.TrainJob, js *jobset.JobSet, pods []corev1.Pod, running bool) (
	*metav1.Condition, time.Duration, error) {
	s, err := g.prober.existing(ctx)
	if err != nil || s == nil {
		return nil, 0, err
	}
	var current *plan
	if running {
		if js == nil || !js.DeletionTimestamp.IsZero() {
			return nil, 0, nil // a start creates the groups before their JobSet
		}
		current = planOf(js)
	}
	if err := g.deleteExcept(ctx, s, job, current); err != nil || current == nil {
		return nil, 0, err
	}
	states, err := s.podGroups(ctx, job)
	if err != nil {
		return nil, 0, err
	}
	objects := &groupObjects{writer: g.writer(), version: s.version, job: job, plan: current}
	recheck, err := g.heal(ctx, objects, js, states, pods)
	if err != nil {
		return nil, 0, err
	}
	out := outlookOf(current, seen{
		states: states, pods: pods, done: doneOf(js), now: g.config.Clock.Now(),
		before: job.Status.Condition(api.ConditionGangScheduled),
	})
	for name := range states {
		g.unplaced.set(types.NamespacedName{Namespace: job.Namespace, Name: name}, slices.Contains(out.refused, name))
	}
	return out.condition, sooner(recheck, out.recheck), nil
}

// deleteExcept deletes the TrainJob's objects that are not in keep. It deletes PodGroups first: the garbage collector
// would log an error about a PodGroup without its Workload.
func (g *Gangs) deleteExcept(ctx context.Context, s *served, job *api.TrainJob, keep *plan) error {
	workloads := &metav1.PartialObjectMetadataList{}
	workloads.SetGroupVersionKind(s.version.groupVersion().WithKind("WorkloadList"))
	for _, list := range []client.ObjectList{s.version.podGroups(), workloads} {
		err := s.each(ctx, job, list, func(o client.Object) error {
			uid := o.GetUID()
			_, deleted := g.deleted.Load(uid)
			if deleted || keep.has(o.GetName()) || !o.GetDeletionTimestamp().IsZero() {
				return nil
			}
			err := g.config.Client.Delete(ctx, o, client.Preconditions{UID: &uid})
			if client.IgnoreNotFound(err) != nil {
				return fmt.Errorf("deleting %s: %w", o.GetName(), err)
			}
			g.deleted.Store(uid, nil)
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// heal creates PodGroups again that were deleted while their TrainJob runs, and releases gangs that can't be placed
// again. recheck is after how long to call it again, 0 to wait for a change.
func (g *Gangs) heal(
	ctx context.Context, o *groupObjects, js *jobset.JobSet, states map[string]podGroupState, pods []corev1.Pod,
) (recheck time.Duration, err error) {
	for n, group := range o.plan.groups {
		state, found := states[o.plan.podGroup(group)]
		if !found {
			if err := o.restore(ctx, n, pods); err != nil {
				return 0, err
			}
			continue
		}
		counted := countPods(state.name, pods, g.config.Clock.Now())
		if counted.lacks(state, group.Pods) {
			succeeded, err := o.succeeded(ctx, js, group)
			if err != nil {
				return 0, err
			}
			counted.succeeded = max(counted.succeeded, succeeded)
		}
		due, wait := releaseDue(state, group.Pods, counted)
		recheck = sooner(recheck, wait)
		if !due {
			continue
		}
		if err := o.release(ctx, n, state, counted.present); err != nil {
			return 0, err
		}
		g.recorder.Send(o.job, events.GangReleased.Of(group, counted.succeeded))
		gangsReleased.Inc()
	}
	return recheck, nil
}

// restore creates the nth group's PodGroup unless this process has created it and the cache is stale.
func (o *groupObjects) restore(ctx context.Context, n int, pods []corev1.Pod) error {
	group := o.plan.groups[n]
	name := o.plan.podGroup(group)
	if _, created := o.created.Load(types.NamespacedName{Namespace: o.job.Namespace, Name: name}); created {
		return nil
	}
	policy := o.plan.policy
	if policy == api.GangPolicyGang && wasPlaced(name, group, pods) {
		policy = api.GangPolicyBasic
	}
	ctrl.LoggerFrom(ctx).Info("Creating a PodGroup again that was deleted while its TrainJob runs",
		"trainJob", client.ObjectKeyFromObject(o.job), "podGroup", name, "policy", policy)
	return o.create(ctx, n, policy)
}
