package overrides

import (
	"slices"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// EveryEntry returns the entries of all forms, whichever the Trainer reads.
func EveryEntry(job *api.TrainJob) []Entry {
	return slices.Concat(podSpecEntries(job), podTemplateEntries(job, false), histories(job), PatchEntries(job))
}
