package podsets

import (
	"encoding/json"
	"slices"
	"strconv"

	batchv1 "k8s.io/api/batch/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
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

const nodesGroup = "nodes"

// groupNodes has the launcher and the workers of an MPI runtime with runLauncherAsNode placed together: both are
// nodes, so the topology that one of them requests is for both. It changes nothing if the runtime groups PodSets
// itself, requests slices, or requests different topologies for the two.
func groupNodes(podSets []kueue.PodSet, names []string) {
	var requests []*kueue.PodSetTopologyRequest
	for i := range podSets {
		if slices.Contains(names, string(podSets[i].Name)) {
			requests = append(requests, podSets[i].TopologyRequest)
		}
	}
	if len(requests) != 2 {
		return
	}
	level := requests[0]
	if !hasLevel(level) {
		level = requests[1]
	}
	if !hasLevel(level) || !joins(requests[0], level) || !joins(requests[1], level) {
		return
	}
	for _, r := range requests {
		r.Required, r.Preferred, r.PodSetGroupName = level.Required, level.Preferred, ptr.To(nodesGroup)
	}
}

func hasLevel(r *kueue.PodSetTopologyRequest) bool { return r.Required != nil || r.Preferred != nil }

// joins reports whether a PodSet with the request r can join a group with the request level.
func joins(r, level *kueue.PodSetTopologyRequest) bool {
	if r.PodSetGroupName != nil || r.PodSetSliceRequiredTopology != nil ||
		len(r.PodsetSliceRequiredTopologyConstraints) > 0 || r.Unconstrained != nil {
		return false
	}
	return !hasLevel(r) || ptr.Equal(r.Required, level.Required) && ptr.Equal(r.Preferred, level.Preferred)
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

// Features are the feature gates of Kueue that PodSets depend on.
type Features struct {
	// TopologyAware reads topology requests from the pod templates' annotations (gate TopologyAwareScheduling).
	TopologyAware bool
	// MultiLayerTopology reads constraints on several layers (gate TASMultiLayerTopology).
	MultiLayerTopology bool
}
