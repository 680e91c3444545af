package trainer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	trainerconfig "github.com/kubeflow/trainer/v2/pkg/apis/config/v1alpha1"
	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"github.com/kubeflow/trainer/v2/pkg/runtime/framework"
	"github.com/kubeflow/trainer/v2/pkg/runtime/framework/plugins"
	jobsetplugin "github.com/kubeflow/trainer/v2/pkg/runtime/framework/plugins/jobset"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	metav1ac "k8s.io/client-go/applyconfigurations/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	webhookadmission "sigs.k8s.io/controller-runtime/pkg/webhook/admission"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	jobsetac "sigs.k8s.io/jobset/client-go/applyconfiguration/jobset/v1alpha2"
	kueueconstants "sigs.k8s.io/kueue/pkg/controller/constants"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides"
	"github.com/signalbox-dev/signalbox/overrides/dialect"
	"github.com/signalbox-dev/signalbox/overrides/pipeline"
)

// Builder makes the objects of a TrainJob with Kubeflow Trainer's plugins.
type Builder struct {
	// validating read priority classes.
	validating pipeline.Plugins
	// building see nothing that exists already: it may be another owner's, and decides nothing.
	building pipeline.Plugins
}

// NewBuilder returns a Builder. The plugins read Secrets, pod groups and priority classes by the client, now and then;
// a client without a cache spares caching them all. config is what they take of Trainer's own configuration.
func NewBuilder(ctx context.Context, c client.Client, config *trainerconfig.Configuration) (*Builder, error) {
	b, unseen := &Builder{}, emptyCluster{Client: c}
	if config.CertManagement != nil {
		unseen.but = config.CertManagement.WebhookSecretName
	}
	var err error
	if b.validating, err = pipeline.NewPlugins(ctx, plugins.NewRegistry(), c, config); err != nil {
		return nil, err
	}
	b.building, err = pipeline.NewPlugins(ctx, plugins.NewRegistry(), unseen, config)
	return b, err
}

// emptyCluster is a client to which nothing exists but the Secret of one name, which plugins read and don't make.
type emptyCluster struct {
	client.Client
	but string
}

// Get implements client.Reader.
func (c emptyCluster) Get(
	ctx context.Context, key client.ObjectKey, o client.Object, options ...client.GetOption,
) error {
	if _, ok := o.(*corev1.Secret); ok && key.Name == c.but {
		return c.Client.Get(ctx, key, o, options...)
	}
	return apierrors.NewNotFound(schema.GroupResource{}, key.Name)
}

// Children are the objects of a TrainJob, in the order in which they are created.
type Children struct {
	Claims []*corev1.PersistentVolumeClaim
	// SideObjects are those that Trainer's plugins make beside the JobSet, whether they exist or not.
	SideObjects []*unstructured.Unstructured
	JobSet      *jobsetac.JobSetApplyConfiguration
	// Spec is the JobSet's.
	Spec *jobset.JobSetSpec
}

// Build returns the objects of the TrainJob on the runtime, with all its entries. It leaves out the ReplicatedJobs that
// are done and outlive the JobSet. It changes none of its arguments.
func (b *Builder) Build(
	ctx context.Context, job *api.TrainJob, spec *trainerapi.TrainingRuntimeSpec,
) (*Children, error) {
	a, err := overrides.Assemble(dialect.Bundled.Rules, job, spec, dialect.Bundled.Entries(job))
	if err != nil {
		return nil, err
	}
	sideObjects, err := b.complete(ctx, a)
	if err != nil {
		return nil, fmt.Errorf("runtime %q: %w", job.Spec.RuntimeRef.Name, err)
	}
	js := applyJobSet(a)
	built, err := pipeline.SpecOf(js)
	if err != nil {
		return nil, err
	}
	leaveOut(js.Spec, overrides.Outlived(built, dialect.Bundled.Done(job, spec)))
	mountClaims(job.Name, js.Spec)
	if queued(job) {
		replaceEnded(js.Spec)
	}
	built, err = pipeline.SpecOf(js)
	return &Children{claimsOf(job, spec), sideObjects, js, built}, err
}

// objectOf returns an object, or what an apply configuration is of, as an object to create.
func objectOf(a any) (*unstructured.Unstructured, error) {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(a)
	return &unstructured.Unstructured{Object: content}, err
}

func isSecret(o client.Object) bool {
	return o.GetObjectKind().GroupVersionKind() == corev1.SchemeGroupVersion.WithKind("Secret")
}

// complete has Trainer's plugins add what isn't queued, and returns the side objects that they make.
func (b *Builder) complete(
	ctx context.Context, a *pipeline.Assembly,
) (sideObjects []*unstructured.Unstructured, err error) {
	group := func(p framework.EnforcePodGroupPolicyPlugin) error { return p.EnforcePodGroupPolicy(a.Info, a.Job) }
	if err := pipeline.EachPlugin(b.building, group); err != nil {
		return nil, err
	}
	identify := func(p framework.PodNetworkPlugin) error { return p.IdentifyPodNetwork(a.Info, a.Job) }
	if err := cmp.Or(pipeline.EachPlugin(b.building, identify), identify(&jobsetplugin.JobSet{})); err != nil {
		return nil, err
	}
	err = pipeline.EachPlugin(b.building, func(p framework.ComponentBuilderPlugin) error {
		made, err := p.Build(ctx, a.Info, a.Job)
		for _, m := range made {
			o, unread := objectOf(m)
			sideObjects, err = append(sideObjects, o), cmp.Or(err, unread)
		}
		return err
	})
	return sideObjects, err
}

