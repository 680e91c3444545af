package trial

import (
	"context"
	"slices"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides"
)

// Trainer is what makes the objects of a TrainJob.
type Trainer interface {
	// Startable rejects, with an *admission.BlockedError or an *admission.PendingError, what no trial is needed for. Of
	// other TrainJobs it returns what distinguishes them from those that run the same in their namespace, and what
	// returns their needs when they are admitted.
	Startable(
		context.Context, *api.TrainJob, *trainerapi.TrainingRuntimeSpec, *overrides.Effective,
	) (Own, func() (*Needs, error), error)
	// CreatesJobSets reports whether Signalbox creates the JobSets, so that it may try what JobSet creates of them.
	CreatesJobSets() bool
}

// Own is what distinguishes a TrainJob from those that run the same in their namespace.
type Own struct {
	// Controller is what controls it: Kueue's webhook for JobSets looks for their owners' owners.
	Controller string
	// Claims are the names of its claims that are there already, separated by commas.
	Claims string
	// Done are the names of its initializers that needn't run again, separated by commas.
	Done string
	// fewest is with how few nodes it may be admitted.
	fewest int32
}

// Needs is what a TrainJob needs.
type Needs struct {
	// ReplicatedJobs are the JobSet's. Fewest are those of a TrainJob that is admitted with the fewest nodes that it may
	// have, in the same order.
	ReplicatedJobs, Fewest []jobset.ReplicatedJob
	// Objects are the JobSet, the last of them, and what is created before it; none where the Trainer creates them with
	// the TrainJob.
	Objects []Object
	// Pin is the size of the pinned runtime in bytes; 0 for none.
	Pin int
}

// Object is an object of a TrainJob.
type Object struct {
	*unstructured.Unstructured
	// Untried is set for one that is there already, or whose form is fixed.
	Untried bool
	// taken is set for what a dry run has returned, with all defaults.
	taken bool
}

// Installed is an installed Kubeflow Trainer, which builds what is in Effective.Built, and creates it with the
// TrainJob.
type Installed struct {
	// Unsupported rejects what only the bundled Trainer has.
	Unsupported func(*api.TrainJob, *trainerapi.TrainingRuntimeSpec) error
}

// Startable implements Trainer.
func (i Installed) Startable(
	_ context.Context, job *api.TrainJob, runtime *trainerapi.TrainingRuntimeSpec, effective *overrides.Effective,
) (Own, func() (*Needs, error), error) {
	needs := func() (*Needs, error) {
		return &Needs{ReplicatedJobs: effective.Built, Fewest: fewest(job, runtime, effective)}, nil
	}
	return Own{}, needs, i.Unsupported(job, runtime)
}

// CreatesJobSets implements Trainer.
func (Installed) CreatesJobSets() bool { return false }

// fewest returns the ReplicatedJobs of a TrainJob that is admitted with the fewest nodes that it may have. An invalid
// minimum is rejected elsewhere.
func fewest(
	job *api.TrainJob, settings *trainerapi.TrainingRuntimeSpec, effective *overrides.Effective,
) []jobset.ReplicatedJob {
	least, err := overrides.MinNodes(job, settings)
	nodes := overrides.Nodes(job, settings)
	if err != nil || least >= nodes {
		return effective.Built
	}
	if len(effective.NodeGroup) > 1 { // the launcher is one of them
		least, nodes = max(least-1, 1), nodes-1
	}
	all := slices.Clone(effective.Built)
	for i := range all {
		if ptr.Deref(all[i].Template.Spec.Parallelism, 1) == nodes {
			all[i].Template.Spec.Parallelism = &least
		}
	}
	return all
}
