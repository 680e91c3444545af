package overrides_test

import (
	"strings"
	"testing"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides"
	"github.com/signalbox-dev/signalbox/overrides/dialect"
	"github.com/signalbox-dev/signalbox/overrides/legacy"
)

// admittedWith is the integration's entry of a TrainJob that was admitted with so many nodes, by any manager.
func admittedWith(t *testing.T, manager, nodes string) []overrides.Entry {
	t.Helper()
	return listed(must[[]trainerapi.RuntimePatch](t, `[{manager: `+manager+`, trainingRuntimeSpec: {template: {spec: {
  replicatedJobs: [{name: node, template: {metadata: {annotations: {signalbox.dev/nodes: "`+nodes+`"}}}}]}}}}]`))
}

func TestAdmittedNodes(t *testing.T) {
	cases := map[string]struct {
		reason, runtime, manager, nodes, want string
	}{
		"torch":   {"its nodes follow", torchRuntime, overrides.Manager, "3", "dataset-initializer:1×1 node:1×3"},
		"plain":   {"without a policy too", plainRuntime(""), overrides.Manager, "3", "node:1×3 cache:3×5"},
		"mpi":     {"the launcher is one of them", mpiRuntime, overrides.Manager, "3", "node:1×2 launcher:1×1"},
		"another": {"it means nothing there", torchRuntime, "example.com/team", "3", "dataset-initializer:1×1 node:1×8"},
		"none":    {"the entry says nothing", torchRuntime, overrides.Manager, "", "dataset-initializer:1×1 node:1×8"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			job := jobOf(t, "{trainer: {numNodes: 8}}")
			rt := must[trainerapi.TrainingRuntimeSpec](t, c.runtime)
			e, err := dialect.Bundled.Compute(job, &rt, admittedWith(t, c.manager, c.nodes))
			if err != nil {
				t.Fatal(err)
			}
			if got := shape(e); got != c.want {
				t.Errorf("%s: got %s, want %s", c.reason, got, c.want)
			}
			if *job.Spec.Trainer.NumNodes != 8 {
				t.Error("the TrainJob was changed")
			}
		})
	}
}

func TestMinNodes(t *testing.T) {
	cases := map[string]struct {
		reason, own, runtime string
		want                 int32
		refused, rejected    string // by MinNodes, by CheckMinNodes
	}{
		"none":          {reason: "it has to have all", want: 8},
		"its own":       {reason: "as few as it says", own: "2", want: 2},
		"the runtime's": {reason: "for those that say nothing", runtime: "3", want: 3},
		"both":          {reason: "its own goes before", own: "2", runtime: "3", want: 2},
		"a larger runtime's": {
			reason: "it concerns larger TrainJobs", runtime: "16", want: 8,
		},
		"all": {reason: "that is no minimum", own: "8", want: 8,
			rejected: "must be below the number of nodes that the TrainJob requests, 8"},
		"no number": {reason: "what it means isn't known", own: "half", want: 8, rejected: `"half"`,
			refused: `metadata.annotations[kueue.x-k8s.io/job-min-parallelism]: Invalid value: "half"`},
		"nothing":   {reason: "no node trains nothing", own: "0", want: 8, refused: "1 or more", rejected: "1 or more"},
		"too large": {reason: "it is no count", own: "4294967297", want: 8, refused: "1 or more", rejected: "1 or more"},
		"of a runtime": {reason: "it says whose it is", runtime: "-1", want: 8,
			refused: `runtime torch.metadata.annotations`},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			job := jobOf(t, "{runtimeRef: {name: torch}, trainer: {numNodes: 8}}")
			rt := must[trainerapi.TrainingRuntimeSpec](t, torchRuntime)
			if c.own != "" {
				metav1.SetMetaDataAnnotation(&job.ObjectMeta, overrides.MinParallelismAnnotation, c.own)
			}
			if c.runtime != "" {
				metav1.SetMetaDataAnnotation(&rt.Template.ObjectMeta, overrides.MinParallelismAnnotation, c.runtime)
			}
			got, err := overrides.MinNodes(job, &rt)
			if got != c.want || (err == nil) != (c.refused == "") || err != nil && !strings.Contains(err.Error(), c.refused) {
				t.Errorf("%s: got %d, %v", c.reason, got, err)
			}
			errs := overrides.CheckMinNodes(job, &rt)
			if (len(errs) == 0) != (c.rejected == "") ||
				len(errs) > 0 && !strings.Contains(errs.ToAggregate().Error(), c.rejected) {
				t.Errorf("%s: got %v, want %q", c.reason, errs, c.rejected)
			}
		})
	}
}

