package gang

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/store"
)

// reasonPodsMissing of the condition GangScheduled: pods of a gang that was placed are gone.
const reasonPodsMissing = "PodsMissing"

// messageInterval is how often the pods' own messages are read; they follow the PodGroup's condition.
const messageInterval = time.Second

// placement is how the pods of one group are placed.
type placement struct {
	status  metav1.ConditionStatus
	reason  string
	since   metav1.Time
	message string
	// unexplained is since when a pod could say more, and doesn't yet; zero for never.
	unexplained metav1.Time
}

// recheck is after how long to look at the pods again, which have no events of their own; 0 to wait for a change.
func (p *placement) recheck(now time.Time) time.Duration {
	switch {
	case now.Sub(p.unexplained.Time) < patience:
		return messageInterval
	case p.status == metav1.ConditionUnknown:
		return patience // the scheduling gates may be opened at any time
	}
	return 0
}

// placementOf returns how a group is placed; nil before kube-scheduler has tried, and Unknown before it has tried all
// pods: without those that had scheduling gates it refuses the group for their number.
func placementOf(group Group, state podGroupState, g *Groups) *placement {
	pods := g.pods[state.name]
	switch {
	case state.refused() && slices.ContainsFunc(pods, untried):
		return &placement{status: metav1.ConditionUnknown, unexplained: state.scheduled.LastTransitionTime}
	case state.refused():
		p := &placement{status: metav1.ConditionFalse, reason: state.scheduled.Reason,
			since: state.scheduled.LastTransitionTime}
		p.explain(group.String()+" can't be placed", messageOf(pods),
			cmp.Or(state.scheduled.Message, state.scheduled.Reason))
		return p
	case !state.placed():
		return nil
	}
	// The PodGroup's condition stays true, whatever becomes of the pods that were placed.
	if p := preemptedOf(group, pods); p != nil {
		return p
	}
	p := againOf(group, state.scheduled.LastTransitionTime, pods)
	if p.status == metav1.ConditionTrue {
		p.miss(group, pods, g)
	}
	return p
}

// explain sets the message: what happened since when, and why, which is general until a pod says it.
func (p *placement) explain(what, why, general string) {
	if why == "" {
		p.unexplained = p.since
	}
	p.message = fmt.Sprintf("%s, since %s: %s", what, p.since.UTC().Format(time.RFC3339), cmp.Or(why, general))
}

// preemptedOf returns the placement of a group of whose pods kube-scheduler takes some away for others; nil for none.
func preemptedOf(group Group, pods []*corev1.Pod) *placement {
	var p *placement
	for _, pod := range pods {
		for _, c := range pod.Status.Conditions {
			if preempted(c) && (p == nil || c.LastTransitionTime.Before(&p.since)) {
				p = &placement{status: metav1.ConditionFalse, reason: c.Reason, since: c.LastTransitionTime}
				p.explain(group.String()+" is preempted by kube-scheduler", cmp.Or(c.Message, c.Reason), "")
			}
		}
	}
	return p
}

// againOf returns the placement of a group that was placed. New pods of it that aren't have come for others that were
// preempted, evicted or have failed.
func againOf(group Group, placed metav1.Time, pods []*corev1.Pod) *placement {
	p := &placement{status: metav1.ConditionTrue, since: placed, message: fmt.Sprintf("%s is placed", group)}
	var refused, youngest metav1.Time // refused is when the oldest was created that can't be placed
	for _, pod := range pods {
		created := pod.CreationTimestamp
		if pod.Spec.NodeName != "" || !placed.Before(&created) {
			continue
		}
		if youngest.Before(&created) {
			youngest = created
		}
		if slices.ContainsFunc(pod.Status.Conditions, unscheduled) && (refused.IsZero() || created.Before(&refused)) {
			refused = created
		}
	}
	if !refused.IsZero() {
		p.status, p.reason, p.since = metav1.ConditionFalse, corev1.PodReasonUnschedulable, refused
		p.explain(fmt.Sprintf("%s was placed, and new pods of it can't be", group), messageOf(pods),
			"they wait for the rest of the gang")
	}
	p.unexplained = youngest // there may be more to come
	return p
}

// miss makes p the placement of a group that was placed and of whose pods some are gone, with none in their place yet.
// The Job controller waits longer the more pods have failed, and counts those that a podFailurePolicy ignores: a gang
// of eight that was preempted comes again after 10 min (Kubernetes 1.37, backoff_utils.go). For a while after the
// placement, pods that are not seen may be ones that the cache doesn't show yet.
func (p *placement) miss(group Group, pods []*corev1.Pod, g *Groups) {
	counted := countPods(pods, g.now)
	missing := group.Pods - counted.present - counted.succeeded
	switch {
	case missing <= 0 || g.done(group):
		return
	case g.now.Sub(p.since.Time) < patience:
		p.unexplained = p.since
		return
	}
	p.status, p.reason, p.since = metav1.ConditionFalse, reasonPodsMissing, metav1.NewTime(g.now)
	what := "was placed"
	before := g.job.Status.Condition(api.ConditionGangScheduled)
	if before != nil && before.Reason == corev1.PodReasonPreemptionByScheduler {
		p.reason, what = before.Reason, "was preempted by kube-scheduler"
	}
	p.message = fmt.Sprintf("%s %s, and %d of its pods are gone; the Job controller creates others, up to 10 min after "+
		"they failed", group, what, missing)
}

