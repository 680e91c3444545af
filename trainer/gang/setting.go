package gang

import (
	"fmt"
	"slices"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/signalbox-dev/signalbox/admission"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/store"
)

// Reasons of the condition Blocked.
const (
	// ReasonUnavailable: gang scheduling is required, and the cluster doesn't serve the API for it, or not all that it
	// needs.
	ReasonUnavailable = "GangSchedulingUnavailable"
	// ReasonInvalid: an annotation has an invalid value, or gang scheduling conflicts with another setting.
	ReasonInvalid = "InvalidGangScheduling"
)

// Setting is how the pods of a TrainJob are to be placed.
type Setting struct {
	Mode   api.GangMode
	Policy api.GangPolicy
	// From is the path of the field or annotation that Mode is from, for messages.
	From string
}

// SettingOf returns the setting of a TrainJob. For each of mode and policy, the TrainJob's annotation takes precedence
// over that of its runtime, and that over defaults. The runtime's annotations are in its template's metadata
// (store.Runtime.Pinnable copies them there). An invalid value is an error that names its path.
func SettingOf(job *api.TrainJob, runtime *trainerapi.TrainingRuntimeSpec, defaults Setting) (Setting, error) {
	own := field.NewPath("metadata", "annotations")
	inherited := field.NewPath("runtime "+job.Spec.RuntimeRef.Name).Child("metadata", "annotations")
	errs := CheckAnnotations(own, job.Annotations)
	errs = append(errs, CheckAnnotations(inherited, runtime.Template.Annotations)...)
	if len(errs) > 0 {
		return Setting{}, errs.ToAggregate()
	}
	s := defaults
	for _, level := range []struct {
		path        *field.Path
		annotations map[string]string
	}{{inherited, runtime.Template.Annotations}, {own, job.Annotations}} {
		if mode := level.annotations[api.GangModeAnnotation]; mode != "" {
			s.Mode, s.From = api.GangMode(mode), level.path.Key(api.GangModeAnnotation).String()
			if _, pinned := job.Annotations[store.PinAnnotation]; pinned && level.path == inherited {
				s.From += " when it was first started; the TrainJob's own annotation takes precedence"
			}
		}
		if policy := level.annotations[api.GangPolicyAnnotation]; policy != "" {
			s.Policy = api.GangPolicy(policy)
		}
	}
	return s, nil
}

// CheckAnnotations returns an error for each gang scheduling annotation with an unknown value. path is that of the
// annotations.
func CheckAnnotations(path *field.Path, annotations map[string]string) field.ErrorList {
	var errs field.ErrorList
	mode, found := annotations[api.GangModeAnnotation]
	if found && !slices.Contains(api.GangModes, api.GangMode(mode)) {
		errs = append(errs, field.NotSupported(path.Key(api.GangModeAnnotation), api.GangMode(mode), api.GangModes))
	}
	policy, found := annotations[api.GangPolicyAnnotation]
	if found && !slices.Contains(api.GangPolicies, api.GangPolicy(policy)) {
		errs = append(errs, field.NotSupported(path.Key(api.GangPolicyAnnotation), api.GangPolicy(policy), api.GangPolicies))
	}
	return errs
}

// request returns the mode and where it is from, for messages.
func (s Setting) request() string { return fmt.Sprintf("gang scheduling is %s (%s)", s.Mode, s.From) }

// Unsupported refuses gang scheduling beside an installed Kubeflow Trainer. A pod's group can't be set once its JobSet
// exists, and Kubeflow Trainer creates the JobSet before the TrainJob is admitted. It returns an
// *admission.BlockedError if the TrainJob requires groups or its annotations are invalid; one that prefers groups
// starts without them.
func Unsupported(job *api.TrainJob, runtime *trainerapi.TrainingRuntimeSpec) error {
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
