package integration

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/signalbox-dev/signalbox/admission/usage"
)

// begun returns what to note of a started TrainJob whose pods run, and of which that isn't noted yet; nil for nothing.
func (r *observer) begun(ctx context.Context, o *situation) (*usage.Note, error) {
	holder := holderOf(o.workloads.own)
	if r.meter == nil || o.jobSet == nil || holder == nil || usage.Began(holder) || elsewhere(o.job) {
		return nil, nil
	}
	pods, err := r.store.Pods.Named(ctx, o.jobSet)
	if err != nil || !slices.ContainsFunc(pods, func(pod corev1.Pod) bool { return hasBegun(&pod) }) {
		return nil, err
	}
	note := r.meter.noteOf(o.job)
	note.Run, note.Running = usage.Reserved(holder), o.now
	return &note, nil
}

// hasBegun reports whether a pod runs, or has run.
func hasBegun(pod *corev1.Pod) bool {
	return pod.Status.Phase != corev1.PodPending && pod.Status.Phase != ""
}

// begins returns the step that notes when the pods of a TrainJob began to run.
func begins(o *situation) []step {
	if o.queue.begun == nil {
		return nil
	}
	return []step{noteBegin{holderOf(o.workloads.own), *o.queue.begun}}
}
