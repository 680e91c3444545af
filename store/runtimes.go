package store

import (
	"context"
	"errors"
	"fmt"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	trainjobutil "github.com/kubeflow/trainer/v2/pkg/util/trainjob"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides"
	"github.com/signalbox-dev/signalbox/overrides/dialect"
)

// ErrUnknownKind is about a runtimeRef of a kind that nobody serves.
var ErrUnknownKind = errors.New("spec.runtimeRef: only kinds TrainingRuntime and ClusterTrainingRuntime of " +
	"trainer.kubeflow.org can be referred to; create the TrainJob again with one of them")

// RuntimeError reports that a TrainJob has no runtime that it could run.
type RuntimeError struct {
	// Missing is set if the runtime doesn't exist.
	Missing bool
	Err     error
}

// Error implements error.
func (e *RuntimeError) Error() string { return e.Err.Error() }

// Unwrap returns what is wrong.
func (e *RuntimeError) Unwrap() error { return e.Err }

// Runtime is a runtime as the cluster has it now.
type Runtime struct {
	Spec                trainerapi.TrainingRuntimeSpec
	Labels, Annotations map[string]string
}

// Pinnable returns a copy of the runtime's spec that has those annotations of the runtime which concern its TrainJobs
// among those of its template, so that a TrainJob's pin holds them too.
func (r *Runtime) Pinnable() *trainerapi.TrainingRuntimeSpec {
	spec := r.Spec.DeepCopy()
	for _, key := range []string{
		api.GangModeAnnotation, api.GangPolicyAnnotation, overrides.MinParallelismAnnotation, api.CheckpointMetricAnnotation,
		api.StalledAfterAnnotation, api.TTLAnnotation,
	} {
		if value, found := r.Annotations[key]; found {
			metav1.SetMetaDataAnnotation(&spec.Template.ObjectMeta, key, value)
		}
	}
	return spec
}

// Describe returns the kind, name and namespace of the runtime that a TrainJob refers to, for messages.
func Describe(job *api.TrainJob) string {
	if trainjobutil.RuntimeRefIsTrainingRuntime(job.Spec.RuntimeRef) {
		return fmt.Sprintf("TrainingRuntime %q in namespace %q", job.Spec.RuntimeRef.Name, job.Namespace)
	}
	return fmt.Sprintf("ClusterTrainingRuntime %q", job.Spec.RuntimeRef.Name)
}

// Runtimes reads which runtime a TrainJob runs.
type Runtimes struct{ cache, live client.Reader }

// NewRuntimes returns Runtimes. live must not be a cache.
func NewRuntimes(cache, live client.Reader) *Runtimes { return &Runtimes{cache: cache, live: live} }

// Choice is the runtime that a TrainJob runs.
type Choice struct {
	// Spec is what the TrainJob runs.
	Spec *trainerapi.TrainingRuntimeSpec
	// Settings is the runtime with its annotations that concern TrainJobs (Runtime.Pinnable).
	Settings *trainerapi.TrainingRuntimeSpec
	// Pinned is set if Spec is the TrainJob's pin.
	Pinned bool
	// Snapshot is Kubeflow Trainer's; nil if there is none.
	Snapshot *Snapshot
	// Outdated is set if the TrainJob has not run and the runtime has changed since Trainer took the snapshot.
	Outdated bool
}

// Of returns the runtime that a TrainJob of the bundled Trainer runs: its pin; else, if it has run before, the snapshot
// that Kubeflow Trainer took of it; else the runtime as it is now. A TrainJob without a usable runtime is a
// *RuntimeError.
func (r *Runtimes) Of(ctx context.Context, job *api.TrainJob) (*Choice, error) {
	pinned, err := Pinned(job)
	if err != nil {
		return nil, &RuntimeError{Err: err}
	}
	if pinned != nil {
		return &Choice{Spec: pinned, Settings: pinned, Pinned: true}, nil
	}
	if hasRun(job, dialect.Bundled) && seenByTrainer(job) {
		snapshot, err := snapshotOf(ctx, r.live, job)
		if err != nil {
			return nil, err
		}
		if snapshot != nil {
			return &Choice{Spec: snapshot.Spec, Settings: snapshot.Spec, Snapshot: snapshot}, nil
		}
	}
	runtime, err := r.existing(ctx, job, client.UnsafeDisableDeepCopy) // Pinnable copies it
	if err != nil {
		return nil, err
	}
	spec := runtime.Pinnable()
	return &Choice{Spec: spec, Settings: spec}, nil
}

