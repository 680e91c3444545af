package podsets

import (
	"errors"
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
