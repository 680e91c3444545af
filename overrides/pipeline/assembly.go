// Package pipeline makes a JobSet of a runtime into which a TrainJob's entries are merged already, with Trainer's own
// plugins. Queueing takes the part that decides which pods there are, the bundled Trainer continues it: what is queued
// and what is built come from the same steps, in the same order.
package pipeline

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"github.com/kubeflow/trainer/v2/pkg/apply"
	"github.com/kubeflow/trainer/v2/pkg/constants"
	trainerruntime "github.com/kubeflow/trainer/v2/pkg/runtime"
	"github.com/kubeflow/trainer/v2/pkg/runtime/framework"
	jobsetplugin "github.com/kubeflow/trainer/v2/pkg/runtime/framework/plugins/jobset"
	"k8s.io/apimachinery/pkg/util/validation/field"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/utils/ptr"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	jobsetac "sigs.k8s.io/jobset/client-go/applyconfiguration/jobset/v1alpha2"
)

// Assembly is the JobSet of a TrainJob while it is made.
type Assembly struct {
	// Info is the runtime with the entries merged into it, in the form that Trainer's plugins take and change.
	Info *trainerruntime.Info
	// Job is the TrainJob in the form that they take and change.
	Job *trainerapi.TrainJob
	// spec is the JobSet's, and Info's.
	spec *jobsetac.JobSetSpecApplyConfiguration
}

