package store

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
)

// PodLost reports whether a pod was lost by no fault of its own. Its node was deleted, drained or is not ready, or
// another pod preempts it (k8s.io/api/core/v1, DisruptionTarget). Or its node was restarted and has lost its containers
// (the reasons are the kubelet's and containerd's).
func PodLost(pod *corev1.Pod) bool {
	if pod.Status.Phase == corev1.PodFailed && slices.ContainsFunc(pod.Status.ContainerStatuses, vanished) {
		return true
	}
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue
	})
}

func vanished(c corev1.ContainerStatus) bool {
	ended := c.State.Terminated
	return ended != nil && (ended.Reason == "ContainerStatusUnknown" || ended.Reason == "Unknown")
}

// rememberedLost is how many lost pods of a JobSet are remembered.
const rememberedLost = 8

// SawLost remembers a lost pod. Whose it is, Lost finds out: a watch that asks the API server delays all others' pods.
func (p *Pods) SawLost(pod *corev1.Pod) {
	uid := types.UID(pod.Labels[jobset.JobSetUIDKey])
	var pods []*corev1.Pod
	if seen, found := p.lost.Get(uid); found {
		pods = seen.([]*corev1.Pod)
	}
	if len(pods) < rememberedLost {
		p.lost.Add(uid, append(slices.Clone(pods), pod))
	}
}

// Lost returns the name of a pod that a JobSet has lost, by the pod's controllers; "" if it has lost none.
func (p *Pods) Lost(ctx context.Context, js *jobset.JobSet) (string, error) {
	pods, err := p.Named(ctx, js)
	if err != nil {
		return "", err
	}
	var lost []*corev1.Pod
	for i := range pods {
		if PodLost(&pods[i]) {
			lost = append(lost, &pods[i])
		}
	}
	if seen, found := p.lost.Get(js.UID); found {
		lost = append(lost, seen.([]*corev1.Pod)...)
	}
	for _, pod := range lost {
		uid, found, err := p.jobSetOf(ctx, pod)
		if err != nil {
			return "", err
		}
		if found && uid == js.UID {
			return pod.Name, nil
		}
	}
	return "", nil
}
