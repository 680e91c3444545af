package overrides

import (
	"slices"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// manifests is the dialect of manifests, which may hold every shape, written for whatever Trainer. It is otherwise the
// bundled Trainer's.
type manifests struct {
	bundled
}

var (
	manifestsByGuide = &manifests{bundled{trainer: trainer{"a manifest", merging}, lists: everyList(true)}}
	manifestsMerged  = &manifests{bundled{
		trainer: trainer{"a manifest of Kubeflow Trainer v2.1", merging}, lists: everyList(false),
	}}
)

// Manifests returns the dialect of manifests, which may hold every shape. strategic merges podTemplateOverrides as
// Kubeflow Trainer v2.1 does, and not as its operator guide and the bundled Trainer do.
func Manifests(strategic bool) Dialect {
	if strategic {
		return manifestsMerged
	}
	return manifestsByGuide
}

// CountsJobs reports false: a manifest has no status.
func (d *manifests) CountsJobs() bool { return false }

// everyList returns a function that returns the entries of every shape before templateOverrides.
func everyList(replaces bool) func(*api.TrainJob) []Entry {
	return func(job *api.TrainJob) []Entry {
		return slices.Concat(jobSetEntries(job), podTemplateEntries(job, replaces), podSpecEntries(job))
	}
}
