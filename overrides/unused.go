package overrides

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"github.com/kubeflow/trainer/v2/pkg/constants"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides/pipeline"
)

// The values that Unused looks for in what is built. No runtime has them, and no limit of numbers is below them.
const (
	probe          = "signalbox-probe-"
	probeNodes     = int32(2147480009)
	probeProcesses = int32(2147480023)
)

// probed is a field of a TrainJob, with a value that is found in what is built if the field has any effect.
type probed struct {
	path  string
	value string
	why   string // it has none; "" where that can't be seen
}

// Unused returns warnings about the fields of spec.trainer and spec.initializer that a TrainJob sets and that have no
// effect on the runtime, by what Trainer's plugins make of other values in their place. The integration's entry is none
// of the entries, because an admission may decide the number of nodes.
func Unused(
	rules pipeline.Rules, job *api.TrainJob, runtime *trainerapi.TrainingRuntimeSpec, entries []Entry,
) []string {
	other := job.DeepCopy()
	fields := probeTrainer(&other.Spec.TrainJobSpec, runtime)
	fields = append(fields, probeInitializers(&other.Spec.TrainJobSpec)...)
	if len(fields) == 0 {
		return nil
	}
	e, err := Compute(rules, other, runtime, entries)
	if err != nil {
		return nil // Check refuses what can't be computed
	}
	data, err := json.Marshal(e.Built)
	if err != nil {
		return nil
	}
	var reasons []string
	unused := map[string][]string{}
	for _, f := range fields {
		if bytes.Contains(data, []byte(f.value)) {
			continue
		}
		if f.why != "" && unused[f.why] == nil {
			reasons = append(reasons, f.why)
		}
		unused[f.why] = append(unused[f.why], f.path)
	}
	warnings := make([]string, 0, len(reasons))
	for _, reason := range reasons {
		warnings = append(warnings, fmt.Sprintf("no effect on runtime %q: %s; %s", job.Spec.RuntimeRef.Name,
			strings.Join(unused[reason], ", "), reason))
	}
	return warnings
}

// probeTrainer replaces the values of spec.trainer that are set, and returns their fields.
func probeTrainer(spec *trainerapi.TrainJobSpec, runtime *trainerapi.TrainingRuntimeSpec) (fields []probed) {
	trainer := spec.Trainer
	if trainer == nil {
		return nil
	}
	add := func(name, value, why string) string {
		fields = append(fields, probed{trainerPath.Child(name).String(), value, why})
		return value
	}
	if trainer.Image != nil {
		trainer.Image = ptr.To(add("image", probe+"image", noContainer))
	}
	if trainer.Command != nil {
		trainer.Command = []string{add("command", probe+"command", noContainer)}
	}
	if trainer.Args != nil {
		trainer.Args = []string{add("args", probe+"args", noContainer)}
	}
	if len(trainer.Env) > 0 {
		trainer.Env = []corev1.EnvVar{{Name: add("env", probe+"env", noContainer)}}
	}
	if trainer.NumNodes != nil {
		add("numNodes", fmt.Sprint(probeNodes/10), noNodes(runtime)) // MPI's launcher may be one of them
		trainer.NumNodes = ptr.To(probeNodes)
	}
	if trainer.NumProcPerNode != nil {
		add("numProcPerNode", fmt.Sprint(probeProcesses), noProcesses(runtime))
		trainer.NumProcPerNode = ptr.To(probeProcesses)
	}
	if r := trainer.ResourcesPerNode; r != nil && len(r.Limits)+len(r.Requests)+len(r.Claims) > 0 {
		name := corev1.ResourceName(add("resourcesPerNode", "signalbox.dev/"+probe+"resource", noContainer))
		one := corev1.ResourceList{name: resource.MustParse("1")}
		trainer.ResourcesPerNode = &corev1.ResourceRequirements{Limits: one}
	}
	return fields
}

// probeInitializers does the same for spec.initializer.
func probeInitializers(spec *trainerapi.TrainJobSpec) (fields []probed) {
	if spec.Initializer == nil {
		return nil
	}
	if dataset := spec.Initializer.Dataset; dataset != nil {
		fields = probeInitializer(dataset, "dataset", constants.DatasetInitializer)
	}
	if model := (*trainerapi.DatasetInitializer)(spec.Initializer.Model); model != nil {
		fields = append(fields, probeInitializer(model, "model", constants.ModelInitializer)...)
	}
	return fields
}

// probeInitializer does the same for one of them; the two have the same fields.
func probeInitializer(initializer *trainerapi.DatasetInitializer, name, step string) (fields []probed) {
	add := func(child string) string {
		value := probe + name + "-" + strings.ToLower(child)
		fields = append(fields, probed{"spec.initializer." + name + "." + child, value, lacks(step, step)})
		return value
	}
	if initializer.StorageUri != nil {
		initializer.StorageUri = ptr.To(add("storageUri"))
	}
	if len(initializer.Env) > 0 {
		initializer.Env = []corev1.EnvVar{{Name: add("env")}}
	}
	if initializer.SecretRef != nil {
		initializer.SecretRef = &corev1.LocalObjectReference{Name: add("secretRef")}
	}
	return fields
}

// lacks is the reason where a runtime has no container for a step.
func lacks(step, container string) string {
	return fmt.Sprintf("no ReplicatedJob of it has label %s: %s on its Job template and a container named %s; add what "+
		"is missing to the runtime, or set it there and not in the TrainJob",
		constants.LabelTrainJobAncestor, step, container)
}

// noContainer is the reason where no container is the trainer's.
var noContainer = lacks(constants.AncestorTrainer, constants.Node)

// noNodes is the reason where a runtime has no nodes that can be counted.
func noNodes(runtime *trainerapi.TrainingRuntimeSpec) string {
	if runtime.MLPolicy != nil && runtime.MLPolicy.MPI != nil {
		return "MPI's nodes are the ReplicatedJob named node, which it doesn't have; add it to the runtime, or set " +
			"parallelism there"
	}
	return fmt.Sprintf("no ReplicatedJob of it has label %s: %s on its Job template; add it to the runtime, or set "+
		"parallelism there", constants.LabelTrainJobAncestor, constants.AncestorTrainer)
}

// noProcesses is the reason where a runtime starts no processes by their number; "" for Flux, whose number is in a
// ConfigMap beside the JobSet.
func noProcesses(runtime *trainerapi.TrainingRuntimeSpec) string {
	isNode := func(rj jobset.ReplicatedJob) bool {
		return pipeline.NodeContainer(&rj) != nil && pipeline.IsTrainer(&rj)
	}
	switch policy := ptr.Deref(runtime.MLPolicy, trainerapi.MLPolicy{}); {
	case policy.Flux != nil:
		return ""
	case policy.Torch != nil && !slices.ContainsFunc(runtime.Template.Spec.ReplicatedJobs, isNode):
		return noContainer
	case policy.MPI != nil:
		return "MPI's launcher is the ReplicatedJob named launcher, with a container named node, which it doesn't have; " +
			"add what is missing to the runtime, or remove the field"
	}
	return "only runtimes whose mlPolicy is torch, mpi or flux start processes by their number; remove the field"
}
