package overrides

import (
	"encoding/json"
	"fmt"
	"reflect"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides/pipeline"
)

// CheckSize returns an error for each limit that the TrainJob, with entries of every form, exceeds by itself. It is for
// before Compute, which takes memory and time for what it is given.
func (l Limits) CheckSize(job *api.TrainJob, entries []Entry) field.ErrorList {
	path := field.NewPath("spec")
	errs := l.checkBulk(path, "a TrainJob's spec", &job.Spec)
	if len(errs) == 0 {
		errs = l.checkFields(path, &job.Spec)
	}
	if t := job.Spec.Trainer; t != nil && t.NumNodes != nil {
		errs = append(errs, l.checkNodes(path.Child("trainer", "numNodes"), *t.NumNodes)...)
	}
	for _, entry := range entries {
		for _, rj := range ReplicatedJobsOf(entry.Patch) {
			if _, pod := PodPatchOf(&rj); pod != nil {
				errs = append(errs, l.checkGrace(entry.specPath(rj.Name).Child("terminationGracePeriodSeconds"),
					pod.TerminationGracePeriodSeconds)...)
			}
		}
	}
	return Few(errs)
}

// CheckRuntime returns an error for each limit that the TrainJob, with entries of every form, exceeds on its runtime.
// It is for before Compute.
func (l Limits) CheckRuntime(
	job *api.TrainJob, runtime *trainerapi.TrainingRuntimeSpec, entries []Entry,
) field.ErrorList {
	path := field.NewPath("spec", "runtimeRef")
	errs := l.checkBulk(path, fmt.Sprintf("the spec of runtime %q", job.Spec.RuntimeRef.Name), runtime)
	if len(errs) == 0 {
		errs = append(checkMagnitudes(path.Key(job.Spec.RuntimeRef.Name), runtime), l.checkMounts(runtime, entries)...)
	}
	pods, nodes := int64(0), int64(Nodes(job, runtime))
	for i := range runtime.Template.Spec.ReplicatedJobs {
		rj := &runtime.Template.Spec.ReplicatedJobs[i]
		each := int64(ptr.Deref(rj.Template.Spec.Parallelism, 1))
		if pipeline.IsTrainer(rj) && runtime.MLPolicy != nil {
			each = nodes
		}
		pods += max(each, 0) * int64(max(rj.Replicas, 1))
	}
	if most := max(pods, nodes); most > int64(l.Pods) {
		errs = append(errs, l.tooMany(path, most))
	}
	return Few(errs)
}

// checkNodes returns an error where a number of nodes is none, or exceeds the limit.
func (l Limits) checkNodes(path *field.Path, nodes int32) field.ErrorList {
	switch {
	case nodes < 1:
		return field.ErrorList{field.Invalid(path, nodes, "must be 1 or more: a TrainJob without nodes never runs")}
	case nodes > l.Pods:
		return field.ErrorList{l.tooMany(path, int64(nodes))}
	}
	return nil
}

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
	if n := elements(spec); n > l.Elements {
		return field.ErrorList{field.Invalid(path, fmt.Sprintf("%d elements", n), fmt.Sprintf(
			"the lists and maps of %s may have at most %d elements in all (limits.elements of Signalbox's configuration); move "+
				"environment to a ConfigMap, with envFrom", what, l.Elements))}
	}
	return nil
}

func elements(spec any) int {
	n := 0
	walk(nil, spec, func(_ *field.Path, _ string, value any) bool {
		if v := reflect.ValueOf(value).Elem(); v.Kind() == reflect.Slice || v.Kind() == reflect.Map {
			n += v.Len()
		}
		return true
	})
	return n
}
