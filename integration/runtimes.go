package integration

import (
	"context"
	"errors"
	"fmt"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	trainjobutil "github.com/kubeflow/trainer/v2/pkg/util/trainjob"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/signalbox-dev/signalbox/overrides"
)

// Where Kubeflow Trainer (v2.3.0, KEP-2599) keeps the runtime that it has pinned for a TrainJob.
const (
	snapshotSuffix = "-runtime-snapshot"
	snapshotKey    = "runtime"
)

// Reasons of the condition Blocked, and of the events beside it.
const (
	ReasonRuntimeNotFound = "RuntimeNotFound"
	ReasonInvalidRuntime  = "InvalidRuntime"
	ReasonTooManyPodSets  = "TooManyPodSets"
)

// blockedError says why a TrainJob can't be queued until somebody changes something. It is not retried by itself: the
// change brings the TrainJob back.
type blockedError struct {
	reason string
	err    error
}

func (e *blockedError) Error() string { return e.err.Error() }
func (e *blockedError) Unwrap() error { return e.err }

// snapshot is a runtime that Trainer has pinned.
type snapshot struct {
	object *corev1.ConfigMap
	spec   trainer.TrainingRuntimeSpec
}

// runtimeOf decides which runtime a suspended TrainJob stands on, and whether Trainer's snapshot is out of date. A
// TrainJob that has run keeps the runtime it ran on. One that has not follows the live runtime. Trainer refuses any
// change of a TrainJob whose live runtime is gone, so that it could not be started: live nil is an error in both cases.
func runtimeOf(job *trainer.TrainJob, live *trainer.TrainingRuntimeSpec, pinned *snapshot) (spec *trainer.TrainingRuntimeSpec, stale bool, err error) {
	if live == nil {
		return nil, false, &blockedError{reason: ReasonRuntimeNotFound, err: fmt.Errorf(
			"spec.runtimeRef: there is no %s; create it, or delete this TrainJob and refer to another", describe(job))}
	}
	if pinned == nil {
		return live, false, nil
	}
	if overrides.Own(job) != nil {
		return &pinned.spec, false, nil
	}
	return live, !equality.Semantic.DeepEqual(pinned.spec, *live), nil
}

func describe(job *trainer.TrainJob) string {
	if trainjobutil.RuntimeRefIsTrainingRuntime(job.Spec.RuntimeRef) {
		return fmt.Sprintf("TrainingRuntime %q in namespace %q", job.Spec.RuntimeRef.Name, job.Namespace)
	}
	return fmt.Sprintf("ClusterTrainingRuntime %q", job.Spec.RuntimeRef.Name)
}

// liveRuntime reads the runtime that the TrainJob refers to; nil where it doesn't exist.
func liveRuntime(ctx context.Context, c client.Reader, job *trainer.TrainJob) (*trainer.TrainingRuntimeSpec, error) {
	ref := job.Spec.RuntimeRef
	switch {
	case trainjobutil.RuntimeRefIsClusterTrainingRuntime(ref):
		var rt trainer.ClusterTrainingRuntime
		if err := c.Get(ctx, client.ObjectKey{Name: ref.Name}, &rt); err != nil {
			return nil, client.IgnoreNotFound(err)
		}
		return &rt.Spec, nil
	case trainjobutil.RuntimeRefIsTrainingRuntime(ref):
		var rt trainer.TrainingRuntime
		if err := c.Get(ctx, client.ObjectKey{Namespace: job.Namespace, Name: ref.Name}, &rt); err != nil {
			return nil, client.IgnoreNotFound(err)
		}
		return &rt.Spec, nil
	}
	return nil, &blockedError{reason: ReasonInvalidRuntime, err: errors.New(
		"spec.runtimeRef: only kinds TrainingRuntime and ClusterTrainingRuntime of trainer.kubeflow.org can be referred to; create the TrainJob anew with one of them")}
}

// pinnedRuntime reads Trainer's snapshot for the TrainJob; nil where there is none. It asks the API server: the
// ConfigMaps of a whole cluster are too many to keep, and only a suspended TrainJob's is ever needed.
func pinnedRuntime(ctx context.Context, c client.Reader, job *trainer.TrainJob) (*snapshot, error) {
	var object corev1.ConfigMap
	key := types.NamespacedName{Namespace: job.Namespace, Name: job.Name + snapshotSuffix}
	if err := c.Get(ctx, key, &object); apierrors.IsNotFound(err) {
		return nil, nil
	} else if err != nil {
		return nil, fmt.Errorf("reading Trainer's runtime snapshot: %w", err)
	}
	if owner := metav1.GetControllerOf(&object); owner == nil || owner.UID != job.UID {
		return nil, nil // of an earlier TrainJob of that name; the garbage collector is about to take it
	}
	var pinned struct {
		Spec trainer.TrainingRuntimeSpec `json:"spec"`
	}
	if err := yaml.Unmarshal([]byte(object.Data[snapshotKey]), &pinned); err != nil {
		return nil, fmt.Errorf("Trainer's runtime snapshot %s, key %q: %w", key, snapshotKey, err)
	}
	return &snapshot{object: &object, spec: pinned.Spec}, nil
}
