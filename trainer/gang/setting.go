package gang

import (
	"fmt"
	"slices"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides"
)

// Setting is how the pods of a TrainJob are to be placed.
type Setting struct {
	Mode   api.GangMode
	Policy api.GangPolicy
	// From is where Mode was said, for messages.
	From string
}

// SettingOf returns the TrainJob's own setting, else that of its runtime, else the default, each of the two fields by
// itself. A runtime's is in its template's metadata (admission.Runtime.Pinnable puts it there). A value that isn't one is
// an error that names the path.
func SettingOf(job *api.TrainJob, runtime *trainerapi.TrainingRuntimeSpec, defaults Setting) (Setting, error) {
	own := field.NewPath("metadata", "annotations")
	theirs := field.NewPath("runtime "+job.Spec.RuntimeRef.Name).Child("metadata", "annotations")
	if errs := append(CheckAnnotations(own, job.Annotations), CheckAnnotations(theirs, runtime.Template.Annotations)...); len(errs) > 0 {
		return Setting{}, errs.ToAggregate()
	}
	s := defaults
	for _, level := range []struct {
		path        *field.Path
		annotations map[string]string
	}{{theirs, runtime.Template.Annotations}, {own, job.Annotations}} {
		if mode := level.annotations[api.GangModeAnnotation]; mode != "" {
			s.Mode, s.From = api.GangMode(mode), level.path.Key(api.GangModeAnnotation).String()
			if _, pinned := job.Annotations[overrides.PinAnnotation]; pinned && level.path == theirs {
				s.From += " when it was first started; the TrainJob's own annotation goes before"
			}
		}
		if policy := level.annotations[api.GangPolicyAnnotation]; policy != "" {
			s.Policy = api.GangPolicy(policy)
		}
	}
	return s, nil
}

// CheckAnnotations refuses values of the annotations that don't exist. path is the annotations'.
func CheckAnnotations(path *field.Path, annotations map[string]string) field.ErrorList {
	var errs field.ErrorList
	if mode, found := annotations[api.GangModeAnnotation]; found && !slices.Contains(api.GangModes, api.GangMode(mode)) {
		errs = append(errs, field.NotSupported(path.Key(api.GangModeAnnotation), api.GangMode(mode), api.GangModes))
	}
	if policy, found := annotations[api.GangPolicyAnnotation]; found && !slices.Contains(api.GangPolicies, api.GangPolicy(policy)) {
		errs = append(errs, field.NotSupported(path.Key(api.GangPolicyAnnotation), api.GangPolicy(policy), api.GangPolicies))
	}
	return errs
}

// asks says in words who asks for what.
func (s Setting) asks() string { return fmt.Sprintf("gang scheduling is %s (%s)", s.Mode, s.From) }
