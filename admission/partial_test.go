package admission

import (
	"testing"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"k8s.io/utils/ptr"

	"github.com/signalbox-dev/signalbox/overrides"
)

// admitInPart makes the TrainJob one of eight nodes that is admitted with three.
func admitInPart(in *Input) {
	in.Dialect = overrides.Bundled
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