func TestNodes(t *testing.T) {
	rt := must[trainerapi.TrainingRuntimeSpec](t, torchRuntime)
	for spec, want := range map[string]int32{"{}": 2, "{trainer: {image: a}}": 2, "{trainer: {numNodes: 5}}": 5} {
		if got := overrides.Nodes(jobOf(t, spec), &rt); got != want {
			t.Errorf("%s: got %d, want %d", spec, got, want)
		}
	}
	if got := overrides.Nodes(&api.TrainJob{}, &trainerapi.TrainingRuntimeSpec{}); got != 1 {
		t.Errorf("got %d nodes where nobody says how many", got)
	}
	job := jobOf(t, "{trainer: {numNodes: 5, image: a}}")
	if other := overrides.WithNodes(job, 2); *other.Spec.Trainer.NumNodes != 2 || *other.Spec.Trainer.Image != "a" ||
		*job.Spec.Trainer.NumNodes != 5 {
		t.Errorf("got %v of %v", other.Spec.Trainer, job.Spec.Trainer)
	}
}

func TestCheckResize(t *testing.T) {
	gpus := func(n string) string { return "{trainer: {resourcesPerNode: {limits: {nvidia.com/gpu: " + n + "}}}}" }
	cases := map[string]struct {
		reason, before, after string
		left, resized         bool
		refused               string
	}{
		"more nodes": {"its Workload follows", "{trainer: {numNodes: 2}}", "{trainer: {numNodes: 4}}", false, true, ""},
		"the last run is left": {"its pods hold quota", "{trainer: {numNodes: 2}}", "{trainer: {numNodes: 4}}", true, true,
			"when JobSet last is deleted"},
		"other nodes":         {"they ask for something else", gpus("1"), gpus("2"), true, true, "spec.trainer"},
		"the same, otherwise": {"a quantity has several forms", gpus("1"), gpus(`"1"`), true, false, ""},
		"the runtime's":       {"the TrainJob says it now", "{}", "{trainer: {numNodes: 4}}", true, true, "spec.trainer"},
		"nothing":             {"only something else has changed", "{}", "{suspend: true}", true, false, ""},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			before, after, js := jobOf(t, c.before), jobOf(t, c.after), (*jobset.JobSet)(nil)
			if c.left {
				js = &jobset.JobSet{}
				js.Name = "last"
			}
			if got := overrides.Resized(before, after); got != c.resized {
				t.Errorf("%s: got %t", c.reason, got)
			}
			errs := overrides.CheckResize(before, after, js)
			if (len(errs) == 0) != (c.refused == "") ||
				len(errs) > 0 && !strings.Contains(errs.ToAggregate().Error(), c.refused) {
				t.Errorf("%s: got %v, want %q", c.reason, errs, c.refused)
			}
		})
	}
}

// Anybody may name the integration in templateOverrides of a request; the webhook rejects it, and nothing follows it.
func TestAdmittedNodesOfAHistory(t *testing.T) {
	forged := admittedWith(t, overrides.Manager, "3")
	forged[0].Field = legacy.TemplateOverrides
	rt := must[trainerapi.TrainingRuntimeSpec](t, torchRuntime)
	e, err := dialect.Bundled.Compute(jobOf(t, "{trainer: {numNodes: 5}}"), &rt, forged)
	if err != nil {
		t.Fatal(err)
	}
	if got := overrides.PodsPerJob(e.ReplicatedJob("node")); got != 5 {
		t.Errorf("got %d nodes", got)
	}
}
