package gang

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// protection is the finalizer that the API server gives to PodGroups (Kubernetes 1.36, plugin/pkg/admission/scheduling).
const protection = "scheduling.k8s.io/podgroup-protection"

// patience is how long a pod that replaces a failed one waits for the rest of its gang, before it is found that the rest
// has come to its end; and for how long, and how soon, the reason is looked for why a gang is not placed.
const (
	patience = 10 * time.Second
	soon     = time.Second
)

// Keep brings the groups of a TrainJob in step with what it does. While it runs, and has a JobSet, the groups that the
// JobSet's pods name are there; all others go. It returns the condition GangScheduled (nil for none), and when to look
// again (0 for when something has changed).
func (g *Gangs) Keep(ctx context.Context, job *api.TrainJob, js *jobset.JobSet, pods []corev1.Pod, running bool) (*metav1.Condition, time.Duration, error) {
	s, err := g.api(ctx, keepEvery)
	if s == nil {
		if notServed(err) {
			err = nil // nothing can be seen, and nothing be done
		}
		return nil, 0, err
	}
	var current *plan
	if running {
		if js == nil || !js.DeletionTimestamp.IsZero() {
			return nil, 0, nil // they are being made, or are about to be
		}
		current = planOf(js)
	}
	if err := g.remove(ctx, s, job, current); err != nil || current == nil {
		return nil, 0, err
	}
	states, err := s.podGroups(ctx, job)
	if err != nil {
		return nil, 0, err
	}
	again, err := g.heal(ctx, s.version, job, current, states, pods)
	if err != nil {
		return nil, 0, err
	}
	condition, why := conditionOf(current, states, pods)
	if !why && g.clock.Since(condition.LastTransitionTime.Time) < patience && (again == 0 || soon < again) {
		again = soon // the pods' own conditions come a moment later
	}
	return condition, again, nil
}

// heal makes PodGroups again that were deleted while their TrainJob runs, and releases the gangs of late comers. again is
// when to look again, 0 for when something has changed.
func (g *Gangs) heal(ctx context.Context, v version, job *api.TrainJob, p *plan, states map[string]podGroupState, pods []corev1.Pod) (again time.Duration, err error) {
	log := ctrl.LoggerFrom(ctx).WithValues("trainJob", client.ObjectKeyFromObject(job))
	for n, group := range p.groups {
		name := p.podGroup(group)
		state, found := states[name]
		if !found {
			if _, made := g.made.Load(types.NamespacedName{Namespace: job.Namespace, Name: name}); made {
				continue
			}
			policy := p.policy
			if policy == api.GangPolicyGang && wasPlaced(name, group, pods) {
				policy = api.GangPolicyBasic
			}
			log.Info("Making a PodGroup again that was deleted while its TrainJob runs", "podGroup", name, "policy", policy)
			if err := g.create(ctx, v, job, p, n, policy); err != nil {
				return 0, err
			}
			continue
		}
		late, succeeded, wait := lateComer(state, pods, g.clock.Now())
		if wait > 0 && (again == 0 || wait < again) {
			again = wait
		}
		if !late {
			continue
		}
		if err := g.release(ctx, v, job, p, n, state); err != nil {
			return 0, err
		}
		g.recorder.Eventf(job, nil, corev1.EventTypeNormal, "GangReleased", "Running",
			"%s was placed as a whole, and %d of its pods have succeeded; a pod that replaces a failed one is placed by itself", group, succeeded)
		gangsReleased.Inc()
	}
	return again, nil
}

// release lets a pod that replaces a failed one be placed by itself, where the rest of its gang, which has been placed as
// a whole, has succeeded: kube-scheduler would wait for ever for minCount pods that are there, because it doesn't count
// those that have ended, and no field of a PodGroup can change (Kubernetes 1.36). So the PodGroup is replaced by one of
// the policy basic, with the same name. It can't be deleted but without its finalizer, which protects it as long as that
// very pod waits. Whoever is interrupted finds it missing, and makes it by the same policy (wasPlaced).
func (g *Gangs) release(ctx context.Context, v version, job *api.TrainJob, p *plan, n int, state podGroupState) error {
	o := v.emptyPodGroup()
	o.SetNamespace(job.Namespace)
	o.SetName(state.name)
	others := slices.DeleteFunc(slices.Clone(state.finalizers), func(f string) bool { return f == protection })
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": state.uid, "finalizers": others}})
	if err != nil {
		return err
	}
	if err := g.client.Patch(ctx, o, client.RawPatch(types.MergePatchType, patch)); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("releasing PodGroup %s: %w", state.name, err)
	}
	if err := g.client.Delete(ctx, o, client.Preconditions{UID: &state.uid}); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("deleting PodGroup %s: %w", state.name, err)
	}
	return g.create(ctx, v, job, p, n, api.GangPolicyBasic)
}

