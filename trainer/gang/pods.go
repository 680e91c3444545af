package gang

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

// patience is how long a replacement of a failed pod waits before its gang is released, and for how long the messages
// of pods are read that may still come.
const patience = 10 * time.Second

// wasPlaced reports whether a gang whose PodGroup is missing was placed before and can't be placed as a whole again:
// some of its pods have had a node, and fewer are left than the gang takes.
func wasPlaced(name string, group Group, pods []corev1.Pod) bool {
	var present int32
	placed := false
	for i := range pods {
		pod := &pods[i]
		if !isOf(pod, name) {
			continue
		}
		ended := pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
		if !ended {
			present++
		}
		placed = placed || pod.Status.Phase == corev1.PodSucceeded || !ended && pod.Spec.NodeName != ""
	}
	return placed && present < group.Pods
}

// gangPods counts the pods of a gang.
type gangPods struct {
	// present have not ended.
	present, succeeded int32
	// shortestWait is how long the youngest pod without a node has existed; negative if all have a node.
	shortestWait time.Duration
}

func countPods(podGroup string, pods []corev1.Pod, now time.Time) gangPods {
	c := gangPods{shortestWait: -1}
	for i := range pods {
		pod := &pods[i]
		if !isOf(pod, podGroup) || pod.Status.Phase == corev1.PodFailed {
			continue
		}
		if pod.Status.Phase == corev1.PodSucceeded {
			c.succeeded++
			continue
		}
		c.present++
		waited := now.Sub(pod.CreationTimestamp.Time)
		if pod.Spec.NodeName == "" && (c.shortestWait < 0 || waited < c.shortestWait) {
			c.shortestWait = waited
		}
	}
	return c
}

// lacks reports whether pods of a gang are gone that a pod waits for. They may have succeeded.
func (c gangPods) lacks(state podGroupState, size int32) bool {
	return state.minCount > 0 && c.present < state.minCount && c.present+c.succeeded < size && c.shortestWait >= patience
}

// isOf reports whether a pod belongs to a PodGroup.
func isOf(pod *corev1.Pod, podGroup string) bool {
	s := pod.Spec.SchedulingGroup
	return s != nil && ptr.Deref(s.PodGroupName, "") == podGroup
}
