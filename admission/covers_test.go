package admission

import (
	"errors"
	"slices"
	"strings"
	"testing"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/signalbox-dev/signalbox/overrides"
	"github.com/signalbox-dev/signalbox/overrides/dialect"
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

func TestRank(t *testing.T) {
	grouped := func(launchers, workers int32, change ...func(wl *kueue.Workload)) *kueue.Workload {
		wl := &kueue.Workload{}
		request := kueue.PodSetTopologyRequest{Required: ptr.To("rack"), PodSetGroupName: ptr.To("nodes")}
		wl.Spec.PodSets = []kueue.PodSet{
			{Name: "node", Count: workers, TopologyRequest: request.DeepCopy()},
			{Name: "launcher", Count: launchers, TopologyRequest: request.DeepCopy()},
			{Name: "other", Count: 1},
		}
		wl.Status.Admission = &kueue.Admission{PodSetAssignments: []kueue.PodSetAssignment{
			{Name: "node", Count: &workers, TopologyAssignment: &kueue.TopologyAssignment{}},
			{Name: "launcher", Count: &launchers, TopologyAssignment: &kueue.TopologyAssignment{}},
			{Name: "other", Count: ptr.To[int32](1)},
		}}
		for _, c := range change {
			c(wl)
		}
		return wl
	}
	cases := map[string]struct {
		reason   string
		workload *kueue.Workload
		want     string // of node, launcher and other
	}{
		"workers": {"Kueue expects them after the launcher", grouped(1, 3), "-1  "},
		"as many": {"to Kueue the first is the smaller then", grouped(1, 1), " -1 "},
		"alone": {"they are no group", grouped(1, 3, func(wl *kueue.Workload) {
			wl.Spec.PodSets[1].TopologyRequest.PodSetGroupName = nil
		}), "  "},
		"without a topology": {"nothing is ranked", grouped(1, 3, func(wl *kueue.Workload) {
			for i := range wl.Status.Admission.PodSetAssignments {
				wl.Status.Admission.PodSetAssignments[i].TopologyAssignment = nil
			}
		}), "  "},
		"the runtime's": {"it counts by itself", grouped(1, 3, func(wl *kueue.Workload) {
			wl.Spec.PodSets[0].Template.Annotations = map[string]string{kueue.PodIndexOffsetAnnotation: "0"}
		}), "  "},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			all := map[kueue.PodSetReference]*needs{}
			got := ""
			for i, name := range []kueue.PodSetReference{"node", "launcher", "other"} {
				all[name] = &needs{annotations: map[string]string{}}
				if i == 2 {
					rank(c.workload, all)
				}
			}
			for i, name := range []kueue.PodSetReference{"node", "launcher", "other"} {
				if i > 0 {
					got += " "
				}
				got += all[name].annotations[kueue.PodIndexOffsetAnnotation]
			}
			if got != c.want {
				t.Errorf("%s: got %q, want %q", c.reason, got, c.want)
			}
		})
	}
}

func TestTopologyOf(t *testing.T) {
	type request = kueue.PodSetTopologyRequest
	const unconstrained = kueue.PodSetUnconstrainedTopologyAnnotation
	for name, c := range map[string]struct {
		request    *request
		key, level string
	}{
		"required":      {&request{Required: ptr.To("rack")}, kueue.PodSetRequiredTopologyAnnotation, "rack"},
		"preferred":     {&request{Preferred: ptr.To("rack")}, kueue.PodSetPreferredTopologyAnnotation, "rack"},
		"unconstrained": {&request{Unconstrained: ptr.To(false)}, unconstrained, "false"},
		"nothing":       {&request{}, unconstrained, "true"},
		"no request":    {nil, unconstrained, "true"},
	} {
		if key, level := topologyOf(&kueue.PodSet{TopologyRequest: c.request}); key != c.key || level != c.level {
			t.Errorf("%s: got %s=%s", name, key, level)
		}
	}
}

// admitInPart makes the TrainJob one of eight nodes that is admitted with three.
func admitInPart(in *Input) {
	in.Dialect = dialect.Bundled
	in.Job.Spec.Trainer = &trainerapi.Trainer{NumNodes: ptr.To[int32](8)}
	podSet := &in.Workload.Spec.PodSets[0]
	podSet.Count, podSet.MinCount = 8, ptr.To[int32](2)
	in.Workload.Status.Admission.PodSetAssignments[0].Count = ptr.To[int32](3)
}

func TestDecideInPart(t *testing.T) {
	in := input(t, admitInPart)
	start, err := Decide(in)
	if err != nil {
		t.Fatal(err)
	}
	rj := start.Entry.TrainingRuntimeSpec.Template.Spec.ReplicatedJobs[0]
	if got := rj.Template.Metadata.Annotations[overrides.NodesAnnotation]; got != "3" {
		t.Errorf("the entry says %q nodes, want 3", got)
	}
	e, err := in.Dialect.Compute(in.Job, in.Runtime, in.Dialect.With(in.Job, start.Entry))
	if err != nil {
		t.Fatal(err)
	}
	if got := overrides.PodsPerJob(&e.ReplicatedJobs[0]); got != 3 {
		t.Errorf("%d pods run, want 3", got)
	}
	in.Job.Spec.RuntimePatches = []trainerapi.RuntimePatch{Neutral(&start.Entry)}
	if e, err = in.Dialect.Compute(in.Job, in.Runtime, in.Dialect.Entries(in.Job)); err != nil {
		t.Fatal(err)
	}
	if got := overrides.PodsPerJob(&e.ReplicatedJobs[0]); got != 8 {
		t.Errorf("once the entry is cleared it asks for %d pods, want 8", got)
	}
	start, err = Decide(input(t))
	if err != nil {
		t.Fatal(err)
	}
	if rj := start.Entry.TrainingRuntimeSpec.Template.Spec.ReplicatedJobs[0]; rj.Template.Metadata != nil {
		t.Errorf("one that is admitted as a whole says %v of its nodes", rj.Template.Metadata)
	}
}