// OfKubeflow returns the runtime that a TrainJob runs beside Kubeflow Trainer: if it has run, the snapshot of it; else
// the runtime as it is now, which Trainer has yet to follow if Outdated is set. Kubeflow Trainer rejects any change of
// a TrainJob whose runtime is gone, so that it could not be started: that is a *RuntimeError even if there is a
// snapshot.
func (r *Runtimes) OfKubeflow(ctx context.Context, job *api.TrainJob, trainer *dialect.Dialect) (*Choice, error) {
	runtime, err := r.existing(ctx, job)
	if err != nil {
		return nil, err
	}
	choice := &Choice{Spec: &runtime.Spec, Settings: runtime.Pinnable()}
	if !trainer.Snapshots {
		return choice, nil
	}
	if choice.Snapshot, err = snapshotOf(ctx, r.live, job); err != nil || choice.Snapshot == nil {
		return choice, err
	}
	if hasRun(job, trainer) {
		choice.Spec = choice.Snapshot.Spec
		return choice, nil
	}
	choice.Outdated = !equality.Semantic.DeepEqual(*choice.Snapshot.Spec, runtime.Spec)
	return choice, nil
}

// hasRun reports whether a TrainJob runs or has run: then it stays on the runtime that it was started on.
func hasRun(job *api.TrainJob, trainer *dialect.Dialect) bool {
	return trainer.Own(job) != nil || !ptr.Deref(job.Spec.Suspend, false)
}

// existing returns the runtime that a TrainJob refers to; a missing one is a *RuntimeError.
func (r *Runtimes) existing(
	ctx context.Context, job *api.TrainJob, options ...client.GetOption,
) (*Runtime, error) {
	runtime, err := LiveRuntime(ctx, r.cache, job, options...)
	if errors.Is(err, ErrUnknownKind) {
		return nil, &RuntimeError{Err: err}
	}
	if err == nil && runtime == nil {
		return nil, &RuntimeError{Missing: true, Err: fmt.Errorf(
			"spec.runtimeRef: there is no %s; create it, or delete this TrainJob and refer to another", Describe(job))}
	}
	return runtime, err
}

// LiveSteps returns the ReplicatedJobs of the runtime that a TrainJob refers to; nil if there is none. They are the
// cache's own: they must not be changed.
func LiveSteps(ctx context.Context, cache client.Reader, job *api.TrainJob) ([]jobset.ReplicatedJob, error) {
	runtime, err := LiveRuntime(ctx, cache, job, client.UnsafeDisableDeepCopy)
	if errors.Is(err, ErrUnknownKind) || runtime == nil {
		return nil, nil
	}
	return runtime.Spec.Template.Spec.ReplicatedJobs, err
}

// LiveRuntime reads the runtime that a TrainJob refers to as it is now; nil if there is none of that name. A runtimeRef
// of another kind is ErrUnknownKind.
func LiveRuntime(
	ctx context.Context, c client.Reader, job *api.TrainJob, options ...client.GetOption,
) (*Runtime, error) {
	ref := job.Spec.RuntimeRef
	switch {
	case trainjobutil.RuntimeRefIsClusterTrainingRuntime(ref):
		var rt api.ClusterTrainingRuntime
		if err := c.Get(ctx, client.ObjectKey{Name: ref.Name}, &rt, options...); err != nil {
			return nil, client.IgnoreNotFound(err)
		}
		return &Runtime{Spec: rt.Spec, Labels: rt.Labels, Annotations: rt.Annotations}, nil
	case trainjobutil.RuntimeRefIsTrainingRuntime(ref):
		var rt api.TrainingRuntime
		if err := c.Get(ctx, client.ObjectKey{Namespace: job.Namespace, Name: ref.Name}, &rt, options...); err != nil {
			return nil, client.IgnoreNotFound(err)
		}
		return &Runtime{Spec: rt.Spec, Labels: rt.Labels, Annotations: rt.Annotations}, nil
	}
	return nil, ErrUnknownKind
}
