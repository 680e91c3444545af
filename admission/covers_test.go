package admission

import (
	"errors"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/signalbox-dev/signalbox/podsets"
)

func TestCovers(t *testing.T) {
	podSet := func(count int32, gpus string) kueue.PodSet {
		return kueue.PodSet{
			Name:  "node",
			Count: count,
			Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: []corev1.Container{{
				Name: "node", Resources: corev1.ResourceRequirements{
					Limits: corev1.ResourceList{"nvidia.com/gpu": resource.MustParse(gpus)},
				}}}}},
		}
	}
	admitted := func(usage string, count *int32) *kueue.Workload {
		return &kueue.Workload{
			Spec: kueue.WorkloadSpec{PodSets: []kueue.PodSet{podSet(2, "8")}},
			Status: kueue.WorkloadStatus{Admission: &kueue.Admission{
				PodSetAssignments: []kueue.PodSetAssignment{
					{Name: "node", Count: count, ResourceUsage: corev1.ResourceList{"nvidia.com/gpu": resource.MustParse(usage)}},
				}}},
		}
	}
	inPart := func(wl *kueue.Workload, least int32) *kueue.Workload {
		wl.Spec.PodSets[0].MinCount = &least
		return wl
	}
	cases := map[string]struct {
		reason    string
		workload  *kueue.Workload
		computed  []kueue.PodSet
		reclaimed []kueue.ReclaimablePod
		uncounted []corev1.ResourceName
		want      string
	}{
		"what was admitted": {
			reason: "a limit without a request is counted as one", workload: admitted("16", ptr.To[int32](2)),
			computed: []kueue.PodSet{podSet(2, "8")},
		},
		"no count": {
			reason: "it is the PodSet's", workload: admitted("16", nil), computed: []kueue.PodSet{podSet(2, "8")},
		},
		"more than is needed": {
			reason: "Kueue adds overheads", workload: admitted("17", nil), computed: []kueue.PodSet{podSet(2, "8")},
		},
		"not admitted": {
			reason: "nothing stands for it", workload: &kueue.Workload{}, computed: []kueue.PodSet{podSet(2, "8")},
			want: "status.admission is not set",
		},
		"other PodSets": {
			reason: "somebody has edited the Workload, or the runtime", workload: admitted("16", nil),
			computed: []kueue.PodSet{podSet(2, "4")}, want: "spec.podSets",
		},
		"fewer pods": {
			reason: "Kueue admitted an earlier version of the Workload", workload: admitted("8", ptr.To[int32](1)),
			computed: []kueue.PodSet{podSet(2, "8")}, want: "[node].count is 1, but 2",
		},
		"less quota": {
			reason: "the same", workload: admitted("8", ptr.To[int32](2)), computed: []kueue.PodSet{podSet(2, "8")},
			want: "resourceUsage[nvidia.com/gpu] is 8, but 16",
		},
		"in part": {
			reason: "one pod is enough to start with", workload: inPart(admitted("8", ptr.To[int32](1)), 1),
			computed: inPart(admitted("8", nil), 1).Spec.PodSets,
		},
		"less than the minimum": {
			reason: "it is enough for nothing", workload: inPart(admitted("0", ptr.To[int32](0)), 1),
			computed: inPart(admitted("8", nil), 1).Spec.PodSets, want: "[node].count is 0, but 1",
		},
		"in part, with less quota": {
			reason: "each pod has its own", workload: inPart(admitted("7", ptr.To[int32](1)), 1),
			computed: inPart(admitted("8", nil), 1).Spec.PodSets, want: "resourceUsage[nvidia.com/gpu] is 7, but 8",
		},
		"pods that won't run": {
			reason: "an initializer that has succeeded needs nothing", workload: admitted("8", ptr.To[int32](1)),
			computed: []kueue.PodSet{podSet(2, "8")}, reclaimed: []kueue.ReclaimablePod{{Name: "node", Count: 1}},
		},
		"a PodSet without quota": {
			reason: "each needs its own", workload: admitted("16", nil),
			computed: []kueue.PodSet{podSet(2, "8"), podSet(1, "1")}, want: "spec.podSets",
		},
		"nothing counted at all": {
			reason: "the caller asks the ClusterQueue whether it should be",
			workload: func() *kueue.Workload {
				w := admitted("0", nil)
				w.Status.Admission.PodSetAssignments[0].ResourceUsage = nil
				return w
			}(),
			computed:  []kueue.PodSet{podSet(2, "8")},
			uncounted: []corev1.ResourceName{"nvidia.com/gpu"},
		},
		"an assignment elsewhere": {reason: "it is not this PodSet's", workload: func() *kueue.Workload {
			w := admitted("16", nil)
			w.Status.Admission.PodSetAssignments[0].Name = "other"
			return w
		}(), computed: []kueue.PodSet{podSet(2, "8")}, want: "without node"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			uncounted, err := Covers(c.workload, c.computed, c.reclaimed, podsets.Counting{})
			mismatch := (*MismatchError)(nil)
			if c.want == "" && err != nil ||
				c.want != "" && (!errors.As(err, &mismatch) || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("%s: got %v, want %q", c.reason, err, c.want)
			}
			if !slices.Equal(uncounted, c.uncounted) {
				t.Errorf("%s: got %v uncounted, want %v", c.reason, uncounted, c.uncounted)
			}
		})
	}
	cq := &kueue.ClusterQueue{
		Spec: kueue.ClusterQueueSpec{
			ResourceGroups: []kueue.ResourceGroup{{CoveredResources: []corev1.ResourceName{"nvidia.com/gpu"}}},
		},
	}
	if Uncovered(cq, []corev1.ResourceName{"memory"}) != nil {
		t.Error("what the ClusterQueue doesn't cover needn't be counted")
	}
	if Uncovered(cq, []corev1.ResourceName{"memory", "nvidia.com/gpu"}) == nil {
		t.Error("what the ClusterQueue covers must be counted")
	}
}