// queued reports whether a TrainJob runs on quota, or is to. The integration's entry also marks one without a queue's
// label, which Kueue manages where manageJobsWithoutQueueName is set.
func queued(job *api.TrainJob) bool {
	return job.Labels[kueueconstants.QueueLabel] != "" || overrides.OwnIndex(job) >= 0
}

// replaceEnded has the Job controller replace pods only after they have ended. By its default it replaces a pod that
// still terminates, after an eviction say, and the TrainJob would use more than it was admitted for.
func replaceEnded(spec *jobsetac.JobSetSpecApplyConfiguration) {
	for i := range spec.ReplicatedJobs {
		spec.ReplicatedJobs[i].Template.Spec.WithPodReplacementPolicy(batchv1.Failed)
	}
}

// Validate asks Trainer's plugins what they refuse of a TrainJob on a runtime; before is nil on creation.
func (b *Builder) Validate(
	ctx context.Context, before, after *api.TrainJob, spec *trainerapi.TrainingRuntimeSpec,
) (webhookadmission.Warnings, field.ErrorList) {
	a, err := overrides.Prepare(dialect.Bundled.Rules, after, spec, dialect.Bundled.Entries(after))
	if err != nil {
		return nil, field.ErrorList{asFieldError(err)}
	}
	job := after.Upstream().DeepCopy()
	if job.Spec.Trainer != nil {
		job.Spec.Trainer.ResourcesPerNode = a.Job.Spec.Trainer.ResourcesPerNode // of these, processes are counted
	}
	var old *trainerapi.TrainJob
	if before != nil {
		old = before.Upstream()
	}
	var warnings webhookadmission.Warnings
	var errs field.ErrorList
	_ = pipeline.EachPlugin(b.validating, func(p framework.CustomValidationPlugin) error {
		warned, refused := p.Validate(ctx, a.Info, old, job)
		warnings, errs = append(warnings, warned...), append(errs, refused...)
		return nil
	})
	return warnings, overrides.Few(errs)
}

// asFieldError gives an error a path where it has none.
func asFieldError(err error) *field.Error {
	if invalid := (*field.Error)(nil); errors.As(err, &invalid) {
		return invalid
	}
	return field.InternalError(field.NewPath("spec"), err)
}

// applyJobSet returns the JobSet, as Trainer's JobSet plugin builds it whether there is one already or not.
func applyJobSet(a *pipeline.Assembly) *jobsetac.JobSetApplyConfiguration {
	return a.JobSet().
		PodLabels(a.Info.Scheduler.PodLabels).
		PodAnnotations(a.Info.Scheduler.PodAnnotations).
		Suspend(a.Job.Spec.Suspend).
		Build().
		WithOwnerReferences(metav1ac.OwnerReference().
			WithAPIVersion(trainerapi.GroupVersion.String()).WithKind(trainerapi.TrainJobKind).
			WithName(a.Job.Name).WithUID(a.Job.UID).
			WithController(true).WithBlockOwnerDeletion(true))
}

// leaveOut takes ReplicatedJobs out of a JobSet, and what refers to them.
func leaveOut(spec *jobsetac.JobSetSpecApplyConfiguration, done map[string]bool) {
	isDone := func(name string) bool { return done[name] }
	spec.ReplicatedJobs = slices.DeleteFunc(spec.ReplicatedJobs, func(rj jobsetac.ReplicatedJobApplyConfiguration) bool {
		return isDone(ptr.Deref(rj.Name, ""))
	})
	for i := range spec.ReplicatedJobs {
		rj := &spec.ReplicatedJobs[i]
		rj.DependsOn = slices.DeleteFunc(rj.DependsOn, func(d jobsetac.DependsOnApplyConfiguration) bool {
			return isDone(ptr.Deref(d.Name, ""))
		})
	}
	if p := spec.SuccessPolicy; p != nil {
		p.TargetReplicatedJobs = slices.DeleteFunc(p.TargetReplicatedJobs, isDone)
	}
	if p := spec.FailurePolicy; p != nil {
		p.Rules = slices.DeleteFunc(p.Rules, func(rule jobsetac.FailurePolicyRuleApplyConfiguration) bool {
			// A rule for them alone goes: without a target it would be for all.
			targets := rule.TargetReplicatedJobs
			return len(targets) > 0 && !slices.ContainsFunc(targets, func(name string) bool { return !isDone(name) })
		})
		for i := range p.Rules {
			p.Rules[i].TargetReplicatedJobs = slices.DeleteFunc(p.Rules[i].TargetReplicatedJobs, isDone)
		}
	}
}
