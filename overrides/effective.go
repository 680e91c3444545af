package overrides

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"github.com/kubeflow/trainer/v2/pkg/apply"
	"github.com/kubeflow/trainer/v2/pkg/constants"
	trainerruntime "github.com/kubeflow/trainer/v2/pkg/runtime"
	"github.com/kubeflow/trainer/v2/pkg/runtime/framework"
	"github.com/kubeflow/trainer/v2/pkg/runtime/framework/plugins/flux"
	"github.com/kubeflow/trainer/v2/pkg/runtime/framework/plugins/jax"
	jobsetplugin "github.com/kubeflow/trainer/v2/pkg/runtime/framework/plugins/jobset"
	"github.com/kubeflow/trainer/v2/pkg/runtime/framework/plugins/mpi"
	"github.com/kubeflow/trainer/v2/pkg/runtime/framework/plugins/plainml"
	"github.com/kubeflow/trainer/v2/pkg/runtime/framework/plugins/torch"
	"github.com/kubeflow/trainer/v2/pkg/runtime/framework/plugins/xgboost"
	trainingruntimeutil "github.com/kubeflow/trainer/v2/pkg/util/trainingruntime"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/apimachinery/pkg/util/validation/field"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/utils/ptr"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	jobsetac "sigs.k8s.io/jobset/client-go/applyconfiguration/jobset/v1alpha2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// Effective is what a TrainJob runs: its runtime, the entries merged into it, and what the ML policy and the TrainJob's
// own API make of it.
type Effective struct {
	// ReplicatedJobs in the runtime's order. A ReplicatedJob's pods are its parallelism × replicas.
	ReplicatedJobs []jobset.ReplicatedJob
	// Built is the same with what the ML policy adds to the pods: environment, ports, volumes, a command. None of it
	// decides where pods go or what they use, some of it holds the TrainJob's name, and Kueue's built-in integration
	// leaves it out of its Workloads too. Of Trainers before v2.3 it is not known, and left out here.
	Built []jobset.ReplicatedJob
	// Annotations of the JobSet itself: the runtime's template's, and what the entries say.
	Annotations map[string]string
}

// ReplicatedJob returns the one of that name, or nil.
func (e *Effective) ReplicatedJob(name string) *jobset.ReplicatedJob {
	return find(e.ReplicatedJobs, name)
}

// PodsPerJob is how many pods one Job of the ReplicatedJob runs at a time, as Kubernetes counts a Job's pods: its
// parallelism (default 1), or its completions where those are fewer.
func PodsPerJob(rj *jobset.ReplicatedJob) int32 {
	parallelism := ptr.Deref(rj.Template.Spec.Parallelism, 1)
	return min(parallelism, ptr.Deref(rj.Template.Spec.Completions, parallelism))
}

// mlPolicies are Trainer's plugins that turn an ML policy into node counts and environment. Each tells by itself
// whether the runtime's policy is its own; plain comes last, as the one for all others.
func mlPolicies() []framework.EnforceMLPolicyPlugin {
	return []framework.EnforceMLPolicyPlugin{&torch.Torch{}, &mpi.MPI{}, &jax.Jax{}, &xgboost.XGBoost{}, &flux.Flux{}, &plainml.PlainML{}}
}

var patchesPath = field.NewPath("spec", "runtimePatches")

