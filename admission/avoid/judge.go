package avoid

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// doubts is how many nodes of a TrainJob are remembered for what may be the program's own failure. If it fails so on
// another node, too, it is the program's.
const doubts = 2

// Blame returns the nodes that the pods of a TrainJob's JobSet show to be broken and that it doesn't avoid yet. marked
// are those of its pods with a Mark, all are all that the JobSet has.
func (p Policy) Blame(marked, all []corev1.Pod, known []api.AvoidedNode, now time.Time) (blamed []api.AvoidedNode) {
	for i := range marked {
		pod := &marked[i]
		reason, message := MarkOf(pod)
		ran, alone := others(pod, all)
		switch {
		case reason == NotStarted && alone:
			reason = NotStartedAlone
		case (reason == NotStarted || reason == FailedEarly) && !ran:
			continue // it may be all of them
		}
		if reason == "" || p.blamedBefore(pod, known, now) || doubtful(reason, pod, append(blamed, known...)) {
			continue
		}
		blamed = slices.DeleteFunc(blamed, func(n api.AvoidedNode) bool { return n.Name == pod.Spec.NodeName })
		blamed = append(blamed, api.AvoidedNode{
			Name: pod.Spec.NodeName, Reason: reason, Message: message, Pod: pod.Name, Time: metav1.NewTime(now),
		})
	}
	return blamed
}

// others reports whether another pod of the step has started, and whether there is none. Another step, an initializer
// for example, has another program and another image.
func others(pod *corev1.Pod, all []corev1.Pod) (ran, alone bool) {
	alone = true
	for i := range all {
		other := &all[i]
		if other.UID == pod.UID || other.Labels[jobset.ReplicatedJobNameKey] != pod.Labels[jobset.ReplicatedJobNameKey] {
			continue
		}
		alone = false
		if reason, _ := MarkOf(other); reason == "" &&
			(other.Status.Phase == corev1.PodRunning || other.Status.Phase == corev1.PodSucceeded) {
			return true, false
		}
	}
	return false, alone
}

// blamedBefore reports whether a node is avoided already, or was for the same pod. In the second half of its time,
// another pod has it avoided for longer.
func (p Policy) blamedBefore(pod *corev1.Pod, known []api.AvoidedNode, now time.Time) bool {
	return slices.ContainsFunc(known, func(n api.AvoidedNode) bool {
		return n.Name == pod.Spec.NodeName &&
			(n.Pod == pod.Name || n.Time.Sub(now) <= skew && now.Sub(n.Time.Time) < p.For/2)
	})
}

// doubtful reports whether something is likely to be the program's own failure.
func doubtful(reason string, pod *corev1.Pod, known []api.AvoidedNode) bool {
	if reason != FailedEarly && reason != NotStartedAlone {
		return false
	}
	before := 0
	for _, n := range known {
		if n.Reason == reason && n.Name != pod.Spec.NodeName {
			before++
		}
	}
	return before >= doubts
}

// Restarts reports whether a TrainJob is restarted at once for a node: its pod didn't run there, or has failed. One
// that was lost may be replaced.
func Restarts(n api.AvoidedNode) bool { return n.Reason != Lost }

// Remember returns what a TrainJob remembers with what is blamed now. It changes nothing if nothing is: what has
// expired isn't worth a write.
func (p Policy) Remember(known, blamed []api.AvoidedNode, now time.Time) []api.AvoidedNode {
	if len(blamed) == 0 {
		return known
	}
	kept := slices.DeleteFunc(slices.Clone(known), func(n api.AvoidedNode) bool {
		again := slices.ContainsFunc(blamed, func(b api.AvoidedNode) bool { return b.Name == n.Name })
		return again || !p.counts(n, now)
	})
	kept = append(kept, blamed...)
	return kept[max(0, len(kept)-p.AtMost):]
}
