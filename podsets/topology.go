package podsets

import (
	"encoding/json"
	"strconv"

	batchv1 "k8s.io/api/batch/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
)

// topologyRequest returns the topology request of a ReplicatedJob's pod template, read from Kueue's annotations. It is
// never nil: every PodSet of a JobSet ranks its pods by their completion index within the Jobs of the ReplicatedJob.
// The annotations and their precedence are Kueue's (v0.19.2, docs of topology-aware scheduling).
func topologyRequest(rj *jobset.ReplicatedJob, features Features) (*kueue.PodSetTopologyRequest, error) {
	annotations := rj.Template.Spec.Template.Annotations
	path := field.NewPath("template", "spec", "template", "metadata", "annotations")
	index, group, count := batchv1.JobCompletionIndexAnnotation, jobset.JobIndexKey, rj.Replicas
	request := &kueue.PodSetTopologyRequest{PodIndexLabel: &index, SubGroupIndexLabel: &group, SubGroupCount: &count}

	required, isRequired := annotations[kueue.PodSetRequiredTopologyAnnotation]
	preferred, isPreferred := annotations[kueue.PodSetPreferredTopologyAnnotation]
	unconstrained, isUnconstrained := annotations[kueue.PodSetUnconstrainedTopologyAnnotation]
	switch {
	case isRequired:
		request.Required = &required
	case isPreferred:
		request.Preferred = &preferred
	case isUnconstrained:
		value, err := strconv.ParseBool(unconstrained)
		if err != nil {
			return nil, field.Invalid(path.Key(kueue.PodSetUnconstrainedTopologyAnnotation), unconstrained,
				"must be true or false")
		}
		request.Unconstrained = &value
	}
	if name, found := annotations[kueue.PodSetGroupName]; found && (isRequired || isPreferred) {
		request.PodSetGroupName = &name
	}
	return request, addSlices(request, annotations, path, features)
}

// maxLayers is the number of layers of topology constraints that Kueue accepts.
const maxLayers = 3

func addSlices(request *kueue.PodSetTopologyRequest, annotations map[string]string, path *field.Path,
	features Features) error {
	if layers, found := annotations[kueue.PodSetSliceRequiredTopologyConstraintsAnnotation]; found &&
		features.MultiLayerTopology {
		at := path.Key(kueue.PodSetSliceRequiredTopologyConstraintsAnnotation)
		if err := json.Unmarshal([]byte(layers), &request.PodsetSliceRequiredTopologyConstraints); err != nil {
			return field.Invalid(at, layers, "must be a JSON list of constraints: "+err.Error())
		}
		if n := len(request.PodsetSliceRequiredTopologyConstraints); n < 1 || n > maxLayers {
			return field.Invalid(at, layers, "must hold 1 to 3 constraints")
		}
		return nil
	}
	topology, hasTopology := annotations[kueue.PodSetSliceRequiredTopologyAnnotation]
	size, hasSize := annotations[kueue.PodSetSliceSizeAnnotation]
	if !hasTopology || !hasSize {
		return nil
	}
	pods, err := strconv.ParseInt(size, 10, 32)
	if err != nil || pods < 1 {
		return field.Invalid(path.Key(kueue.PodSetSliceSizeAnnotation), size, "must be a whole number of pods, 1 or more")
	}
	n := int32(pods)
	request.PodSetSliceRequiredTopology, request.PodSetSliceSize = &topology, &n
	return nil
}
