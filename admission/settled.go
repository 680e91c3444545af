package admission

import (
	"slices"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/utils/ptr"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	"github.com/signalbox-dev/signalbox/overrides"
)

// Unsettled says what Trainer and JobSet have still to do before a suspended TrainJob is quiet, or "" where nothing is
// left. A start that waits for it meets a TrainJob whose status nobody is about to write, so that it succeeds at the
// first try, and a JobSet that is up to date with the runtime.
func Unsettled(job *trainer.TrainJob, js *jobset.JobSet, effective *overrides.Effective) string {
	switch {
	case js == nil:
		return "its JobSet is not made yet"
	case !Fits(js, effective):
		return "its JobSet does not follow its runtime and entries yet"
	case !meta.IsStatusConditionTrue(job.Status.Conditions, trainer.TrainJobSuspended):
		return "Trainer has not seen it suspended yet"
	case !meta.IsStatusConditionTrue(js.Status.Conditions, string(jobset.JobSetSuspended)):
		return "its JobSet has not suspended its Jobs yet"
	case !allMade(js):
		return "its Jobs are not all made yet"
	case !mirrored(job.Status.JobsStatus, js.Status.ReplicatedJobsStatus):
		return "its status does not follow its JobSet yet"
	}
	return ""
}

// Fits tells whether a JobSet was built from what the TrainJob runs, by all that decides where pods go and what they
// use.
func Fits(js *jobset.JobSet, effective *overrides.Effective) bool {
	return slices.EqualFunc(js.Spec.ReplicatedJobs, effective.ReplicatedJobs, func(a, b jobset.ReplicatedJob) bool {
		x, y := &a.Template.Spec.Template.Spec, &b.Template.Spec.Template.Spec
		return a.Name == b.Name && a.Replicas == b.Replicas && overrides.PodsPerJob(&a) == overrides.PodsPerJob(&b) &&
			equality.Semantic.DeepEqual(x.NodeSelector, y.NodeSelector) &&
			equality.Semantic.DeepEqual(x.Tolerations, y.Tolerations) &&
			slices.EqualFunc(x.Containers, y.Containers, func(c, d corev1.Container) bool {
				return c.Name == d.Name && c.Image == d.Image && equality.Semantic.DeepEqual(c.Resources, d.Resources)
			})
	})
}

// allMade tells whether every Job is there that a suspended JobSet makes: all but those that depend on others.
func allMade(js *jobset.JobSet) bool {
	for _, rj := range js.Spec.ReplicatedJobs {
		if len(rj.DependsOn) > 0 {
			continue
		}
		i := slices.IndexFunc(js.Status.ReplicatedJobsStatus, func(s jobset.ReplicatedJobStatus) bool { return s.Name == rj.Name })
		if i < 0 {
			return false
		}
		if s := js.Status.ReplicatedJobsStatus[i]; s.Suspended+s.Succeeded+s.Failed < rj.Replicas {
			return false
		}
	}
	return true
}

func mirrored(have []trainer.JobStatus, want []jobset.ReplicatedJobStatus) bool {
	if len(have) != len(want) {
		return false
	}
	for _, w := range want {
		if !slices.ContainsFunc(have, func(h trainer.JobStatus) bool {
			return h.Name == w.Name && ptr.Deref(h.Ready, 0) == w.Ready && ptr.Deref(h.Succeeded, 0) == w.Succeeded &&
				ptr.Deref(h.Failed, 0) == w.Failed && ptr.Deref(h.Active, 0) == w.Active && ptr.Deref(h.Suspended, 0) == w.Suspended
		}) {
			return false
		}
	}
	return true
}
