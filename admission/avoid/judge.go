package avoid

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// doubts is how many nodes of a TrainJob are remembered for what may be the program's own failure. If it fails so on
// another node, too, it is the program's.
const doubts = 2

// Blame returns the nodes that the pods of a TrainJob's JobSet show to be broken and that it doesn't avoid yet. marked
// are those of its pods with a Mark, all are all that the JobSet has. What they showed last has precedence: no more are
// returned than are remembered beside the nodes of other marked pods, so that none takes turns with another.
func (p Policy) Blame(marked, all []corev1.Pod, known []api.AvoidedNode, now time.Time) (blamed []api.AvoidedNode) {
	room, peers := p.AtMost-p.held(marked, known, now), peersOf(all)
	for _, pod := range latest(marked) {
		reason, message := MarkOf(pod)
		ran, alone := peers.of(pod)
		switch {
		case reason == NotStarted && alone:
			reason = NotStartedAlone
		case (reason == NotStarted || reason == FailedEarly) && !ran:
			continue // it may be all of them
		}
		isItsNode := func(n api.AvoidedNode) bool { return n.Name == pod.Spec.NodeName }
		if reason == "" || len(blamed) >= room || slices.ContainsFunc(blamed, isItsNode) || p.over(pod, now) ||
			p.blamedBefore(pod, known, now) || p.doubtful(reason, pod, append(blamed, known...)) {
			continue
		}
		blamed = append(blamed, api.AvoidedNode{
			Name: pod.Spec.NodeName, Reason: reason, Message: message, Pod: pod.Name, Time: metav1.NewTime(now),
		})
	}
	return blamed
}

// held returns how many of the nodes that are remembered count for a pod that still shows that.
func (p Policy) held(marked []corev1.Pod, known []api.AvoidedNode, now time.Time) (held int) {
	for _, n := range known {
		if p.counts(n, now) && slices.ContainsFunc(marked, func(pod corev1.Pod) bool { return pod.Name == n.Pod }) {
			held++
		}
	}
	return held
}

// Undecided reports whether it depends on other pods, which haven't started yet, whether a node is blamed because a
// container doesn't start there. Nothing else may tell when they have: the JobSet's status counts Jobs.
func Undecided(marked, all []corev1.Pod) bool {
	peers := peersOf(all)
	return slices.ContainsFunc(marked, func(pod corev1.Pod) bool {
		reason, _ := MarkOf(&pod)
		ran, alone := peers.of(&pod)
		return reason == NotStarted && !ran && !alone
	})
}

// latest returns pods in the order of what they showed last.
func latest(marked []corev1.Pod) []*corev1.Pod {
	pods := make([]*corev1.Pod, len(marked))
	for i := range marked {
		pods[i] = &marked[i]
	}
	slices.SortStableFunc(pods, func(a, b *corev1.Pod) int { return markedAt(b).Compare(markedAt(a)) })
	return pods
}

// peers are the pods of a JobSet by their step. Another step, an initializer for example, has another program and
// another image.
type peers struct {
	steps map[string]stepOfPods
	uids  sets.Set[types.UID]
}

// stepOfPods is how many pods a step has, and whether one has started and shows no broken node.
type stepOfPods struct {
	pods int
	ran  bool
}

// peersOf counts once: all pods of a large TrainJob may wait for an image.
func peersOf(all []corev1.Pod) peers {
	p := peers{map[string]stepOfPods{}, sets.New[types.UID]()}
	for i := range all {
		pod := &all[i]
		step := p.steps[pod.Labels[jobset.ReplicatedJobNameKey]]
		reason, _ := MarkOf(pod)
		step.pods++
		step.ran = step.ran || reason == "" &&
			(pod.Status.Phase == corev1.PodRunning || pod.Status.Phase == corev1.PodSucceeded)
		p.steps[pod.Labels[jobset.ReplicatedJobNameKey]] = step
		p.uids.Insert(pod.UID)
	}
	return p
}

// of reports whether another pod of the step of a marked one has started, and whether there is none.
func (p peers) of(pod *corev1.Pod) (ran, alone bool) {
	step := p.steps[pod.Labels[jobset.ReplicatedJobNameKey]]
	if p.uids.Has(pod.UID) {
		step.pods--
	}
	return step.ran, step.pods == 0
}

// over reports whether what a pod shows is so long ago that its node wouldn't be avoided any more. A container that
// still doesn't start is never.
func (p Policy) over(pod *corev1.Pod, now time.Time) bool {
	reason, _ := MarkOf(pod)
	waits := reason == NotStarted && pod.Status.Phase != corev1.PodFailed
	return !waits && now.Sub(markedAt(pod)) >= p.For
}

// blamedBefore reports whether a node is avoided already, or was for what the pod shows. In the second half of its
// time, what a pod has shown since then has it avoided for longer.
func (p Policy) blamedBefore(pod *corev1.Pod, known []api.AvoidedNode, now time.Time) bool {
	return slices.ContainsFunc(known, func(n api.AvoidedNode) bool {
		return n.Name == pod.Spec.NodeName && (n.Pod == pod.Name || n.Time.Sub(now) <= skew &&
			(now.Sub(n.Time.Time) < p.For/2 || !markedAt(pod).After(n.Time.Time)))
	})
}

// doubtful reports whether something is likely to be the program's own failure.
func (p Policy) doubtful(reason string, pod *corev1.Pod, known []api.AvoidedNode) bool {
	if reason != FailedEarly && reason != NotStartedAlone {
		return false
	}
	before := 0
	for _, n := range known {
		if n.Reason == reason && n.Name != pod.Spec.NodeName {
			before++
		}
	}
	return before >= min(doubts, p.AtMost)
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
