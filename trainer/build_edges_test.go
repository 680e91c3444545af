package trainer

import (
	"strings"
	"testing"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"k8s.io/utils/ptr"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	jobsetac "sigs.k8s.io/jobset/client-go/applyconfiguration/jobset/v1alpha2"
	"sigs.k8s.io/yaml"
)

// What refers to a ReplicatedJob that is left out goes with it, and nothing else.
func TestLeaveOutOfPolicies(t *testing.T) {
	const jobs = "replicatedJobs: [{name: init}, {name: node, dependsOn: [{name: init, status: Complete}]}]\n"
	cases := map[string]struct{ reason, policy, want string }{
		"no policies": {"there is nothing to change", "", "replicatedJobs: [{name: node}]"},
		"success": {"it is done", "successPolicy: {operator: All, targetReplicatedJobs: [init, node]}",
			"successPolicy: {operator: All, targetReplicatedJobs: [node]}"},
		"success of all": {"no target is all", "successPolicy: {operator: All}", "successPolicy: {operator: All}"},
		"a rule for it": {"without a target it would be for all", "failurePolicy: {rules: [{name: a, " +
			"targetReplicatedJobs: [init]}, {name: b}]}", "failurePolicy: {rules: [{name: b}]}"},
		"a rule for both": {"it is for the other", "failurePolicy: {rules: [{name: a, targetReplicatedJobs: [init, node]}]}",
			"failurePolicy: {rules: [{name: a, targetReplicatedJobs: [node]}]}"},
		"a rule for all": {"it stays one for all", "failurePolicy: {rules: [{name: a}]}",
			"failurePolicy: {rules: [{name: a}]}"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			spec := read[jobsetac.JobSetSpecApplyConfiguration](t, jobs+c.policy)
			leaveOut(spec, map[string]bool{"init": true})
			want := read[jobset.JobSetSpec](t, c.want)
			want.ReplicatedJobs = []jobset.ReplicatedJob{{Name: "node"}}
			got := read[jobset.JobSetSpec](t, string(must(yaml.Marshal(spec))))
			if g, w := must(yaml.Marshal(got)), must(yaml.Marshal(want)); string(g) != string(w) {
				t.Errorf("%s: got\n%s\nwant\n%s", c.reason, g, w)
			}
		})
	}
}

// Existing objects don't affect what is built, above all the TrainJob's previous Secret.
func TestBuildSeesNothing(t *testing.T) {
	h := newHarness(t)
	h.put(sshAuth(), hostfile(nil))
	b := testBuilder(t, h.store)
	built, err := b.Build(t.Context(), h.trainJob("mpi", started), runtimeOf(t, "{numNodes: 2, mpi: {}}", lostVolume))
	if err != nil || len(built.SideObjects) != 2 {
		t.Errorf("the Secret is built although one is there: got %v, %v", built, err)
	}
}

// A TrainJob that takes all from its runtime has the environment that torchrun reads.
func TestTorchWithoutTrainer(t *testing.T) {
	h := newHarness(t)
	js, err := builtJobSet(testBuilder(t, h.store).Build(t.Context(), h.trainJob("torch", started),
		runtimeOf(t, "{numNodes: 2, torch: {}}", lostVolume)))
	if err != nil {
		t.Fatal(err)
	}
	env := map[string]string{}
	for _, e := range js.Spec.ReplicatedJobs[1].Template.Spec.Template.Spec.Containers[0].Env {
		env[*e.Name] = ptr.Deref(e.Value, "")
	}
	if env["PET_NNODES"] != "2" || env["PET_MASTER_ADDR"] == "" {
		t.Errorf("got %v", env)
	}
}

func TestBuildErrors(t *testing.T) {
	b := testBuilder(t, newHarness(t).store)
	job := jobOf(t, "torch", started)
	if _, err := b.Build(t.Context(), job, &trainerapi.TrainingRuntimeSpec{}); err == nil {
		t.Error("a runtime of nothing has no side objects to name")
	}
	errs := func(spec *trainerapi.TrainingRuntimeSpec) []string {
		t.Helper()
		_, list := b.Validate(t.Context(), nil, job, spec)
		var texts []string
		for _, e := range list {
			texts = append(texts, e.Error())
		}
		return texts
	}
	if got := errs(&trainerapi.TrainingRuntimeSpec{}); len(got) != 1 || !strings.Contains(got[0],
		"has no replicatedJobs") {
		t.Errorf("what can't be prepared is an error of a field: got %q", got)
	}
	if got := errs(runtimeOf(t, "{torch: {}}", lostVolume)); len(got) != 0 {
		t.Errorf("nothing is wrong: got %q", got)
	}
	before := jobOf(t, "torch", stopped)
	if _, list := b.Validate(t.Context(), before, job, runtimeOf(t, "{torch: {}}", lostVolume)); len(list) != 0 {
		t.Errorf("an update is validated against what was: got %v", list)
	}
}
