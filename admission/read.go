package admission

import (
	"context"
	"errors"
	"fmt"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	trainjobutil "github.com/kubeflow/trainer/v2/pkg/util/trainjob"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides"
)

// ErrUnknownKind is about a runtimeRef of a kind that nobody serves.
var ErrUnknownKind = errors.New(
	"spec.runtimeRef: only kinds TrainingRuntime and ClusterTrainingRuntime of trainer.kubeflow.org can be referred to; create the TrainJob anew with one of them")

// Runtime is a runtime as it stands.
type Runtime struct {
	Spec                trainerapi.TrainingRuntimeSpec
	Labels, Annotations map[string]string
}

// Pinnable returns the runtime's spec with what its own annotations say of a start among those of its template, so that
// a TrainJob's pin holds it too. It changes nothing of the runtime.
func (r *Runtime) Pinnable() *trainerapi.TrainingRuntimeSpec {
	spec := r.Spec.DeepCopy()
	for _, key := range []string{api.GangModeAnnotation, api.GangPolicyAnnotation} {
		if value, found := r.Annotations[key]; found {
			metav1.SetMetaDataAnnotation(&spec.Template.ObjectMeta, key, value)
		}
	}
	return spec
}

// LiveRuntime reads the runtime that a TrainJob refers to; nil where there is none of that name.
func LiveRuntime(ctx context.Context, c client.Reader, job *api.TrainJob) (*Runtime, error) {
	ref := job.Spec.RuntimeRef
	switch {
	case trainjobutil.RuntimeRefIsClusterTrainingRuntime(ref):
		var rt api.ClusterTrainingRuntime
		if err := c.Get(ctx, client.ObjectKey{Name: ref.Name}, &rt); err != nil {
			return nil, client.IgnoreNotFound(err)
		}
		return &Runtime{Spec: rt.Spec, Labels: rt.Labels, Annotations: rt.Annotations}, nil
	case trainjobutil.RuntimeRefIsTrainingRuntime(ref):
		var rt api.TrainingRuntime
		if err := c.Get(ctx, client.ObjectKey{Namespace: job.Namespace, Name: ref.Name}, &rt); err != nil {
			return nil, client.IgnoreNotFound(err)
		}
		return &Runtime{Spec: rt.Spec, Labels: rt.Labels, Annotations: rt.Annotations}, nil
	}
	return nil, ErrUnknownKind
}

// Describe names the runtime that a TrainJob refers to.
func Describe(job *api.TrainJob) string {
	if trainjobutil.RuntimeRefIsTrainingRuntime(job.Spec.RuntimeRef) {
		return fmt.Sprintf("TrainingRuntime %q in namespace %q", job.Spec.RuntimeRef.Name, job.Namespace)
	}
	return fmt.Sprintf("ClusterTrainingRuntime %q", job.Spec.RuntimeRef.Name)
}

// Snapshot reads the runtime that Kubeflow Trainer has pinned for a TrainJob, and the ConfigMap that holds it; nil where
// there is none. It is to be asked of the API server: the ConfigMaps of a whole cluster are too many to keep.
func Snapshot(ctx context.Context, c client.Reader, job *api.TrainJob) (*trainerapi.TrainingRuntimeSpec, *corev1.ConfigMap, error) {
	var object corev1.ConfigMap
	key := types.NamespacedName{Namespace: job.Namespace, Name: job.Name + overrides.SnapshotSuffix}
	if err := c.Get(ctx, key, &object); client.IgnoreNotFound(err) != nil {
		return nil, nil, fmt.Errorf("reading Trainer's runtime snapshot: %w", err)
	} else if err != nil {
		return nil, nil, nil
	}
	spec, err := overrides.FromSnapshot(job, &object)
	return spec, &object, err
}
