package trainer

import (
	"testing"

	"github.com/signalbox-dev/signalbox/overrides"
)

func TestBuildInPart(t *testing.T) {
	b := testBuilder(t, newHarness(t).store)
	job := jobOf(t, "torch", "spec: {suspend: false, trainer: {numNodes: 8}, runtimePatches: [{manager: "+
		overrides.Manager+", trainingRuntimeSpec: {template: {spec: {replicatedJobs: [{name: node, template: {metadata: "+
		"{annotations: {signalbox.dev/nodes: '3'}}}}]}}}}]}")
	_, js, err := b.Build(t.Context(), job, runtimeOf(t, "{torch: {}}", lostVolume))
	if err != nil {
		t.Fatal(err)
	}
	for i := range js.Spec.ReplicatedJobs {
		rj := &js.Spec.ReplicatedJobs[i]
		if *rj.Name != "node" {
			continue
		}
		told := ""
		for _, e := range rj.Template.Spec.Template.Spec.Containers[0].Env {
			if *e.Name == "PET_NNODES" {
				told = *e.Value
			}
		}
		if *rj.Template.Spec.Parallelism != 3 || *rj.Template.Spec.Completions != 3 || told != "3" {
			t.Errorf("got %d pods, and PET_NNODES=%s", *rj.Template.Spec.Parallelism, told)
		}
		return
	}
	t.Error("there is no ReplicatedJob node")
}