// Compute returns what the TrainJob runs with the given entries on the runtime. It changes none of its arguments. An
// entry that names a ReplicatedJob that the runtime doesn't have is an error: a strategic merge would append it.
func (d Dialect) Compute(trainJob *api.TrainJob, runtime *trainerapi.TrainingRuntimeSpec, entries []Entry) (*Effective, error) {
	runtime = runtime.DeepCopy()
	job := ForPlugins(trainJob, runtime)
	info, err := d.Prepare(job, runtime, entries)
	if err != nil {
		return nil, err
	}
	for _, policy := range mlPolicies() {
		if err := policy.EnforceMLPolicy(info, job); err != nil {
			return nil, fmt.Errorf("ML policy %s of runtime %q: %w", policy.Name(), job.Spec.RuntimeRef.Name, err)
		}
	}
	spec, _ := trainerruntime.TemplateSpecApply[jobsetac.JobSetSpecApplyConfiguration](info)
	for i, podSet := range info.TemplateSpec.PodSets {
		spec.ReplicatedJobs[i].Template.Spec.Parallelism, spec.ReplicatedJobs[i].Template.Spec.Completions = podSet.Count, podSet.Count
	}
	builder := jobsetplugin.NewBuilder(jobsetac.JobSet(job.Name, job.Namespace).WithSpec(spec))
	e := &Effective{Annotations: info.Annotations}
	if e.ReplicatedJobs, err = fromApply(builder.Initializer(job).Trainer(info, job).Build().Spec); err != nil {
		return nil, err
	}
	if d.replaces { // an earlier Trainer, whose ML policies add other things
		e.Built = e.ReplicatedJobs
		return e, nil
	}
	Take(info, spec)
	e.Built, err = fromApply(builder.Trainer(info, job).Build().Spec) // spec.trainer goes before the ML policy
	return e, err
}

// ForPlugins returns a copy of the TrainJob that Trainer's plugins may write into. Trainer v2.3.0's Flux plugin follows
// spec.trainer and its numNodes without looking whether they are there; what they default to is the runtime's.
func ForPlugins(trainJob *api.TrainJob, runtime *trainerapi.TrainingRuntimeSpec) *trainerapi.TrainJob {
	job := trainJob.Upstream().DeepCopy()
	if policy := runtime.MLPolicy; policy != nil && policy.Flux != nil {
		job.Spec.Trainer = cmpOr(job.Spec.Trainer, trainerapi.Trainer{})
		job.Spec.Trainer.NumNodes = cmpOr(job.Spec.Trainer.NumNodes, ptr.Deref(policy.NumNodes, 1))
		policy.Flux.NumProcPerNode = cmpOr(policy.Flux.NumProcPerNode, int32(1))
	}
	return job
}

// Prepare merges the entries into the runtime, and spec.trainer.resourcesPerNode into that, and returns the result in
// the form that Trainer's plugins take: what they work on, before the first of them has. It changes none of its
// arguments, but the plugins may change the result's.
func (d Dialect) Prepare(job *trainerapi.TrainJob, runtime *trainerapi.TrainingRuntimeSpec, entries []Entry) (*trainerruntime.Info, error) {
	runtime = runtime.DeepCopy()
	template, err := merge(runtime.Template.Spec, entries)
	if err != nil {
		return nil, err
	}
	if len(template.ReplicatedJobs) == 0 {
		return nil, field.Required(field.NewPath("spec", "runtimeRef"), fmt.Sprintf("runtime %q has no replicatedJobs; give it one, or refer to another runtime", job.Spec.RuntimeRef.Name))
	}
	if err := d.setResourcesPerNode(job, runtime.MLPolicy, template.ReplicatedJobs); err != nil {
		return nil, err
	}
	spec, err := apply.FromTypedObjWithFields[jobsetac.JobSetSpecApplyConfiguration](&jobset.JobSet{Spec: template}, "spec")
	if err != nil {
		return nil, fmt.Errorf("reading the JobSet template of runtime %q: %w", job.Spec.RuntimeRef.Name, err)
	}
	labels, annotations := metadata(runtime, entries)
	return runtimeInfo(runtime, template.ReplicatedJobs, spec, trainerruntime.WithLabels(labels), trainerruntime.WithAnnotations(annotations)), nil
}

// metadata is the JobSet's own: the runtime's, and over it what the entries say, one after the other.
func metadata(runtime *trainerapi.TrainingRuntimeSpec, entries []Entry) (labels, annotations map[string]string) {
	labels, annotations = map[string]string{}, map[string]string{}
	maps.Copy(labels, runtime.Template.Labels)
	maps.Copy(annotations, runtime.Template.Annotations)
	for _, entry := range entries {
		if s := entry.Patch; s != nil && s.Template != nil && s.Template.Metadata != nil {
			maps.Copy(labels, s.Template.Metadata.Labels)
			maps.Copy(annotations, s.Template.Metadata.Annotations)
		}
	}
	return labels, annotations
}

