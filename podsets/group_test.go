package podsets

import (
	"fmt"
	"testing"

	"k8s.io/utils/ptr"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
)

func TestNodeGroup(t *testing.T) {
	const required, preferred = kueue.PodSetRequiredTopologyAnnotation, kueue.PodSetPreferredTopologyAnnotation
	type annotations map[string]string
	rack := annotations{required: "rack"}
	cases := map[string]struct {
		reason           string
		launcher, worker annotations
		want             string // required/preferred/group of both
	}{
		"of the workers":  {"the launcher is a node too", nil, rack, "rack//nodes rack//nodes"},
		"of the launcher": {"so are the workers", annotations{preferred: "rack"}, nil, "/rack/nodes /rack/nodes"},
		"of both":         {"they ask for one", rack, rack, "rack//nodes rack//nodes"},
		"two levels":      {"each has what it asks for", annotations{required: "block"}, rack, "block// rack//"},
		"two kinds":       {"the same", rack, annotations{preferred: "rack"}, "rack// /rack/"},
		"anywhere": {"the launcher says so", annotations{kueue.PodSetUnconstrainedTopologyAnnotation: "true"}, rack,
			"// rack//"},
		"none": {"nothing is asked for", nil, nil, "// //"},
		"a group of its own": {"the runtime knows better", annotations{required: "rack", kueue.PodSetGroupName: "mine"},
			annotations{required: "rack", kueue.PodSetGroupName: "mine"}, "rack//mine rack//mine"},
		"slices": {"Kueue groups none with slices", nil, annotations{required: "block",
			kueue.PodSetSliceRequiredTopologyAnnotation: "rack", kueue.PodSetSliceSizeAnnotation: "2"}, "// block//"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			annotated := func(a annotations) func(*jobset.ReplicatedJob) {
				return func(rj *jobset.ReplicatedJob) { rj.Template.Spec.Template.Annotations = a }
			}
			e := effective(replicatedJob("launcher", annotated(c.launcher)), replicatedJob("node", annotated(c.worker), pods(3)))
			e.NodeGroup = []string{"launcher", "node"}
			podSets, err := Of(e, Features{TopologyAware: true})
			if err != nil {
				t.Fatal(err)
			}
			show := func(p kueue.PodSet) string {
				r := p.TopologyRequest
				return fmt.Sprintf("%s/%s/%s",
					ptr.Deref(r.Required, ""), ptr.Deref(r.Preferred, ""), ptr.Deref(r.PodSetGroupName, ""))
			}
			if got := show(podSets[0]) + " " + show(podSets[1]); got != c.want {
				t.Errorf("%s: got %s, want %s", c.reason, got, c.want)
			}
			if podSets, err = Of(e, Features{}); err != nil || podSets[0].TopologyRequest != nil {
				t.Errorf("without the gate there is no request: got %v, %v", podSets[0].TopologyRequest, err)
			}
		})
	}
	e := effective(replicatedJob("node"))
	e.NodeGroup = []string{"launcher", "node"}
	podSets, err := Of(e, Features{TopologyAware: true})
	if err != nil || podSets[0].TopologyRequest.PodSetGroupName != nil {
		t.Errorf("there is no group of one: got %v, %v", podSets, err)
	}
}
