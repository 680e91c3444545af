package gang

import (
	"context"
	"fmt"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"

	"github.com/signalbox-dev/signalbox/admission"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides"
)

// Unsupported refuses gang scheduling beside an installed Kubeflow Trainer. A pod's group can't be set once its JobSet
// exists, and Kubeflow Trainer creates the JobSet before the TrainJob is admitted.
type Unsupported struct{}

// Startable returns an *admission.BlockedError if the TrainJob requires groups or its annotations are invalid. A
// TrainJob that prefers groups starts without them.
func (Unsupported) Startable(_ context.Context, job *api.TrainJob, runtime *trainerapi.TrainingRuntimeSpec,
	_ *overrides.Effective) error {
	setting, err := SettingOf(job, runtime, Setting{Mode: api.GangOff})
	if err != nil {
		return &admission.BlockedError{Reason: ReasonInvalid, Err: err}
	}
	if setting.Mode != api.GangRequired {
		return nil
	}
	return &admission.BlockedError{Reason: ReasonUnavailable, Err: fmt.Errorf(
		"%s, but the JobSets of an installed Kubeflow Trainer are not Signalbox's to build, so that their pods can't be "+
			"put into groups; use the bundled Trainer, or set it to %s or %s",
		setting.request(), api.GangPreferred, api.GangOff)}
}