// done reports whether all Jobs of a group have succeeded. Their pods may have been deleted.
func (g *Groups) done(group Group) bool {
	return !slices.ContainsFunc(g.jobSet.Spec.ReplicatedJobs, func(rj jobset.ReplicatedJob) bool {
		succeeded := func(s jobset.ReplicatedJobStatus) bool { return s.Name == rj.Name && s.Succeeded >= rj.Replicas }
		return slices.Contains(group.ReplicatedJobs, rj.Name) &&
			!slices.ContainsFunc(g.jobSet.Status.ReplicatedJobsStatus, succeeded)
	})
}

// Outlook is how the groups of a TrainJob are placed, and what Keep does about it.
type Outlook struct {
	// Condition is GangScheduled; nil before kube-scheduler has tried any group, and for a TrainJob that doesn't run.
	Condition *metav1.Condition
	// Again is after how long to observe the groups again; 0 to wait for a change.
	Again time.Duration

	groups *Groups
	// refused are the names of the PodGroups that can't be placed.
	refused []string
	// due are the groups to release, by their number.
	due map[int]gangPods
}

// outlookOf returns how the gangs of a TrainJob are placed.
func outlookOf(g *Groups) Outlook {
	o := Outlook{groups: g, due: map[int]gangPods{}}
	var placed, refused, later []string
	c := &metav1.Condition{Type: api.ConditionGangScheduled, Status: metav1.ConditionTrue, Reason: "Scheduled"}
	for _, group := range g.plan.groups {
		of := placementOf(group, g.states[g.plan.podGroup(group)], g)
		if of != nil {
			o.Again = sooner(o.Again, of.recheck(g.now))
		}
		switch {
		case of == nil || of.status == metav1.ConditionUnknown:
			later = append(later, fmt.Sprintf("%s comes later", group))
		case of.status == metav1.ConditionFalse:
			refused, o.refused = append(refused, of.message), append(o.refused, g.plan.podGroup(group))
			if c.Status == metav1.ConditionTrue || of.since.Before(&c.LastTransitionTime) {
				c.Status, c.Reason, c.LastTransitionTime = of.status, of.reason, of.since
			}
		default:
			placed = append(placed, of.message)
			if c.Status == metav1.ConditionTrue && c.LastTransitionTime.Before(&of.since) {
				c.LastTransitionTime = of.since
			}
		}
	}
	if len(placed)+len(refused) == 0 {
		return o
	}
	if len(refused) > 0 {
		placed = nil
	}
	c.Message = strings.Join(append(append(refused, placed...), later...), "; ")
	o.Condition = c
	return o
}

// sooner returns the shorter of two times to call again, where 0 is to wait for a change.
func sooner(a, b time.Duration) time.Duration {
	if a == 0 || b == 0 {
		return max(a, b)
	}
	return min(a, b)
}

// waitsForOthers are parts of kube-scheduler's messages about pods that could be placed, but for the rest of their
// gang: Kubernetes 1.36 and 1.37 (errPodGroupUnschedulable).
var waitsForOthers = []string{"minCount pods from a gang", "pod group is unschedulable"}

// messageOf returns kube-scheduler's message about a pod of a group that it could not place; "" if there is none. Of
// several, it is that of the first pod by name. It ignores the message of pods that wait only for the rest of their
// gang.
func messageOf(pods []*corev1.Pod) string {
	first, message := "", ""
	for _, pod := range pods {
		if message != "" && pod.Name > first {
			continue
		}
		for _, c := range pod.Status.Conditions {
			waits := func(part string) bool { return strings.Contains(c.Message, part) }
			if unscheduled(c) && c.Message != "" && !slices.ContainsFunc(waitsForOthers, waits) {
				first, message = pod.Name, c.Message
			}
		}
	}
	return message
}

// unscheduled reports whether a pod's condition is that kube-scheduler could not place it.
func unscheduled(c corev1.PodCondition) bool {
	return c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && !gated(c)
}

// gated reports whether a pod's condition is that it has scheduling gates, such as Kueue's for a topology. The API
// server sets it, and it stays until kube-scheduler tries the pod without them.
func gated(c corev1.PodCondition) bool {
	return c.Type == corev1.PodScheduled && c.Reason == corev1.PodReasonSchedulingGated
}

// untried reports whether a pod has or had scheduling gates, and kube-scheduler has not tried it yet.
func untried(pod *corev1.Pod) bool {
	return !store.PodEnded(pod) && slices.ContainsFunc(pod.Status.Conditions, gated)
}

// preempted reports whether a pod's condition is that kube-scheduler takes its place for another.
func preempted(c corev1.PodCondition) bool {
	return c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue &&
		c.Reason == corev1.PodReasonPreemptionByScheduler
}

// Retain copies the fields of pod that Keep reads to kept, which a cache stores in its place.
func Retain(kept, pod *corev1.Pod) {
	kept.CreationTimestamp = pod.CreationTimestamp
	kept.Spec.NodeName, kept.Spec.SchedulingGroup = pod.Spec.NodeName, pod.Spec.SchedulingGroup
	for _, c := range pod.Status.Conditions {
		if unscheduled(c) || gated(c) || preempted(c) {
			kept.Status.Conditions = append(kept.Status.Conditions, c)
		}
	}
}
