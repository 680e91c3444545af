package overrides

import (
	"encoding/json"
	"fmt"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// Limits bound what one TrainJob may ask for, so that none can exhaust the manager or hold quota without end.
type Limits struct {
	// Pods is how many pods, and how many nodes, a TrainJob may have.
	Pods int32
	// SpecBytes is the size of a TrainJob's spec, and of a runtime's, as JSON.
	SpecBytes int
	// GracePeriodSeconds is how long a pod may take to terminate.
	GracePeriodSeconds int64
}

// CheckSize refuses a TrainJob by what it says itself, before anything is computed of it.
func (l Limits) CheckSize(job *api.TrainJob) field.ErrorList {
	path := field.NewPath("spec")
	var errs field.ErrorList
	if data, err := json.Marshal(&job.Spec); err != nil {
		errs = append(errs, field.Invalid(path, "", err.Error()))
	} else if len(data) > l.SpecBytes {
		errs = append(errs, field.Invalid(path, fmt.Sprintf("%d bytes", len(data)), fmt.Sprintf(
			"a TrainJob's spec may have at most %d bytes (limits.specBytes of Signalbox's configuration); move what is common to a runtime, or files to a ConfigMap", l.SpecBytes)))
	}
	if t := job.Spec.Trainer; t != nil && ptr.Deref(t.NumNodes, 0) > l.Pods {
		errs = append(errs, l.tooMany(path.Child("trainer", "numNodes"), int64(*t.NumNodes)))
	}
	for i, patch := range job.Spec.RuntimePatches {
		if patch.TrainingRuntimeSpec == nil || patch.TrainingRuntimeSpec.Template == nil || patch.TrainingRuntimeSpec.Template.Spec == nil {
			continue
		}
		for _, rj := range patch.TrainingRuntimeSpec.Template.Spec.ReplicatedJobs {
			if _, pod := PodPatch(patch.TrainingRuntimeSpec, rj.Name); pod != nil {
				errs = append(errs, l.checkGrace(patchesPath.Index(i).Child("trainingRuntimeSpec", "template", "spec", "replicatedJobs").Key(rj.Name).
					Child("template", "spec", "template", "spec", "terminationGracePeriodSeconds"), pod.TerminationGracePeriodSeconds)...)
			}
		}
	}
	return errs
}

// CheckRuntime refuses a TrainJob by its runtime, before anything is computed of the two.
func (l Limits) CheckRuntime(job *api.TrainJob, runtime *trainer.TrainingRuntimeSpec) field.ErrorList {
	path := field.NewPath("spec", "runtimeRef")
	var errs field.ErrorList
	if data, err := json.Marshal(runtime); err != nil {
		errs = append(errs, field.Invalid(path, job.Spec.RuntimeRef.Name, err.Error()))
	} else if len(data) > l.SpecBytes {
		errs = append(errs, field.Invalid(path, job.Spec.RuntimeRef.Name, fmt.Sprintf(
			"the runtime's spec has %d bytes, more than limits.specBytes of Signalbox's configuration (%d); move files to a ConfigMap", len(data), l.SpecBytes)))
	}
	pods, nodes := int64(0), int64(0)
	if runtime.MLPolicy != nil {
		nodes = int64(ptr.Deref(runtime.MLPolicy.NumNodes, 1))
	}
	if t := job.Spec.Trainer; t != nil && t.NumNodes != nil {
		nodes = int64(*t.NumNodes)
	}
	for i := range runtime.Template.Spec.ReplicatedJobs {
		rj := &runtime.Template.Spec.ReplicatedJobs[i]
		each := int64(ptr.Deref(rj.Template.Spec.Parallelism, 1))
		if isTrainer(rj) && runtime.MLPolicy != nil {
			each = nodes
		}
		pods += each * int64(max(rj.Replicas, 1))
	}
	if most := max(pods, nodes); most > int64(l.Pods) {
		errs = append(errs, l.tooMany(path, most))
	}
	return errs
}

func (l Limits) tooMany(path *field.Path, pods int64) *field.Error {
	return field.Invalid(path, pods, fmt.Sprintf("a TrainJob may have at most %d pods (limits.pods of Signalbox's configuration); ask for fewer", l.Pods))
}

// CheckBuilt refuses a TrainJob by what it would run: pods that terminate for longer than is allowed, or without notice,
// and what costs quota that Kueue can't count. claimsCounted is set where Kueue counts resource claims or
// refuses them.
func (l Limits) CheckBuilt(replicatedJobs []jobset.ReplicatedJob, claimsCounted bool) field.ErrorList {
	var errs field.ErrorList
	for i := range replicatedJobs {
		rj := &replicatedJobs[i]
		path := field.NewPath("replicatedJobs").Key(rj.Name).Child("template", "spec", "template", "spec")
		pod := &rj.Template.Spec.Template.Spec
		errs = append(errs, l.checkGrace(path.Child("terminationGracePeriodSeconds"), pod.TerminationGracePeriodSeconds)...)
		errs = append(errs, l.checkProbes(path.Child("containers"), pod.Containers)...)
		errs = append(errs, l.checkProbes(path.Child("initContainers"), pod.InitContainers)...)
		if pod.Resources != nil {
			errs = append(errs, field.Forbidden(path.Child("resources"), "Kueue doesn't count the resources of a pod as a whole; set those of its containers"))
		}
		if len(pod.ResourceClaims) > 0 && !claimsCounted {
			errs = append(errs, field.Forbidden(path.Child("resourceClaims"),
				"Kueue doesn't count resource claims without its feature gate KueueDRAIntegration; ask for the devices by resources of the containers, or set the gate in Kueue's configuration and in kueue.featureGates of Signalbox's"))
		}
		if pod.NodeName != "" {
			errs = append(errs, field.Forbidden(path.Child("nodeName"), "a pod on quota is placed by the flavor that it is admitted on; use a nodeSelector"))
		}
	}
	return errs
}

func (l Limits) checkProbes(path *field.Path, containers []corev1.Container) field.ErrorList {
	var errs field.ErrorList
	for _, c := range containers {
		for _, p := range []struct {
			name  string
			probe *corev1.Probe
		}{{"livenessProbe", c.LivenessProbe}, {"startupProbe", c.StartupProbe}} {
			if p.probe != nil {
				errs = append(errs, l.checkGrace(path.Key(c.Name).Child(p.name, "terminationGracePeriodSeconds"), p.probe.TerminationGracePeriodSeconds)...)
			}
		}
	}
	return errs
}

// checkGrace refuses a grace period that is too long, or none: the API server forgets a pod without one while its
// containers still run.
func (l Limits) checkGrace(path *field.Path, seconds *int64) field.ErrorList {
	switch {
	case seconds == nil:
		return nil
	case *seconds > l.GracePeriodSeconds:
		return field.ErrorList{field.Invalid(path, *seconds, fmt.Sprintf(
			"a pod may take at most %d seconds to terminate (limits.terminationGracePeriodSeconds of Signalbox's configuration), because its quota is held until then", l.GracePeriodSeconds))}
	case *seconds < 1:
		return field.ErrorList{field.Invalid(path, *seconds, "must be 1 or more: without a grace period the quota of a pod would be free before its containers have ended")}
	}
	return nil
}
