package gang

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// conditionOf returns the condition GangScheduled; nil before kube-scheduler has tried any group. explained is false if
// kube-scheduler has refused a group and none of its pods has a message yet.
func conditionOf(p *plan, states map[string]podGroupState, pods []corev1.Pod) (
	condition *metav1.Condition, explained bool) {
	var placed, refused, later []string
	c := &metav1.Condition{Type: api.ConditionGangScheduled, Status: metav1.ConditionTrue, Reason: "Scheduled"}
	explained = true
	for _, group := range p.groups {
		state := states[p.podGroup(group)]
		switch {
		case state.refused():
			reason := messageOf(state, pods)
			explained = explained && reason != ""
			refused = append(refused, fmt.Sprintf("%s can't be placed, since %s: %s", group,
				state.scheduled.LastTransitionTime.UTC().Format(time.RFC3339),
				cmp.Or(reason, state.scheduled.Message, state.scheduled.Reason)))
			since := state.scheduled.LastTransitionTime
			if c.Status == metav1.ConditionTrue || since.Before(&c.LastTransitionTime) {
				c.Status, c.Reason, c.LastTransitionTime = metav1.ConditionFalse, state.scheduled.Reason, since
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
	return c, explained
}

// messageOf returns kube-scheduler's message about a pod of the group that it could not place; "" if there is none. Of
// several, it is that of the first pod by name. It ignores the message of pods that wait only for the rest of their
// gang.
func messageOf(state podGroupState, pods []corev1.Pod) string {
	const waitsForOthers = "minCount pods from a gang"
	first, message := "", ""
	for i := range pods {
		pod := &pods[i]
		if !isOf(pod, state.name) || message != "" && pod.Name > first {
			continue
		}
		for _, c := range pod.Status.Conditions {
			if unscheduled(c) && c.Message != "" && !strings.Contains(c.Message, waitsForOthers) {
				first, message = pod.Name, c.Message
			}
		}
	}
	return message
}

// unscheduled reports whether a pod's condition is that kube-scheduler could not place it.
func unscheduled(c corev1.PodCondition) bool {
	return c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse
}

// Retain copies the fields of pod that Keep reads to kept, which a cache stores in its place.
func Retain(kept, pod *corev1.Pod) {
	kept.CreationTimestamp = pod.CreationTimestamp
	kept.Spec.NodeName, kept.Spec.SchedulingGroup = pod.Spec.NodeName, pod.Spec.SchedulingGroup
	for _, c := range pod.Status.Conditions {
		if unscheduled(c) {
			kept.Status.Conditions = []corev1.PodCondition{c}
		}
	}
}