// Run has the ML policies change the pods of a prepared JobSet, and sets how many of them there are.
func (a *Assembly) Run() error {
	err := EachPlugin(used, func(policy framework.EnforceMLPolicyPlugin) error {
		if err := policy.EnforceMLPolicy(a.Info, a.Job); err != nil {
			return fmt.Errorf("ML policy %s of runtime %q: %w", policy.Name(), a.Job.Spec.RuntimeRef.Name, err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	count := func(plugin framework.ComponentBuilderPlugin) error { return plugin.SyncParallelCount(a.Info) }
	return cmp.Or(EachPlugin(used, count), count(&jobsetplugin.JobSet{}))
}

// Queued returns the spec of the JobSet without what the ML policies add to its pods.
func (a *Assembly) Queued() (*jobset.JobSetSpec, error) { return SpecOf(a.fill(a.Job).Build()) }

// Built returns the same with what the ML policies add. It is for after Queued.
func (a *Assembly) Built() (*jobset.JobSetSpec, error) {
	a.take()
	return SpecOf(a.fill(withoutSecrets(a.Job)).Build())
}

// JobSet returns the JobSet with all that the plugins have added to it. It may be called once.
func (a *Assembly) JobSet() *jobsetplugin.Builder {
	a.take()
	return a.fill(a.Job)
}

// fill writes what a TrainJob says of its pods into the JobSet. As in Trainer's JobSet plugin, that takes precedence
// over what is taken from the PodSets.
func (a *Assembly) fill(job *trainerapi.TrainJob) *jobsetplugin.Builder {
	js := jobsetac.JobSet(job.Name, job.Namespace).WithLabels(a.Info.Labels).WithAnnotations(a.Info.Annotations)
	return jobsetplugin.NewBuilder(js.WithSpec(a.spec)).Initializer(job).Trainer(a.Info, job)
}

// withoutSecrets returns the TrainJob without the Secrets of its initializers: Trainer's builder adds them whether they
// are there or not. The rest is shared.
func withoutSecrets(job *trainerapi.TrainJob) *trainerapi.TrainJob {
	if job.Spec.Initializer == nil {
		return job
	}
	other := *job
	other.Spec.Initializer = job.Spec.Initializer.DeepCopy()
	if dataset := other.Spec.Initializer.Dataset; dataset != nil {
		dataset.SecretRef = nil
	}
	if model := other.Spec.Initializer.Model; model != nil {
		model.SecretRef = nil
	}
	return &other
}

// Prepare returns a JobSet on which no plugin has run, of a TrainJob and the runtime with the entries merged into it.
// Both are the result's from then on. Kubeflow Trainer v2.3.0's Flux plugin dereferences spec.trainer and its numNodes
// even where they are nil; here they default to the runtime's.
func (r Rules) Prepare(job *trainerapi.TrainJob, runtime *trainerapi.TrainingRuntimeSpec) (*Assembly, error) {
	template, name := &runtime.Template, job.Spec.RuntimeRef.Name
	if len(template.Spec.ReplicatedJobs) == 0 {
		return nil, field.Required(field.NewPath("spec", "runtimeRef"), fmt.Sprintf(
			"runtime %q has no replicatedJobs; give it one, or refer to another runtime", name))
	}
	if policy := runtime.MLPolicy; policy != nil && policy.Flux != nil {
		job.Spec.Trainer = cmp.Or(job.Spec.Trainer, &trainerapi.Trainer{})
		job.Spec.Trainer.NumNodes = cmp.Or(job.Spec.Trainer.NumNodes, ptr.To(Nodes(policy)))
		policy.Flux.NumProcPerNode = cmp.Or(policy.Flux.NumProcPerNode, ptr.To(int32(1)))
	}
	if err := r.setResourcesPerNode(job, runtime.MLPolicy, template.Spec.ReplicatedJobs); err != nil {
		return nil, err
	}
	if r.Amends {
		amend(job, runtime.MLPolicy, template.Spec.ReplicatedJobs)
	}
	typed := &jobset.JobSet{Spec: template.Spec}
	spec, err := apply.FromTypedObjWithFields[jobsetac.JobSetSpecApplyConfiguration](typed, "spec")
	if err != nil {
		return nil, fmt.Errorf("reading the JobSet template of runtime %q: %w", name, err)
	}
	return &Assembly{r.runtimeInfo(runtime, spec), job, spec}, nil
}

// take copies the plugins' changes of the PodSets to the JobSet's spec, as Trainer's JobSet plugin does.
func (a *Assembly) take() {
	for i := range a.Info.TemplateSpec.PodSets {
		podSet := &a.Info.TemplateSpec.PodSets[i]
		pod := a.spec.ReplicatedJobs[i].Template.Spec.Template.Spec
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

// SpecOf reads the spec of a JobSet that is to be applied.
func SpecOf(js *jobsetac.JobSetApplyConfiguration) (*jobset.JobSetSpec, error) {
	data, err := json.Marshal(js.Spec)
	if err != nil {
		return nil, err
	}
	spec := &jobset.JobSetSpec{}
	return spec, json.Unmarshal(data, spec)
}

// runtimeInfo returns a runtime in the form that Trainer's plugins take.
func (r Rules) runtimeInfo(
	runtime *trainerapi.TrainingRuntimeSpec, spec *jobsetac.JobSetSpecApplyConfiguration,
) *trainerruntime.Info {
	replicatedJobs := runtime.Template.Spec.ReplicatedJobs
	defaultMPI(runtime.MLPolicy)
	if p := runtime.PodGroupPolicy; p != nil && p.Volcano != nil && p.Volcano.NetworkTopology != nil {
		p.Volcano.NetworkTopology.HighestTierAllowed = cmp.Or(p.Volcano.NetworkTopology.HighestTierAllowed, ptr.To(1))
	}
	if p := runtime.PodGroupPolicy; p != nil && p.Coscheduling != nil {
		p.Coscheduling.ScheduleTimeoutSeconds = cmp.Or(p.Coscheduling.ScheduleTimeoutSeconds, ptr.To(int32(60)))
	}
	options := []trainerruntime.InfoOption{
		trainerruntime.WithLabels(runtime.Template.Labels),
		trainerruntime.WithAnnotations(runtime.Template.Annotations),
		trainerruntime.WithMLPolicySource(runtime.MLPolicy),
		trainerruntime.WithPodGroupPolicy(runtime.PodGroupPolicy),
		trainerruntime.WithTemplateSpecObjApply(spec),
	}
	for i := range replicatedJobs {
		rj := &replicatedJobs[i]
		count := ptr.Deref(rj.Template.Spec.Parallelism, 1)
		if IsTrainer(rj) && runtime.MLPolicy != nil {
			count = r.count(replicatedJobs, rj, runtime.MLPolicy)
		}
		var ancestor *string
		if label, found := rj.Template.Labels[constants.LabelTrainJobAncestor]; found {
			ancestor = &label
		}
		pod, applied := rj.Template.Spec.Template.Spec, spec.ReplicatedJobs[i].Template.Spec.Template.Spec
		options = append(options, trainerruntime.WithPodSet(rj.Name, ancestor, count, pod, applied))
	}
	info := trainerruntime.NewInfo(options...)
	separate(info)
	return info
}

// separate copies what the PodSets share with the JobSet's spec: Trainer's plugins append to these slices, and what its
// builder appends to the spec would overwrite that.
func separate(info *trainerruntime.Info) {
	for i := range info.TemplateSpec.PodSets {
		podSet := &info.TemplateSpec.PodSets[i]
		podSet.Volumes = slices.Clone(podSet.Volumes)
		for _, containers := range [][]trainerruntime.Container{podSet.InitContainers, podSet.Containers} {
			for j := range containers {
				c := &containers[j]
				c.Env, c.Ports, c.VolumeMounts = slices.Clone(c.Env), slices.Clone(c.Ports), slices.Clone(c.VolumeMounts)
			}
		}
	}
}

// defaultMPI sets the defaults of the runtimes' CRD, without which Trainer's plugins dereference nil pointers.
func defaultMPI(policy *trainerapi.MLPolicy) {
	if policy == nil || policy.MPI == nil {
		return
	}
	mpi := policy.MPI
	mpi.NumProcPerNode = cmp.Or(mpi.NumProcPerNode, ptr.To(int32(1)))
	mpi.MPIImplementation = cmp.Or(mpi.MPIImplementation, ptr.To(trainerapi.MPIImplementationOpenMPI))
	mpi.SSHAuthMountPath = cmp.Or(mpi.SSHAuthMountPath, ptr.To("/root/.ssh"))
}
