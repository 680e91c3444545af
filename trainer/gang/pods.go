package gang

import (
	"time"

	corev1 "k8s.io/api/core/v1"
)

// patience is how long a replacement of a failed pod waits before its gang is released, and for how long the messages
// of pods are read that may still come.
const patience = 10 * time.Second

// byPodGroup returns the pods of each PodGroup, by its name.
func byPodGroup(pods []corev1.Pod) map[string][]*corev1.Pod {
	groups := map[string][]*corev1.Pod{}
	for i := range pods {
		if g := pods[i].Spec.SchedulingGroup; g != nil && g.PodGroupName != nil {
			groups[*g.PodGroupName] = append(groups[*g.PodGroupName], &pods[i])
		}
	}
	return groups
}

// gangPods counts the pods of a gang.
type gangPods struct {
	// present have not ended; bound are those of them that have a node.
	present, bound, succeeded int32
	// shortestWait is how long the youngest pod without a node has existed; negative if all have a node.
	shortestWait time.Duration
}

func countPods(pods []*corev1.Pod, now time.Time) gangPods {
	c := gangPods{shortestWait: -1}
	for _, pod := range pods {
		waited := now.Sub(pod.CreationTimestamp.Time)
		switch {
		case pod.Status.Phase == corev1.PodFailed:
		case pod.Status.Phase == corev1.PodSucceeded:
			c.succeeded++
		case pod.Spec.NodeName != "":
			c.present, c.bound = c.present+1, c.bound+1
		default:
			c.present++
			if c.shortestWait < 0 || waited < c.shortestWait {
				c.shortestWait = waited
			}
		}
	}
	return c
}

// wasPlaced reports whether a gang whose PodGroup is missing was placed before and can't be placed as a whole again:
// some of its pods have had a node, and fewer are left than the gang takes.
func (c gangPods) wasPlaced(size int32) bool { return c.bound+c.succeeded > 0 && c.present < size }

// lacks reports whether pods of a gang are gone that a pod waits for. They may have succeeded.
func (c gangPods) lacks(state podGroupState, size int32) bool {
	return state.minCount > 0 && c.present < state.minCount && c.present+c.succeeded < size && c.shortestWait >= patience
}
