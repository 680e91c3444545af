package overrides

import (
	"fmt"
	"maps"
	"slices"
)

// maxWarnings bounds the warnings about one TrainJob: an API server truncates long lists of warnings.
const maxWarnings = 8

// setting is a value and the manager whose entry sets it.
type setting struct{ manager, value string }

// Warnings returns a warning for each value that an entry sets and an earlier one of another manager sets differently.
// That is allowed, and the later takes precedence. The integration's entry repeats others' values by design and is left
// out. It also returns a warning for each entry that has nothing but its manager.
func Warnings(entries []Entry) []string {
	set := map[string]setting{}
	var warnings []string
	for _, entry := range entries {
		if entry.bare() && entry.Manager != Manager {
			warnings = append(warnings, fmt.Sprintf("%s has nothing but its manager and changes nothing; if it had more, the "+
				"API server doesn't know the field and has dropped it", patchesPath.Key(entry.Manager)))
		}
		if entry.Manager == Manager || entry.Manager == "" || entry.Patch == nil {
			continue
		}
		values, err := ValuesOf("trainingRuntimeSpec", entry.Patch)
		if err != nil {
			continue // the API server refuses what can't be encoded
		}
		for _, path := range slices.Sorted(maps.Keys(values)) {
			old, found := set[path]
			if found && old.manager != entry.Manager && old.value != values[path] {
				warnings = append(warnings, fmt.Sprintf("spec.%s: %s sets %s to %s and %s to %s; the later entry, of %s, "+
					"takes precedence", entry.Field, old.manager, path, old.value, entry.Manager, values[path], entry.Manager))
			}
			set[path] = setting{entry.Manager, values[path]}
		}
	}
	return warnings[:min(len(warnings), maxWarnings)]
}
