package overrides_test

import (
	"slices"
	"strings"
	"testing"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"k8s.io/apimachinery/pkg/api/equality"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	"github.com/signalbox-dev/signalbox/overrides"
	"github.com/signalbox-dev/signalbox/overrides/dialect"
)

// settable are TrainJobs that set one field each, by its path.
var settable = map[string]string{
	"spec.trainer.image":                  "{trainer: {image: mine}}",
	"spec.trainer.command":                "{trainer: {command: [mine]}}",
	"spec.trainer.args":                   "{trainer: {args: [mine]}}",
	"spec.trainer.env":                    "{trainer: {env: [{name: MINE}]}}",
	"spec.trainer.numNodes":               "{trainer: {numNodes: 7}}",
	"spec.trainer.numProcPerNode":         "{trainer: {numProcPerNode: 7}}",
	"spec.trainer.resourcesPerNode":       "{trainer: {resourcesPerNode: {requests: {memory: 7Gi}}}}",
	"spec.initializer.dataset.storageUri": "{initializer: {dataset: {storageUri: 'hf://mine'}}}",
	"spec.initializer.dataset.env":        "{initializer: {dataset: {env: [{name: MINE}]}}}",
	"spec.initializer.dataset.secretRef":  "{initializer: {dataset: {secretRef: {name: mine}}}}",
	"spec.initializer.model.storageUri":   "{initializer: {model: {storageUri: 'hf://mine'}}}",
	"spec.initializer.model.env":          "{initializer: {model: {env: [{name: MINE}]}}}",
	"spec.initializer.model.secretRef":    "{initializer: {model: {secretRef: {name: mine}}}}",
}

// TestUnused holds that each field of spec.trainer and spec.initializer either changes what runs, or is warned of with
// its path and what to do: never both, on runtimes of all kinds.
func TestUnused(t *testing.T) {
	const label = "trainer.kubeflow.org/trainjob-ancestor-step: "
	whole := strings.Replace(torchRuntime, "    - name: node", strings.Replace(`    - name: model-initializer
      template:
        metadata: {labels: {LABELmodel-initializer}}
        spec: {template: {spec: {containers: [{name: model-initializer, image: init}]}}}
    - name: node`, "LABEL", label, 1), 1)
	without := func(old, replacement string) string {
		if !strings.Contains(whole, old) {
			t.Fatalf("the runtime has no %q", old)
		}
		return strings.Replace(whole, old, replacement, 1)
	}
	const procs = "spec.trainer.numProcPerNode"
	const dataset, model = "spec.initializer.dataset.", "spec.initializer.model."
	runtimes := map[string]struct {
		runtime string
		unused  []string // of what starts so
	}{
		"torch":             {whole, nil},
		"no policy":         {without("mlPolicy: {numNodes: 2, torch: {}}", "{}"), []string{procs}},
		"jax":               {without("torch: {}", "jax: {}"), []string{procs}},
		"xgboost":           {without("torch: {}", "xgboost: {}"), []string{procs}},
		"flux":              {without("torch: {}", "flux: {numProcPerNode: 1}"), nil},
		"plain":             {without(", torch: {}", ""), []string{procs}},
		"no trainer step":   {without("{"+label+"trainer}", "{}"), []string{"spec.trainer."}},
		"another container": {without("- {name: node, image", "- {name: main, image"), allBut("numNodes")},
		"no dataset step":   {without("{"+label+"dataset-initializer}", "{}"), []string{dataset}},
		"no model step":     {without("{"+label+"model-initializer}", "{}"), []string{model}},
		"other container":   {without("{name: dataset-initializer, image", "{name: init, image"), []string{dataset}},
		"mpi":               {mpiRuntime, []string{"spec.initializer."}},
		"mpi beside":        {strings.Replace(mpiRuntime, "runLauncherAsNode: true", "", 1), []string{"spec.initializer."}},
		"mpi with another launcher": {strings.Replace(mpiRuntime, "name: launcher\n", "name: main\n", 1),
			[]string{"spec.initializer.", procs}},
		"mpi without nodes": {strings.Replace(mpiRuntime, "name: node\n", "name: worker\n", 1),
			[]string{"spec.initializer.", "spec.trainer.numNodes"}},
		"mpi without a launcher": {strings.Replace(mpiRuntime, "{"+label+"trainer}", "{}", 1),
			[]string{"spec.initializer.", "spec.trainer.image", "spec.trainer.command", "spec.trainer.args"}},
	}
	for name, c := range runtimes {
		t.Run(name, func(t *testing.T) {
			text := c.runtime
			if strings.HasPrefix(strings.TrimSpace(text), "{}") {
				text = strings.Replace(text, "{}", "", 1)
			}
			rt := must[trainerapi.TrainingRuntimeSpec](t, text)
			plain := built(t, "{}", &rt)
			for path, spec := range settable {
				warnings := strings.Join(dialect.Bundled.Unused(jobOf(t, spec), &rt), "; ")
				changes := !equality.Semantic.DeepEqual(built(t, spec, &rt), plain) ||
					name == "flux" && path == "spec.trainer.numProcPerNode" // in a ConfigMap
				if changes != (warnings == "") {
					t.Errorf("%s changes what runs: %v; warned: %q", path, changes, warnings)
				}
				if warnings != "" && (!strings.Contains(warnings, path) || !strings.Contains(warnings, `"torch"`) ||
					!strings.Contains(warnings, "to the runtime, or ") && !strings.Contains(warnings, "remove the field")) {
					t.Errorf("%s: %q doesn't name the path, the runtime and what to do", path, warnings)
				}
				listed := slices.ContainsFunc(c.unused, func(p string) bool { return strings.HasPrefix(path, p) })
				if listed == changes {
					t.Errorf("%s changes what runs: %v", path, changes)
				}
			}
		})
	}
}

