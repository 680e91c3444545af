package store

import (
	"context"
	"fmt"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// Where Kubeflow Trainer (v2.3.0, KEP-2599) keeps the runtime that it has pinned for a TrainJob.
const (
	// SnapshotSuffix of the ConfigMap's name, after the TrainJob's.
	SnapshotSuffix = "-runtime-snapshot"
	snapshotKey    = "runtime"
)

// Snapshot is a runtime that Kubeflow Trainer has pinned.
type Snapshot struct {
	// Object that holds it.
	Object *corev1.ConfigMap
	Spec   *trainerapi.TrainingRuntimeSpec
}

// snapshotOf reads the runtime that Kubeflow Trainer has pinned for a TrainJob, nil if there is none. It asks the API
// server: the ConfigMaps of a whole cluster are too many to cache.
func snapshotOf(ctx context.Context, live client.Reader, job *api.TrainJob) (*Snapshot, error) {
	var object corev1.ConfigMap
	key := types.NamespacedName{Namespace: job.Namespace, Name: job.Name + SnapshotSuffix}
	if err := live.Get(ctx, key, &object); client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("reading Trainer's runtime snapshot: %w", err)
	} else if err != nil {
		return nil, nil
	}
	spec, err := fromSnapshot(job, &object)
	if err != nil || spec == nil {
		return nil, err
	}
	return &Snapshot{Object: &object, Spec: spec}, nil
}

// fromSnapshot reads the runtime out of Kubeflow Trainer's snapshot. It returns nil for a snapshot of an earlier
// TrainJob of the name, which the garbage collector is about to delete, and of another runtime.
func fromSnapshot(job *api.TrainJob, object *corev1.ConfigMap) (*trainerapi.TrainingRuntimeSpec, error) {
	if owner := metav1.GetControllerOf(object); owner == nil || owner.UID != job.UID {
		return nil, nil
	}
	var pinned struct {
		Kind     string                         `json:"kind"`
		Metadata metav1.ObjectMeta              `json:"metadata"`
		Spec     trainerapi.TrainingRuntimeSpec `json:"spec"`
	}
	if err := yaml.Unmarshal([]byte(object.Data[snapshotKey]), &pinned); err != nil {
		return nil, fmt.Errorf("Trainer's runtime snapshot %s/%s, key %q: %w",
			object.Namespace, object.Name, snapshotKey, err)
	}
	if ref := job.Spec.RuntimeRef; pinned.Metadata.Name != ref.Name || ref.Kind != nil && pinned.Kind != *ref.Kind {
		return nil, nil
	}
	return &pinned.Spec, nil
}

// seenByTrainer reports whether a Trainer has created a JobSet of the TrainJob: only then may there be a snapshot that
// Trainer has made. Anybody who may write ConfigMaps can forge one; only controllers write status.
func seenByTrainer(job *api.TrainJob) bool { return len(job.Status.JobsStatus) > 0 }
