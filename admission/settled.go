package admission

import (
	"fmt"
	"slices"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/utils/ptr"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides"
)

// Unsettled says what Trainer and JobSet have still to do before a suspended TrainJob is quiet, or "" where nothing is
// left. A start that waits for it meets a TrainJob whose status nobody is about to write, so that it succeeds at the
// first try, and a JobSet that is up to date with the runtime.
func Unsettled(job *api.TrainJob, js *jobset.JobSet, effective *overrides.Effective, countsJobs bool) string {
	switch {
	case js == nil:
		return "its JobSet is not created yet"
	case !Fits(js, effective):
		return "its JobSet does not follow its runtime and entries yet"
	case !apimeta.IsStatusConditionTrue(job.Status.Conditions, trainerapi.TrainJobSuspended):
		return "Trainer has not seen it suspended yet"
	case !apimeta.IsStatusConditionTrue(js.Status.Conditions, string(jobset.JobSetSuspended)):
		return "its JobSet has not suspended its Jobs yet"
	case !allMade(js):
		return "its Jobs are not all created yet"
	case countsJobs && !mirrored(job.Status.JobsStatus, js.Status.ReplicatedJobsStatus):
		return "its status does not follow its JobSet yet"
	}
	return ""
}

// RunsWith reports whether a JobSet that is not suspended was made with an entry: its pods are placed as that says.
func RunsWith(js *jobset.JobSet, own *trainerapi.RuntimePatch) bool {
	if ptr.Deref(js.Spec.Suspend, false) {
		return false
	}
	return own == nil || !slices.ContainsFunc(js.Spec.ReplicatedJobs, func(rj jobset.ReplicatedJob) bool {
		_, spec := overrides.PodPatch(own.TrainingRuntimeSpec, rj.Name)
		pod := &rj.Template.Spec.Template.Spec
		if spec == nil {
			return false
		}
		for key, value := range spec.NodeSelector {
			if pod.NodeSelector[key] != value {
				return true
			}
		}
		return len(tolerate(slices.Clone(pod.Tolerations), spec.Tolerations)) != len(pod.Tolerations)
	})
}

// Fits reports whether a JobSet was built from what the TrainJob runs.
func Fits(js *jobset.JobSet, effective *overrides.Effective) bool {
	placed := func(a, b jobset.ReplicatedJob) bool {
		x, y := &a.Template.Spec.Template.Spec, &b.Template.Spec.Template.Spec
		return equality.Semantic.DeepEqual(x.NodeSelector, y.NodeSelector) &&
			equality.Semantic.DeepEqual(x.Tolerations, y.Tolerations)
	}
	return CanFit(js, effective) && slices.EqualFunc(js.Spec.ReplicatedJobs, effective.Built, placed)
}

// CanFit reports whether a suspended JobSet can come to fit by an update: all of it is immutable but what places its
// pods (JobSet v0.12.0's webhook). Trainer and JobSet add to a pod's spec, so a JobSet fits that has at least what the
// TrainJob's effective runtime says; what an edit has only taken away is not seen.
func CanFit(js *jobset.JobSet, effective *overrides.Effective) bool {
	return slices.EqualFunc(js.Spec.ReplicatedJobs, effective.Built, func(a, b jobset.ReplicatedJob) bool {
		have, want := a.Template.Spec.Template.Spec.DeepCopy(), b.Template.Spec.Template.Spec.DeepCopy()
		want.NodeSelector, want.Tolerations, want.SchedulingGates = nil, nil, nil
		return a.Name == b.Name && a.Replicas == b.Replicas && overrides.PodsPerJob(&a) == overrides.PodsPerJob(&b) &&
			containersFit(have.InitContainers, want.InitContainers) && containersFit(have.Containers, want.Containers) &&
			equality.Semantic.DeepDerivative(want, have)
	})
}

// containersFit compares what has no order, or must be exactly equal, and takes it out of want, where the rest is left
// to be compared: Trainer runs its ML policies in no fixed order, and each adds to the environment.
func containersFit(have, want []corev1.Container) bool {
	if len(have) < len(want) {
		return false
	}
	for i := range want {
		for _, w := range want[i].Env {
			if !slices.ContainsFunc(have[i].Env, func(h corev1.EnvVar) bool {
				return h.Name == w.Name && equality.Semantic.DeepDerivative(w, h)
			}) {
				return false
			}
		}
		if !equality.Semantic.DeepEqual(have[i].Resources, want[i].Resources) {
			return false
		}
		want[i].Env = nil
	}
	return true
}

// allMade reports whether every Job exists that a suspended JobSet makes: all but those that depend on others.
func allMade(js *jobset.JobSet) bool {
	for _, rj := range js.Spec.ReplicatedJobs {
		made := func(s jobset.ReplicatedJobStatus) bool {
			return s.Name == rj.Name && s.Suspended+s.Succeeded+s.Failed >= rj.Replicas
		}
		if len(rj.DependsOn) == 0 && !slices.ContainsFunc(js.Status.ReplicatedJobsStatus, made) {
			return false
		}
	}
	return true
}

// MissingJob returns the name of a Job that a suspended JobSet creates and that is not among jobs; "" if all exist.
// Those that depend on others are created later.
func MissingJob(js *jobset.JobSet, jobs []batchv1.Job) string {
	for _, rj := range js.Spec.ReplicatedJobs {
		if len(rj.DependsOn) > 0 {
			continue
		}
		for i := range rj.Replicas {
			name := fmt.Sprintf("%s-%s-%d", js.Name, rj.Name, i)
			if !slices.ContainsFunc(jobs, func(job batchv1.Job) bool { return job.Name == name }) {
				return name
			}
		}
	}
	return ""
}

func mirrored(have []trainerapi.JobStatus, want []jobset.ReplicatedJobStatus) bool {
	if len(have) != len(want) {
		return false
	}
	for _, w := range want {
		if !slices.ContainsFunc(have, func(h trainerapi.JobStatus) bool {
			return h.Name == w.Name && ptr.Deref(h.Ready, 0) == w.Ready && ptr.Deref(h.Succeeded, 0) == w.Succeeded &&
				ptr.Deref(h.Failed, 0) == w.Failed && ptr.Deref(h.Active, 0) == w.Active && ptr.Deref(h.Suspended, 0) == w.Suspended
		}) {
			return false
		}
	}
	return true
}