// Take brings what the ML policy has made of the PodSets into the JobSet's spec, as Trainer's JobSet plugin does.
func Take(info *trainerruntime.Info, spec *jobsetac.JobSetSpecApplyConfiguration) {
	for i := range info.TemplateSpec.PodSets {
		podSet := &info.TemplateSpec.PodSets[i]
		pod := spec.ReplicatedJobs[i].Template.Spec.Template.Spec
		apply.UpsertVolumes(&pod.Volumes, podSet.Volumes...)
		for c := range podSet.Containers {
			takeContainer(&pod.Containers[c], &podSet.Containers[c])
		}
		for c := range podSet.InitContainers {
			if c >= len(pod.InitContainers) {
				pod.InitContainers = append(pod.InitContainers, *corev1ac.Container().WithName(podSet.InitContainers[c].Name))
			}
			takeContainer(&pod.InitContainers[c], &podSet.InitContainers[c])
		}
	}
}

func takeContainer(container *corev1ac.ContainerApplyConfiguration, made *trainerruntime.Container) {
	if len(made.Command) > 0 {
		container.Command = made.Command
	}
	if made.Image != "" {
		container.Image = &made.Image
	}
	apply.UpsertEnvVars(&container.Env, made.Env...)
	apply.UpsertPort(&container.Ports, made.Ports...)
	apply.UpsertVolumeMounts(&container.VolumeMounts, made.VolumeMounts...)
}

func fromApply(spec *jobsetac.JobSetSpecApplyConfiguration) ([]jobset.ReplicatedJob, error) {
	data, err := json.Marshal(spec)
	if err != nil {
		return nil, err
	}
	var typed jobset.JobSetSpec
	if err := json.Unmarshal(data, &typed); err != nil {
		return nil, err
	}
	return typed.ReplicatedJobs, nil
}

// merge applies the entries to the JobSet template, one after the other, as Trainer does.
func merge(template jobset.JobSetSpec, entries []Entry) (jobset.JobSetSpec, error) {
	order := make(map[string]int, len(template.ReplicatedJobs))
	for i, rj := range template.ReplicatedJobs {
		order[rj.Name] = i
	}
	for _, entry := range entries {
		if entry.Patch == nil || entry.Patch.Template == nil || entry.Patch.Template.Spec == nil {
			continue
		}
		patch := entry.Patch.Template.Spec
		for _, rj := range patch.ReplicatedJobs {
			if _, found := order[rj.Name]; !found {
				return template, field.NotSupported(entry.targetPath(rj.Name), rj.Name, names(template.ReplicatedJobs))
			}
		}
		if entry.Replaces {
			template = makeRoom(template, patch)
		}
		merged, err := mergeOne(template, patch)
		if err != nil {
			return template, fmt.Errorf("merging %s: %w", entry.Path(), err)
		}
		template = merged
	}
	// A strategic merge may reorder the list; the order of ReplicatedJobs is the runtime's.
	slices.SortStableFunc(template.ReplicatedJobs, func(a, b jobset.ReplicatedJob) int { return order[a.Name] - order[b.Name] })
	return template, nil
}