// wasPlaced tells whether a gang whose PodGroup is missing was placed before, and can't come together again: some of its
// pods have had a node, and fewer are left than it takes.
func wasPlaced(name string, group Group, pods []corev1.Pod) bool {
	var there int32
	placed := false
	for i := range pods {
		pod := &pods[i]
		if !isOf(pod, name) {
			continue
		}
		ended := pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
		if !ended {
			there++
		}
		placed = placed || pod.Status.Phase == corev1.PodSucceeded || !ended && pod.Spec.NodeName != ""
	}
	return placed && there < group.Pods
}

// lateComer tells whether a pod of a gang waits for others that will never come, because they have succeeded (so that the
// gang was placed once); and how many have. wait is when to look again, 0 for when something has changed.
func lateComer(state podGroupState, pods []corev1.Pod, now time.Time) (late bool, succeeded int32, wait time.Duration) {
	if state.minCount == 0 {
		return false, 0, 0
	}
	var there int32
	waits := time.Duration(-1) // of the pod that has waited for the shortest time
	for i := range pods {
		pod := &pods[i]
		if !isOf(pod, state.name) || pod.Status.Phase == corev1.PodFailed {
			continue
		}
		if pod.Status.Phase == corev1.PodSucceeded {
			succeeded++
			continue
		}
		there++
		if waited := now.Sub(pod.CreationTimestamp.Time); pod.Spec.NodeName == "" && (waits < 0 || waited < waits) {
			waits = waited
		}
	}
	switch {
	case succeeded == 0 || there >= state.minCount:
		return false, succeeded, 0 // the gang was never placed, or kube-scheduler has all that it waits for
	case there+succeeded < state.minCount:
		return false, succeeded, patience // some are still to come in the place of failed ones
	case waits < 0:
		return false, succeeded, 0 // those that are there run
	case waits < patience:
		return false, succeeded, patience - waits
	}
	return true, succeeded, 0
}

func isOf(pod *corev1.Pod, podGroup string) bool {
	s := pod.Spec.SchedulingGroup
	return s != nil && ptr.Deref(s.PodGroupName, "") == podGroup
}

// conditionOf says what has become of the groups: nil before kube-scheduler has said anything. why is false where it has
// refused a group, and no pod says yet why.
func conditionOf(p *plan, states map[string]podGroupState, pods []corev1.Pod) (condition *metav1.Condition, why bool) {
	var placed, refused, later []string
	c := &metav1.Condition{Type: api.ConditionGangScheduled, Status: metav1.ConditionTrue, Reason: "Scheduled"}
	why = true
	for _, group := range p.groups {
		state := states[p.podGroup(group)]
		switch {
		case state.refused():
			reason := reasonOf(state, pods)
			why = why && reason != ""
			refused = append(refused, fmt.Sprintf("%s can't be placed, since %s: %s",
				group, state.scheduled.LastTransitionTime.UTC().Format(time.RFC3339), cmp.Or(reason, state.scheduled.Message, state.scheduled.Reason)))
			if c.Status == metav1.ConditionTrue || state.scheduled.LastTransitionTime.Before(&c.LastTransitionTime) {
				c.Status, c.Reason, c.LastTransitionTime = metav1.ConditionFalse, state.scheduled.Reason, state.scheduled.LastTransitionTime
			}
		case state.placed():
			placed = append(placed, fmt.Sprintf("%s is placed", group))
			if c.Status == metav1.ConditionTrue && c.LastTransitionTime.Before(&state.scheduled.LastTransitionTime) {
				c.LastTransitionTime = state.scheduled.LastTransitionTime
			}
		default:
			later = append(later, fmt.Sprintf("%s comes later", group))
		}
	}
	if len(placed)+len(refused) == 0 {
		return nil, true
	}
	if len(refused) > 0 {
		placed = nil
	}
	c.Message = strings.Join(append(append(refused, placed...), later...), "; ")
	return c, why
}

// Retain copies what is to be known here of a pod into what a cache keeps of it.
func Retain(kept, pod *corev1.Pod) {
	kept.CreationTimestamp, kept.Spec.NodeName, kept.Spec.SchedulingGroup = pod.CreationTimestamp, pod.Spec.NodeName, pod.Spec.SchedulingGroup
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			kept.Status.Conditions = []corev1.PodCondition{c}
		}
	}
}

// reasonOf is what kube-scheduler says of a pod of the group that it could not place; "" where it says nothing of any. Of
// a pod that could be placed, if the others could, it says that it waits for them. Of several, the first by name counts.
func reasonOf(state podGroupState, pods []corev1.Pod) string {
	first, reason := "", ""
	for i := range pods {
		pod := &pods[i]
		if !isOf(pod, state.name) || reason != "" && pod.Name > first {
			continue
		}
		for _, c := range pod.Status.Conditions {
			if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && c.Message != "" && !strings.Contains(c.Message, "minCount pods from a gang") {
				first, reason = pod.Name, c.Message
			}
		}
	}
	return reason
}
