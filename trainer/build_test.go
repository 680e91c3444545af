package trainer

import (
	"context"
	"strings"
	"testing"

	trainerconfig "github.com/kubeflow/trainer/v2/pkg/apis/config/v1alpha1"
	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"github.com/kubeflow/trainer/v2/pkg/constants"
	trainerruntime "github.com/kubeflow/trainer/v2/pkg/runtime"
	"github.com/kubeflow/trainer/v2/pkg/runtime/framework"
	"github.com/kubeflow/trainer/v2/pkg/runtime/framework/plugins"
	corev1 "k8s.io/api/core/v1"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	jobsetac "sigs.k8s.io/jobset/client-go/applyconfiguration/jobset/v1alpha2"
	"sigs.k8s.io/yaml"

	"github.com/signalbox-dev/signalbox/overrides"
	"github.com/signalbox-dev/signalbox/overrides/dialect"
	"github.com/signalbox-dev/signalbox/overrides/pipeline"
	"github.com/signalbox-dev/signalbox/podsets"
)

// doubling is an ML policy of a later Trainer: it doubles the trainer step's pods, tells them so, and gives each more
// CPUs.
type doubling struct{}

var _ framework.EnforceMLPolicyPlugin = doubling{}

func (doubling) Name() string { return "Doubling" }

func (doubling) EnforceMLPolicy(info *trainerruntime.Info, _ *trainerapi.TrainJob) error {
	podSet := info.FindPodSetByAncestor(constants.AncestorTrainer)
	*podSet.Count *= 2
	podSet.Containers[0].Env = append(podSet.Containers[0].Env, *corev1ac.EnvVar().WithName("DOUBLED").WithValue("true"))
	spec, _ := trainerruntime.TemplateSpecApply[jobsetac.JobSetSpecApplyConfiguration](info)
	for i := range spec.ReplicatedJobs {
		if *spec.ReplicatedJobs[i].Name == podSet.Name {
			spec.ReplicatedJobs[i].Template.Spec.Template.Spec.Containers[0].WithResources(
				corev1ac.ResourceRequirements().WithRequests(resourceList("cpu: 7")))
		}
	}
	return nil
}

// TestPluginIsQueuedAndBuilt holds that a plugin that a later Trainer registers changes what is queued as it changes
// what is built: there are no two lists of plugins.
func TestPluginIsQueuedAndBuilt(t *testing.T) {
	restorePlugins(t)
	registry := plugins.NewRegistry()
	registry["Doubling"] = func(
		context.Context, client.Client, client.FieldIndexer, *trainerconfig.Configuration,
	) (framework.Plugin, error) {
		return doubling{}, nil
	}
	if err := pipeline.Use(registry, &trainerconfig.Configuration{}); err != nil {
		t.Fatal(err)
	}
	job, spec := jobOf(t, "torch", "{}"), runtimeOf(t, "{numNodes: 2, torch: {}}", lastingVolume)
	e, err := overrides.NewMemo(64<<20).Compute(dialect.Bundled.Rules, job, spec, dialect.Bundled.Entries(job))
	if err != nil {
		t.Fatal(err)
	}
	queued, err := podsets.Of(e, podsets.Features{})
	if err != nil {
		t.Fatal(err)
	}
	for _, podSet := range queued {
		if cpu := podSet.Template.Spec.Containers[0].Resources.Requests.Cpu(); podSet.Name == "node" &&
			(podSet.Count != 4 || cpu.Value() != 7) {
			t.Errorf("queued are %d pods with %s CPUs, want 4 with 7", podSet.Count, cpu)
		}
	}
	whole, err := dialect.Bundled.Compute(job, spec, dialect.Bundled.Entries(job))
	if err != nil {
		t.Fatal(err)
	}
	js, err := builtJobSet(testBuilder(t, testClient(t)).Build(t.Context(), job, spec))
	if err != nil {
		t.Fatal(err)
	}
	built, err := pipeline.SpecOf(js)
	if err != nil {
		t.Fatal(err)
	}
	for name, of := range map[string][]jobset.ReplicatedJob{
		"computed": whole.Built, "built": built.ReplicatedJobs,
	} {
		node := (&overrides.Effective{ReplicatedJobs: of}).ReplicatedJob("node")
		container := &node.Template.Spec.Template.Spec.Containers[0]
		if ptr.Deref(node.Template.Spec.Parallelism, 0) != 4 || ptr.Deref(node.Template.Spec.Completions, 0) != 4 ||
			container.Resources.Requests.Cpu().Value() != 7 || valueOf(container.Env, "DOUBLED") != "true" {
			t.Errorf("%s are %s, want 4 pods with 7 CPUs that are told", name, jsonOf(t, node))
		}
	}
}

// valueOf returns the value of an environment variable, "" if there is none.
func valueOf(env []corev1.EnvVar, name string) string {
	for _, v := range env {
		if v.Name == name {
			return v.Value
		}
	}
	return ""
}

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
