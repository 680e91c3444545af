package overrides

import (
	"encoding/json"
	"fmt"
	"slices"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// Deprecations returns warnings about the shapes that runtimePatches replace, with the equivalent; nil where the
// TrainJob has none. The runtime is given without the entries.
func Deprecations(job *api.TrainJob, runtime *trainerapi.TrainingRuntimeSpec) []string {
	if !Needed(job) {
		return nil
	}
	c, err := Convert(Guide, job)
	if err != nil {
		return nil // CheckEntries and Check refuse what can't be merged
	}
	different, err := Differences(Guide, job, c, runtime)
	if err != nil {
		return nil
	}
	data, err := json.Marshal(map[string]any{RuntimePatches: c.Patches})
	if err != nil {
		return nil
	}
	subject := deprecatedFields(&job.Spec)
	warnings := []string{fmt.Sprintf("%s deprecated; the equivalent in spec is %s", subject, data)}
	if len(data) > maxEquivalent {
		warnings[0] = subject + " deprecated; kubectl signalbox convert -f rewrites the manifest to spec." + RuntimePatches
	}
	if more := slices.Concat(c.Lost, different); len(more) > 0 {
		warnings = append(warnings, fmt.Sprintf("spec.%s are merged with the runtime's values; %d would come out otherwise, "+
			"the first: %s", RuntimePatches, len(more), more[0]))
	}
	return warnings
}

func deprecatedFields(spec *api.TrainJobSpec) string {
	switch {
	case len(spec.PodTemplateOverrides) == 0:
		return "spec." + TemplateOverrides + " is"
	case len(spec.TemplateOverrides) > 0:
		return "spec." + PodTemplateOverrides + " and spec." + TemplateOverrides + " are"
	}
	return "spec." + PodTemplateOverrides + " is"
}
