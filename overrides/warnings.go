package overrides

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

const (
	// maxWarnings bounds the warnings about one TrainJob: an API server truncates long lists of warnings.
	maxWarnings = 8
	// maxEquivalent bounds the equivalent in a warning, in bytes: an API server truncates warnings of more than 4,096
	// characters together.
	maxEquivalent = 2800
)

// setting is a value and the manager whose entry sets it.
type setting struct{ manager, value string }

// Warnings returns a warning for each value that an entry sets and an earlier one of another manager sets differently.
// That is allowed, and the later takes precedence. The integration's entry repeats others' values by design and is left
// out. It also returns a warning for each entry that has nothing but its manager.
func Warnings(entries []Entry) []string {
	set := map[string]setting{}
	var warnings []string
	for _, entry := range entries {
		if entry.bare() && entry.Manager != Manager && len(warnings) < maxWarnings {
			warnings = append(warnings, fmt.Sprintf("%s has nothing but its manager and changes nothing; if it had more, the "+
				"API server doesn't know the field and has dropped it", patchesPath.Key(entry.Manager)))
		}
		if entry.Manager == Manager || entry.Manager == "" || entry.Patch == nil {
			continue
		}
		content, err := decode(entry.Patch)
		if err != nil {
			continue // the API server refuses what can't be encoded
		}
		values := map[string]string{}
		flatten("trainingRuntimeSpec", content, values)
		for _, path := range slices.Sorted(maps.Keys(values)) {
			old, found := set[path]
			if found && old.manager != entry.Manager && old.value != values[path] && len(warnings) < maxWarnings {
				warnings = append(warnings, fmt.Sprintf("spec.%s: %s sets %s to %s and %s to %s; the later entry, of %s, "+
					"takes precedence", entry.shape, old.manager, path, old.value, entry.Manager, values[path], entry.Manager))
			}
			set[path] = setting{entry.Manager, values[path]}
		}
	}
	return warnings
}

// flatten adds every value in decoded JSON under its path. A list of named objects is keyed by name (mounts by their
// path); any other list is one value, which a merge replaces as a whole.
func flatten(path string, content any, into map[string]string) {
	switch c := content.(type) {
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(c)) {
			flatten(path+"."+key, c[key], into)
		}
	case []any:
		flattenList(path, c, into)
	default:
		flattenValue(path, c, into)
	}
}

func flattenList(path string, list []any, into map[string]string) {
	for _, item := range list {
		named, _ := item.(map[string]any)
		by := "mountPath"
		if named[by] == nil {
			by = "name"
		}
		if named[by] == nil || strings.HasSuffix(path, ".tolerations") {
			flattenValue(path, list, into)
			return
		}
		at := fmt.Sprintf("%s[%v]", path, named[by])
		rest := maps.Clone(named)
		delete(rest, by)
		if len(rest) == 0 {
			into[at] = "{}" // it has nothing but the name
		}
		flatten(at, rest, into)
	}
}

func flattenValue(path string, value any, into map[string]string) {
	if data, err := json.Marshal(value); err == nil {
		into[path] = string(data)
	}
}

// Deprecations returns warnings about the shapes that runtimePatches replace, with the equivalent; nil where the
// TrainJob has none. The runtime is given without the entries.
func Deprecations(job *api.TrainJob, runtime *trainerapi.TrainingRuntimeSpec) []string {
	if !Needed(job) {
		return nil
	}
	c, err := Convert(Bundled, job)
	if err != nil {
		return nil // CheckEntries and Check refuse what can't be merged
	}
	different, err := Differences(Bundled, job, c, runtime)
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

// deprecatedFields names the deprecated fields of a TrainJob, with their verb.
func deprecatedFields(spec *api.TrainJobSpec) string {
	switch {
	case len(spec.PodTemplateOverrides) == 0:
		return "spec." + TemplateOverrides + " is"
	case len(spec.TemplateOverrides) > 0:
		return "spec." + PodTemplateOverrides + " and spec." + TemplateOverrides + " are"
	}
	return "spec." + PodTemplateOverrides + " is"
}
