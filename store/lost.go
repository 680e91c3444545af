package store

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	"github.com/signalbox-dev/signalbox/admission/avoid"
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
	lost, err := p.these(ctx, js, pods, PodLost)
	for i := range lost {
		if PodCutShort(&lost[i]) {
			return &lost[i], err
		}
	}
	if len(lost) == 0 {
		return nil, err
	}
	return &lost[0], err
}

// Broken returns the pods of a JobSet that show a broken node (avoid.MarkOf), by their controllers, and all that carry
// its name and UID. They must not be changed.
func (p *Pods) Broken(ctx context.Context, js *jobset.JobSet) (broken, all []corev1.Pod, err error) {
	if all, err = p.Named(ctx, js); err != nil {
		return nil, nil, err
	}
	broken, err = p.these(ctx, js, all, func(pod *corev1.Pod) bool {
		reason, _ := avoid.MarkOf(pod)
		return reason != ""
	})
	return broken, all, err
}

// these returns the pods of a JobSet, by their controllers, that are as asked, and those among the lost ones that may
// be gone.
func (p *Pods) these(
	ctx context.Context, js *jobset.JobSet, pods []corev1.Pod, is func(*corev1.Pod) bool,
) (found []corev1.Pod, err error) {
	var asked []*corev1.Pod
	for i := range pods {
		asked = append(asked, &pods[i])
	}
	if seen, found := p.lost.Get(js.UID); found {
		asked = append(asked, seen.([]*corev1.Pod)...)
	}
	for _, pod := range asked {
		if !is(pod) {
			continue
		}
		uid, owned, err := p.jobSetOf(ctx, pod)
		if err != nil {
			return nil, err
		}
		if owned && uid == js.UID {
			found = append(found, *pod)
		}
	}
	return found, nil
}