// makeRoom takes away what the patch is to take the place of, so that a strategic merge of the two is what the operator
// guide of podTemplateOverrides says: maps and lists of names are replaced, as are volumes, environment and mounts of the
// same name.
func makeRoom(template jobset.JobSetSpec, patch *trainerapi.JobSetSpecPatch) jobset.JobSetSpec {
	template = *template.DeepCopy()
	for _, rj := range patch.ReplicatedJobs {
		_, over := PodPatch(&trainerapi.TrainingRuntimeSpecPatch{Template: &trainerapi.JobSetTemplatePatch{Spec: patch}}, rj.Name)
		at := find(template.ReplicatedJobs, rj.Name)
		if over == nil || at == nil {
			continue
		}
		pod := &at.Template.Spec.Template.Spec
		if len(over.NodeSelector) > 0 {
			pod.NodeSelector = nil
		}
		if over.Affinity != nil {
			pod.Affinity = nil
		}
		if len(over.SchedulingGates) > 0 {
			pod.SchedulingGates = nil
		}
		if len(over.ImagePullSecrets) > 0 {
			pod.ImagePullSecrets = nil
		}
		for _, v := range over.Volumes {
			if i := slices.IndexFunc(pod.Volumes, func(have corev1.Volume) bool { return have.Name == v.Name }); i >= 0 {
				pod.Volumes[i] = corev1.Volume{Name: v.Name}
			}
		}
		makeRoomInContainers(pod.InitContainers, over.InitContainers)
		makeRoomInContainers(pod.Containers, over.Containers)
	}
	return template
}

func makeRoomInContainers(have []corev1.Container, patches []trainerapi.ContainerPatch) {
	for _, patch := range patches {
		c := findContainer(have, patch.Name)
		if c == nil {
			continue
		}
		for _, env := range patch.Env {
			if i := slices.IndexFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == env.Name }); i >= 0 {
				c.Env[i] = corev1.EnvVar{Name: env.Name} // in its place: a later variable may refer to it
			}
		}
		for _, mount := range patch.VolumeMounts {
			if i := slices.IndexFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.MountPath == mount.MountPath }); i >= 0 {
				c.VolumeMounts[i] = corev1.VolumeMount{Name: mount.Name, MountPath: mount.MountPath}
			}
		}
		c.VolumeMounts = slices.DeleteFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool {
			sameVolume := slices.ContainsFunc(patch.VolumeMounts, func(o corev1.VolumeMount) bool { return o.Name == m.Name })
			samePath := slices.ContainsFunc(patch.VolumeMounts, func(o corev1.VolumeMount) bool { return o.MountPath == m.MountPath })
			return sameVolume && !samePath
		})
	}
}

func mergeOne(template jobset.JobSetSpec, patch *trainerapi.JobSetSpecPatch) (merged jobset.JobSetSpec, err error) {
	original, err := json.Marshal(template)
	if err != nil {
		return merged, err
	}
	change, err := json.Marshal(patch)
	if err != nil {
		return merged, err
	}
	result, err := strategicpatch.StrategicMergePatch(original, change, jobset.JobSetSpec{})
	if err != nil {
		return merged, err
	}
	return merged, json.Unmarshal(result, &merged)
}

// isTrainer tells whether a ReplicatedJob is the trainer step, by the label that Trainer's runtimes carry.
func isTrainer(rj *jobset.ReplicatedJob) bool {
	return rj.Template.Labels[constants.LabelTrainJobAncestor] == constants.AncestorTrainer
}

// setResourcesPerNode merges spec.trainer.resourcesPerNode into the node container of the trainer step, and of the
// nodes where MPI's launcher is one of them.
func (d Dialect) setResourcesPerNode(job *trainerapi.TrainJob, policy *trainerapi.MLPolicy, replicatedJobs []jobset.ReplicatedJob) error {
	if job.Spec.Trainer == nil || job.Spec.Trainer.ResourcesPerNode == nil || policy == nil {
		return nil
	}
	launcherIsNode := !d.launcherAlone && policy.MPI != nil && ptr.Deref(policy.MPI.RunLauncherAsNode, false)
	for i := range replicatedJobs {
		rj := &replicatedJobs[i]
		if !isTrainer(rj) && !(launcherIsNode && rj.Name == constants.Node) {
			continue
		}
		node := findContainer(rj.Template.Spec.Template.Spec.Containers, constants.Node)
		if node == nil {
			continue
		}
		if d.replaces {
			if given := job.Spec.Trainer.ResourcesPerNode; given.Limits != nil || given.Requests != nil {
				node.Resources = *given.DeepCopy()
			}
			continue
		}
		merged, err := trainingruntimeutil.MergeResourceRequirements(node.Resources, *job.Spec.Trainer.ResourcesPerNode)
		if err != nil {
			return field.Invalid(field.NewPath("spec", "trainer", "resourcesPerNode"), job.Spec.Trainer.ResourcesPerNode, err.Error())
		}
		node.Resources = merged
	}
	return nil
}

