package integration

import (
	"context"
	"errors"
	"fmt"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/signalbox-dev/signalbox/admission"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides"
)

// Reasons of the condition Blocked, and of the events beside it.
const (
	// ReasonRuntimeNotFound: the runtime that spec.runtimeRef names doesn't exist. Create it, or delete the TrainJob and refer to another.
	ReasonRuntimeNotFound = "RuntimeNotFound"
	// ReasonInvalidRuntime: the runtime, with what the TrainJob changes of it, can't be. The message names the field.
	ReasonInvalidRuntime = "InvalidRuntime"
	// ReasonInvalidOverrides: what the TrainJob said to another Trainer can't be said to this one.
	ReasonInvalidOverrides = "InvalidOverrides"
	// ReasonLastRunKept: nothing of the TrainJob's last run is running, but a finalizer keeps its JobSet, its Jobs or its pods. Remove the finalizer; the TrainJob holds no quota meanwhile.
	ReasonLastRunKept = "LastRunKept"
	// ReasonLimitExceeded: the TrainJob asks for more than one TrainJob may have, or for what Kueue can't count. The message names the field and the limit.
	ReasonLimitExceeded = "LimitExceeded"
	// ReasonTooManyPodSets: the runtime has more ReplicatedJobs than a Workload has room for.
	ReasonTooManyPodSets = "TooManyPodSets"
)

// snapshot is a runtime that Trainer has pinned.
type snapshot struct {
	object *corev1.ConfigMap
	spec   trainerapi.TrainingRuntimeSpec
}

// runtimeOf decides which runtime a suspended TrainJob stands on, and whether Trainer's snapshot is out of date. A
// TrainJob that has run keeps the runtime it ran on. One that has not follows the live runtime. Trainer refuses any
// change of a TrainJob whose live runtime is gone, so that it could not be started: live nil is an error in both cases.
func runtimeOf(job *api.TrainJob, hasRun bool, live *trainerapi.TrainingRuntimeSpec, pinned *snapshot) (spec *trainerapi.TrainingRuntimeSpec, stale bool, err error) {
	if live == nil {
		return nil, false, errNoRuntime(job)
	}
	if pinned == nil {
		return live, false, nil
	}
	if hasRun {
		return &pinned.spec, false, nil
	}
	return live, !equality.Semantic.DeepEqual(pinned.spec, *live), nil
}

func errNoRuntime(job *api.TrainJob) error {
	return &admission.BlockedError{Reason: ReasonRuntimeNotFound, Err: fmt.Errorf(
		"spec.runtimeRef: there is no %s; create it, or delete this TrainJob and refer to another", admission.Describe(job))}
}

// runtimeHere decides the runtime of a suspended TrainJob of the bundled Trainer: the one that it was first started on,
// by us or, where it has run before it came to us, by Kubeflow Trainer; else the live one.
func runtimeHere(ctx context.Context, cache, reader client.Reader, job *api.TrainJob) (*trainerapi.TrainingRuntimeSpec, error) {
	pinned, err := overrides.Pinned(job)
	if err != nil {
		return nil, &admission.BlockedError{Reason: ReasonInvalidRuntime, Err: err}
	}
	if pinned != nil {
		return pinned, nil
	}
	if overrides.Bundled.Own(job) != nil && overrides.SeenByTrainer(job) {
		if theirs, _, err := admission.Snapshot(ctx, reader, job); err != nil || theirs != nil {
			return theirs, err
		}
	}
	live, err := liveRuntime(ctx, cache, job)
	if err != nil {
		return nil, err
	}
	if live == nil {
		return nil, errNoRuntime(job)
	}
	return live.Pinnable(), nil
}

// liveRuntime reads the runtime that the TrainJob refers to; nil where it doesn't exist.
func liveRuntime(ctx context.Context, c client.Reader, job *api.TrainJob) (*admission.Runtime, error) {
	live, err := admission.LiveRuntime(ctx, c, job)
	if errors.Is(err, admission.ErrUnknownKind) {
		return nil, &admission.BlockedError{Reason: ReasonInvalidRuntime, Err: err}
	}
	return live, err
}
