package admission

import (
	"testing"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"k8s.io/utils/ptr"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/signalbox-dev/signalbox/overrides"
	"github.com/signalbox-dev/signalbox/overrides/dialect"
)

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
