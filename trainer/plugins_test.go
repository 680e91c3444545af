package trainer

import (
	"context"
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
