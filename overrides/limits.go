package overrides

import (
	"encoding/json"
	"fmt"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// Limits bound what one TrainJob may ask for, so that none can exhaust the manager or hold quota without end.
type Limits struct {
	// Pods is the most pods, and the most nodes, that a TrainJob may have.
	Pods int32
	// SpecBytes is the largest size of a TrainJob's spec, and of a runtime's, as JSON.
	SpecBytes int
	// Elements is the most elements that the lists of a TrainJob's spec, and of a runtime's, may have in all. A strategic
	// merge (k8s.io/apimachinery) takes time in the square of a list's length.
	Elements int
	// GracePeriodSeconds is the longest time that a pod may take to terminate.
	GracePeriodSeconds int64
	// ReplicatedJobs is the most ReplicatedJobs that a queued TrainJob may run: as many as a Workload of the installed
	// Kueue may have PodSets. 0 is podsets.Max.
	ReplicatedJobs int
}

// CheckSize returns an error for each limit that the TrainJob exceeds by itself. It is for before Compute, which takes
// memory and time for what it is given.
func (l Limits) CheckSize(job *api.TrainJob) field.ErrorList {
	path := field.NewPath("spec")
	errs := l.checkBulk(path, "a TrainJob's spec", &job.Spec)
	if t := job.Spec.Trainer; t != nil && ptr.Deref(t.NumNodes, 0) > l.Pods {
		errs = append(errs, l.tooMany(path.Child("trainer", "numNodes"), int64(*t.NumNodes)))
	}
	for i, patch := range job.Spec.RuntimePatches {
		if patch.TrainingRuntimeSpec == nil || patch.TrainingRuntimeSpec.Template == nil ||
			patch.TrainingRuntimeSpec.Template.Spec == nil {
			continue
		}
		for _, rj := range patch.TrainingRuntimeSpec.Template.Spec.ReplicatedJobs {
			if _, pod := PodPatch(patch.TrainingRuntimeSpec, rj.Name); pod != nil {
				errs = append(errs, l.checkGrace(patchesPath.Index(i).Child("trainingRuntimeSpec", "template", "spec",
					"replicatedJobs").Key(rj.Name).
					Child("template", "spec", "template", "spec", "terminationGracePeriodSeconds"),
					pod.TerminationGracePeriodSeconds)...)
			}
		}
	}
	return errs
}

// CheckRuntime returns an error for each limit that the TrainJob exceeds on its runtime. It is for before Compute.
func (l Limits) CheckRuntime(job *api.TrainJob, runtime *trainerapi.TrainingRuntimeSpec) field.ErrorList {
	path := field.NewPath("spec", "runtimeRef")
	errs := l.checkBulk(path, fmt.Sprintf("the spec of runtime %q", job.Spec.RuntimeRef.Name), runtime)
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

// checkBulk returns an error where a spec is too large.
func (l Limits) checkBulk(path *field.Path, what string, spec any) field.ErrorList {
	data, err := json.Marshal(spec)
	if err != nil {
		return field.ErrorList{field.Invalid(path, "", err.Error())}
	}
	if len(data) > l.SpecBytes {
		return field.ErrorList{field.Invalid(path, fmt.Sprintf("%d bytes", len(data)), fmt.Sprintf(
			"%s may have at most %d bytes (limits.specBytes of Signalbox's configuration); move files to a ConfigMap", what,
			l.SpecBytes))}
	}
	if len(data) < 2*l.Elements {
		return nil // an element is two bytes at least
	}
	var content any
	if err := json.Unmarshal(data, &content); err != nil {
		return field.ErrorList{field.Invalid(path, "", err.Error())}
	}
	if n := elements(content); n > l.Elements {
		return field.ErrorList{field.Invalid(path, fmt.Sprintf("%d list elements", n), fmt.Sprintf(
			"the lists of %s may have at most %d elements in all (limits.elements of Signalbox's configuration); move "+
				"environment to a ConfigMap, with envFrom", what, l.Elements))}
	}
	return nil
}

// elements returns the number of elements of all lists in decoded JSON.
func elements(content any) int {
	n := 0
	switch c := content.(type) {
	case []any:
		n = len(c)
		for _, e := range c {
			n += elements(e)
		}
	case map[string]any:
		for _, e := range c {
			n += elements(e)
		}
	}
	return n
}

// tooMany returns the error about too many pods.
func (l Limits) tooMany(path *field.Path, pods int64) *field.Error {
	return field.Invalid(path, pods,
		fmt.Sprintf("a TrainJob may have at most %d pods (limits.pods of Signalbox's configuration); ask for fewer", l.Pods))
}

// CheckBuilt returns an error for each limit that the ReplicatedJobs of a TrainJob exceed: pods with too long a grace
// period or none, and what Kueue can't count. That is replicas that JobSet takes for others, and resources.
// claimsCounted is set where Kueue counts resource claims or refuses them.
func (l Limits) CheckBuilt(replicatedJobs []jobset.ReplicatedJob, claimsCounted bool) field.ErrorList {
	var errs field.ErrorList
	for i := range replicatedJobs {
		rj := &replicatedJobs[i]
		path := field.NewPath("replicatedJobs").Key(rj.Name).Child("template", "spec", "template", "spec")
		pod := &rj.Template.Spec.Template.Spec
		if rj.Replicas < 1 {
			errs = append(errs, field.Invalid(field.NewPath("replicatedJobs").Key(rj.Name).Child("replicas"), rj.Replicas,
				"must be 1 or more: JobSet takes 0 for its default of 1, and the pods would run; remove the ReplicatedJob from "+
					"the runtime"))
		}
		errs = append(errs, l.checkGrace(path.Child("terminationGracePeriodSeconds"), pod.TerminationGracePeriodSeconds)...)
		errs = append(errs, l.checkProbes(path.Child("containers"), pod.Containers)...)
		errs = append(errs, l.checkProbes(path.Child("initContainers"), pod.InitContainers)...)
		if pod.Resources != nil {
			errs = append(errs, field.Forbidden(path.Child("resources"),
				"the resources of a pod as a whole aren't taken on quota; set those of its containers"))
		}
		if len(pod.ResourceClaims) > 0 && !claimsCounted {
			errs = append(errs, field.Forbidden(path.Child("resourceClaims"),
				"Kueue doesn't count resource claims without its feature gate KueueDRAIntegration; ask for the devices by "+
					"resources of the containers, or set the gate in Kueue's configuration and in kueue.featureGates of Signalbox's"))
		}
		if pod.NodeName != "" {
			errs = append(errs, field.Forbidden(path.Child("nodeName"),
				"a pod on quota is placed by the flavor that it is admitted on; use a nodeSelector"))
		}
	}
	return errs
}

// checkProbes returns an error for each grace period of a probe, which replaces the pod's.
func (l Limits) checkProbes(path *field.Path, containers []corev1.Container) field.ErrorList {
	var errs field.ErrorList
	for _, c := range containers {
		for _, p := range []struct {
			name  string
			probe *corev1.Probe
		}{{"livenessProbe", c.LivenessProbe}, {"startupProbe", c.StartupProbe}} {
			if p.probe != nil {
				errs = append(errs, l.checkGrace(path.Key(c.Name).Child(p.name, "terminationGracePeriodSeconds"),
					p.probe.TerminationGracePeriodSeconds)...)
			}
		}
	}
	return errs
}

// checkGrace returns an error where a grace period is too long, or 0: the API server deletes a pod without one while
// its containers still run.
func (l Limits) checkGrace(path *field.Path, seconds *int64) field.ErrorList {
	switch {
	case seconds == nil:
		return nil
	case *seconds > l.GracePeriodSeconds:
		return field.ErrorList{field.Invalid(path, *seconds, fmt.Sprintf(
			"a pod may take at most %d seconds to terminate (limits.terminationGracePeriodSeconds of Signalbox's "+
				"configuration), because its quota is held until then", l.GracePeriodSeconds))}
	case *seconds < 1:
		return field.ErrorList{field.Invalid(path, *seconds,
			"must be 1 or more: without a grace period the quota of a pod would be free before its containers have ended")}
	}
	return nil
}
