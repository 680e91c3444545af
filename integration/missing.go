package integration

import (
	"context"
	"fmt"
	"slices"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	"github.com/signalbox-dev/signalbox/admission"
	"github.com/signalbox-dev/signalbox/podsets"
	"github.com/signalbox-dev/signalbox/store"
)

// missingPods returns why a started TrainJob can't run; nil if it can. Then it is for the scheduler to place the pods.
func (r *observer) missingPods(ctx context.Context, o *situation) (*missingPods, error) {
	if o.jobSet == nil {
		return &missingPods{}, nil
	}
	pods, err := r.store.Pods.Named(ctx, o.jobSet)
	if err != nil {
		return nil, err
	}
	runs := func(p corev1.Pod) bool { return !store.PodEnded(&p) }
	if suspendedByAnother(o.observed) && !slices.ContainsFunc(pods, runs) {
		return &missingPods{suspended: true}, nil
	}
	if pod, gate := gatedPod(pods); gate != "" {
		return &missingPods{pod: pod, gate: gate}, nil
	}
	there := map[string]podsets.Pods{}
	for i := range pods {
		step := pods[i].Labels[jobset.ReplicatedJobNameKey]
		n := there[step]
		if pods[i].Status.Phase == corev1.PodSucceeded {
			n.Succeeded++
		} else if !store.PodEnded(&pods[i]) {
			n.Present++
		}
		there[step] = n
	}
	if short := podsets.Short(o.jobSet, there); short != nil {
		return &missingPods{Shortage: *short}, nil
	}
	return nil, nil
}

// suspendedByAnother reports whether the JobSet of a running TrainJob is suspended, as it is when Kueue takes it for a
// part of another job. Beside Kubeflow Trainer, it is so until Trainer resumes it.
func suspendedByAnother(o *observed) bool {
	return ptr.Deref(o.jobSet.Spec.Suspend, false) && o.jobSet.DeletionTimestamp.IsZero() &&
		o.jobSet.Status.TerminalState == ""
}

// blocked returns the error for a TrainJob of which pods were missing for so long, and why.
func (p *missingPods) blocked(within time.Duration, why string) *admission.BlockedError {
	if p.gate != "" {
		return &admission.BlockedError{Reason: admission.ReasonGated, Err: fmt.Errorf(
			"pod %s has had scheduling gate %q for longer than %s; remove the gate from the runtime or the overrides, or see "+
				"why nothing opens it", p.pod, p.gate, within)}
	}
	what := "it had no pod"
	if p.suspended {
		what = "its JobSet was suspended by another client and had no pod"
	}
	if p.ReplicatedJob != "" {
		what = fmt.Sprintf("it had %d of the %d pods of ReplicatedJob %s", p.Have, p.Need, p.ReplicatedJob)
	}
	return &admission.BlockedError{Reason: admission.ReasonNoPods, Err: fmt.Errorf(
		"%s for %s; %s. Its quota is released, and it is queued again after %s", what, within, why, holdsFor*within)}
}

// podFailed reports whether a pod of a Job has failed, so that the Job controller waits with its replacement.
func podFailed(job batchv1.Job) bool { return job.Status.Failed > 0 }

// gatedPod returns a pod with a scheduling gate that Kueue doesn't open, and the gate; the last of several.
func gatedPod(pods []corev1.Pod) (pod, gate string) {
	for i := range pods {
		for _, g := range pods[i].Spec.SchedulingGates {
			pod, gate = pods[i].Name, g.Name
		}
	}
	return pod, gate
}

// holdsFor is how many times limits.podsWithin a TrainJob without pods is kept out of its queue.
const holdsFor = 12
