package podsets

import (
	"errors"
	"fmt"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
)

func TestTopologyRequest(t *testing.T) {
	index, group := batchv1.JobCompletionIndexAnnotation, jobset.JobIndexKey
	base := func(change func(*kueue.PodSetTopologyRequest)) *kueue.PodSetTopologyRequest {
		r := &kueue.PodSetTopologyRequest{PodIndexLabel: &index, SubGroupIndexLabel: &group, SubGroupCount: ptr.To[int32](2)}
		change(r)
		return r
	}
	all := Features{TopologyAware: true, MultiLayerTopology: true}
	cases := map[string]struct {
		reason      string
		annotations map[string]string
		features    Features
		want        *kueue.PodSetTopologyRequest
		invalid     string
	}{
		"none": {
			reason: "pods of a JobSet are ranked even where no topology is asked for",
			want:   base(func(*kueue.PodSetTopologyRequest) {}),
		},
		"required": {
			reason:      "the annotation names the level",
			annotations: map[string]string{kueue.PodSetRequiredTopologyAnnotation: "rack"},
			want:        base(func(r *kueue.PodSetTopologyRequest) { r.Required = ptr.To("rack") }),
		},
		"preferred": {
			reason:      "the annotation names the level",
			annotations: map[string]string{kueue.PodSetPreferredTopologyAnnotation: "block"},
			want:        base(func(r *kueue.PodSetTopologyRequest) { r.Preferred = ptr.To("block") }),
		},
		"required before preferred": {
			reason: "Kueue takes the first of the three",
			annotations: map[string]string{kueue.PodSetRequiredTopologyAnnotation: "rack",
				kueue.PodSetPreferredTopologyAnnotation: "block"},
			want: base(func(r *kueue.PodSetTopologyRequest) { r.Required = ptr.To("rack") }),
		},
		"unconstrained": {
			reason:      "the annotation is a boolean",
			annotations: map[string]string{kueue.PodSetUnconstrainedTopologyAnnotation: "true"},
			want:        base(func(r *kueue.PodSetTopologyRequest) { r.Unconstrained = ptr.To(true) }),
		},
		"unconstrained, no boolean": {
			reason:      "the error names the annotation",
			annotations: map[string]string{kueue.PodSetUnconstrainedTopologyAnnotation: "perhaps"},
			invalid:     kueue.PodSetUnconstrainedTopologyAnnotation,
		},
		"group": {
			reason:      "a group needs a level",
			annotations: map[string]string{kueue.PodSetRequiredTopologyAnnotation: "rack", kueue.PodSetGroupName: "all"},
			want: base(func(r *kueue.PodSetTopologyRequest) {
				r.Required, r.PodSetGroupName = ptr.To("rack"), ptr.To("all")
			}),
		},
		"group without a level": {
			reason:      "Kueue takes no group without a level",
			annotations: map[string]string{kueue.PodSetGroupName: "all"},
			want:        base(func(*kueue.PodSetTopologyRequest) {}),
		},
		"slices": {
			reason: "a slice needs its size",
			annotations: map[string]string{kueue.PodSetSliceRequiredTopologyAnnotation: "host",
				kueue.PodSetSliceSizeAnnotation: "4"},
			want: base(func(r *kueue.PodSetTopologyRequest) {
				r.PodSetSliceRequiredTopology, r.PodSetSliceSize = ptr.To("host"), ptr.To[int32](4)
			}),
		},
		"slices of no size": {
			reason:      "half of the pair says nothing",
			annotations: map[string]string{kueue.PodSetSliceRequiredTopologyAnnotation: "host"},
			want:        base(func(*kueue.PodSetTopologyRequest) {}),
		},
		"slices of a wrong size": {
			reason: "the error names the annotation",
			annotations: map[string]string{kueue.PodSetSliceRequiredTopologyAnnotation: "host",
				kueue.PodSetSliceSizeAnnotation: "four"},
			invalid: kueue.PodSetSliceSizeAnnotation,
		},
		"layers": {
			reason: "several layers are a JSON list",
			annotations: map[string]string{
				kueue.PodSetSliceRequiredTopologyConstraintsAnnotation: `[{"topology":"rack","size":8},` +
					`{"topology":"host","size":4}]`,
			},
			want: base(func(r *kueue.PodSetTopologyRequest) {
				r.PodsetSliceRequiredTopologyConstraints = []kueue.PodsetSliceRequiredTopologyConstraint{
					{Topology: "rack", Size: 8}, {Topology: "host", Size: 4},
				}
			}),
		},
		"layers without their feature": {
			reason: "Kueue doesn't read them then either",
			annotations: map[string]string{
				kueue.PodSetSliceRequiredTopologyConstraintsAnnotation: `[{"topology":"rack","size":8}]`,
			},
			features: Features{TopologyAware: true},
			want:     base(func(*kueue.PodSetTopologyRequest) {}),
		},
		"layers that are no list": {
			reason:      "the error names the annotation",
			annotations: map[string]string{kueue.PodSetSliceRequiredTopologyConstraintsAnnotation: `{}`},
			invalid:     kueue.PodSetSliceRequiredTopologyConstraintsAnnotation,
		},
		"too many layers": {
			reason:      "Kueue takes three",
			annotations: map[string]string{kueue.PodSetSliceRequiredTopologyConstraintsAnnotation: `[{},{},{},{}]`},
			invalid:     kueue.PodSetSliceRequiredTopologyConstraintsAnnotation,
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			features := c.features
			if features == (Features{}) {
				features = all
			}
			podSets, err := Of(effective(replicatedJob("node", func(rj *jobset.ReplicatedJob) {
				rj.Replicas, rj.Template.Spec.Template.Annotations = 2, c.annotations
			})), features)
			if c.invalid != "" {
				var invalid *field.Error
				if !errors.As(err, &invalid) || invalid.Field != "template.spec.template.metadata.annotations["+c.invalid+"]" {
					t.Errorf("%s: got %v", c.reason, err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if !equality.Semantic.DeepEqual(podSets[0].TopologyRequest, c.want) {
				t.Errorf("%s: got %+v, want %+v", c.reason, podSets[0].TopologyRequest, c.want)
			}
		})
	}
}

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