// allBut returns the fields of spec.trainer but for one.
func allBut(name string) (paths []string) {
	for path := range settable {
		if strings.HasPrefix(path, "spec.trainer.") && path != "spec.trainer."+name {
			paths = append(paths, path)
		}
	}
	return paths
}

func built(t *testing.T, spec string, rt *trainerapi.TrainingRuntimeSpec) []jobset.ReplicatedJob {
	t.Helper()
	e, err := dialect.Bundled.Compute(jobOf(t, spec), rt, nil)
	if err != nil {
		t.Fatal(err)
	}
	return e.Built
}

// TestUnusedTogether holds that fields of one reason are warned of together, and that the TrainJob isn't changed.
func TestUnusedTogether(t *testing.T) {
	rt := must[trainerapi.TrainingRuntimeSpec](t, strings.Replace(torchRuntime,
		"{trainer.kubeflow.org/trainjob-ancestor-step: trainer}", "{}", 1))
	job := jobOf(t, `{trainer: {image: mine, command: [mine], numNodes: 3,
  resourcesPerNode: {limits: {nvidia.com/gpu: 1}}}, initializer: {dataset: {storageUri: 'hf://mine'}}}`)
	before := job.DeepCopy()
	warnings := dialect.Bundled.Unused(job, &rt)
	if len(warnings) != 2 || !strings.Contains(warnings[0],
		"spec.trainer.image, spec.trainer.command, spec.trainer.resourcesPerNode; no ReplicatedJob of it has label") {
		t.Errorf("got %q", warnings)
	}
	if !equality.Semantic.DeepEqual(job, before) {
		t.Error("the TrainJob was changed")
	}
	if got := dialect.Bundled.Unused(jobOf(t, "{}"), &rt); got != nil {
		t.Errorf("nothing is set: got %q", got)
	}
	if got := dialect.Bundled.Unused(job, &trainerapi.TrainingRuntimeSpec{}); got != nil {
		t.Errorf("a runtime that can't be computed is refused otherwise: got %q", got)
	}
}

// TestUnusedWhenAdmitted holds that what an admission has written doesn't count: a TrainJob that was admitted with
// fewer nodes, and stopped, may be resized.
func TestUnusedWhenAdmitted(t *testing.T) {
	rt := must[trainerapi.TrainingRuntimeSpec](t, torchRuntime)
	job := jobOf(t, `{trainer: {numNodes: 8}, runtimePatches: [{manager: `+overrides.Manager+`, trainingRuntimeSpec: {template:
  {spec: {replicatedJobs: [{name: node, template: {metadata: {annotations: {`+overrides.NodesAnnotation+`: "3"}}}}]}}}}]}`)
	if got := dialect.Bundled.Unused(job, &rt); len(got) > 0 {
		t.Errorf("got %q", got)
	}
}
