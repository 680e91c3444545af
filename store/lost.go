package store

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
)

// PodCutShort reports whether a pod was lost and has ended with success: it was told to end. Its Job counts that,
// although the program may not have come to its end.
func PodCutShort(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded && !pod.DeletionTimestamp.IsZero() && PodLost(pod)
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
	pods = slices.DeleteFunc(slices.Clone(pods), func(seen *corev1.Pod) bool { return seen.UID == pod.UID })
	if len(pods) < rememberedLost {
		p.lost.Add(uid, append(pods, pod))
	}
}

// Lost returns a pod that a JobSet has lost, by the pod's controllers, if there is one that was cut short; nil if it
// has lost none.
func (p *Pods) Lost(ctx context.Context, js *jobset.JobSet) (*corev1.Pod, error) {
	pods, err := p.Named(ctx, js)
	if err != nil {
		return nil, err
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
	var any *corev1.Pod
	for _, pod := range lost {
		uid, found, err := p.jobSetOf(ctx, pod)
		if err != nil {
			return nil, err
		}
		if found && uid == js.UID && (any == nil || PodCutShort(pod)) {
			any = pod
		}
	}
	return any, nil
}