// runtimeInfo is the form in which Trainer's plugins take a runtime.
func runtimeInfo(runtime *trainerapi.TrainingRuntimeSpec, replicatedJobs []jobset.ReplicatedJob, spec *jobsetac.JobSetSpecApplyConfiguration, options ...trainerruntime.InfoOption) *trainerruntime.Info {
	defaultMPI(runtime.MLPolicy)
	if p := runtime.PodGroupPolicy; p != nil && p.Volcano != nil && p.Volcano.NetworkTopology != nil {
		p.Volcano.NetworkTopology.HighestTierAllowed = cmpOr(p.Volcano.NetworkTopology.HighestTierAllowed, 1)
	}
	if p := runtime.PodGroupPolicy; p != nil && p.Coscheduling != nil {
		p.Coscheduling.ScheduleTimeoutSeconds = cmpOr(p.Coscheduling.ScheduleTimeoutSeconds, int32(60))
	}
	options = append(options,
		trainerruntime.WithMLPolicySource(runtime.MLPolicy),
		trainerruntime.WithPodGroupPolicy(runtime.PodGroupPolicy),
		trainerruntime.WithTemplateSpecObjApply(spec),
	)
	for i := range replicatedJobs {
		rj := &replicatedJobs[i]
		count := ptr.Deref(rj.Template.Spec.Parallelism, 1)
		if isTrainer(rj) && runtime.MLPolicy != nil {
			count = ptr.Deref(runtime.MLPolicy.NumNodes, 1)
		}
		var ancestor *string
		if label, found := rj.Template.Labels[constants.LabelTrainJobAncestor]; found {
			ancestor = &label
		}
		options = append(options, trainerruntime.WithPodSet(rj.Name, ancestor, count, rj.Template.Spec.Template.Spec, spec.ReplicatedJobs[i].Template.Spec.Template.Spec))
	}
	return trainerruntime.NewInfo(options...)
}

// defaultMPI sets the defaults of the runtimes' CRD, without which Trainer's plugins follow nil pointers.
func defaultMPI(policy *trainerapi.MLPolicy) {
	if policy == nil || policy.MPI == nil {
		return
	}
	mpi := policy.MPI
	mpi.NumProcPerNode = cmpOr(mpi.NumProcPerNode, int32(1))
	mpi.MPIImplementation = cmpOr(mpi.MPIImplementation, trainerapi.MPIImplementationOpenMPI)
	mpi.SSHAuthMountPath = cmpOr(mpi.SSHAuthMountPath, "/root/.ssh")
}

func cmpOr[T any](value *T, otherwise T) *T {
	if value == nil {
		return &otherwise
	}
	return value
}

func find(replicatedJobs []jobset.ReplicatedJob, name string) *jobset.ReplicatedJob {
	if i := slices.IndexFunc(replicatedJobs, func(rj jobset.ReplicatedJob) bool { return rj.Name == name }); i >= 0 {
		return &replicatedJobs[i]
	}
	return nil
}

func findContainer(containers []corev1.Container, name string) *corev1.Container {
	if i := slices.IndexFunc(containers, func(c corev1.Container) bool { return c.Name == name }); i >= 0 {
		return &containers[i]
	}
	return nil
}

func names(replicatedJobs []jobset.ReplicatedJob) []string {
	all := make([]string, 0, len(replicatedJobs))
	for _, rj := range replicatedJobs {
		all = append(all, rj.Name)
	}
	slices.SortFunc(all, strings.Compare)
	return all
}
