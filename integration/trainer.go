package integration

import (
	"context"
	"fmt"

	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/signalbox-dev/signalbox/admission"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/integration/webhook"
	"github.com/signalbox-dev/signalbox/overrides/dialect"
	"github.com/signalbox-dev/signalbox/podsets"
	"github.com/signalbox-dev/signalbox/store"
	"github.com/signalbox-dev/signalbox/store/events"
)

// Trainer is all that differs between the Trainers that run TrainJobs. One is chosen for each reconcile and each
// review: bundledTrainer, keyedTrainer (Kubeflow Trainer from v2.2) or listTrainer (before).
type Trainer struct {
	*dialect.Dialect
	traits
	trainerReads
	trainerRuns
	trainerStarts
	reviews webhook.Reviews
}

// traits are facts about a Trainer.
type traits struct {
	// ways are those in which it may be written to at a start.
	ways []string
	// states are those that the status of TrainJobs has.
	states []api.TrainJobState
	// deletesJobSet is set if the Trainer deletes the JobSet of a TrainJob that is being deleted. If it doesn't, the
	// integration suspends the TrainJob.
	deletesJobSet bool
	// quiet is set if users get no event for what the TrainJob's status says.
	quiet bool
}

// trainerReads is what a Trainer adds to an observation.
type trainerReads interface {
	// runtime returns the runtime that a suspended TrainJob runs.
	runtime(ctx context.Context, r reads, o *observed) (*store.Choice, error)
	// leftover returns what a suspended TrainJob has left. pods that the cache has are in it already.
	leftover(ctx context.Context, r reads, o *observed) (leftover, error)
	// startJobs returns the Jobs of the TrainJob's JobSet, if they matter to its start.
	startJobs(ctx context.Context, r reads, o *observed) ([]batchv1.Job, error)
	// startable rejects a TrainJob that would have no pods once it is admitted, as Placement does.
	startable(ctx context.Context, r reads, o *observed) error
}

// trainerRuns is what a Trainer knows of a TrainJob that it runs: pure functions of what was observed.
type trainerRuns interface {
	// active reports whether something of a suspended TrainJob may still run.
	active(o *observed) bool
	// ready reports whether all pods of a TrainJob that has not ended are ready or have succeeded.
	ready(o *observed) bool
	// reports is set if the integration writes the TrainJob's conditions.
	reports(o *observed) bool
	// blocks reports whether a condition Blocked may be the Trainer's own, which would write it again.
	blocks(o *observed, c *metav1.Condition) bool
	// reclaimable returns the pods that won't run again of a TrainJob without a JobSet.
	reclaimable(o *observed) []kueue.ReclaimablePod
}

// trainerStarts is what a start needs. All but write are pure functions of what was observed.
type trainerStarts interface {
	// prepare returns the steps that a suspended TrainJob needs before its next start, and what that start waits for; ""
	// if it is ready.
	prepare(o *observed) (steps []step, waiting string)
	// settle returns what a prepared TrainJob with a Workload that is admitted needs in addition, as prepare does, and the
	// events that its start sends.
	settle(o *observed) (settled settlement)
	// complete adds to a start what the Trainer needs with it.
	complete(o *observed, start *admission.Start) error
	// stuck returns the steps that help a suspended TrainJob whose JobSet can't create its Jobs.
	stuck(o *observed) []step
	// write writes a start, and returns in which way.
	write(ctx context.Context, writer *store.Writer, start *admission.Start) (way string, err error)
}

// settlement is what a Trainer has to finish before a start.
type settlement struct {
	steps   []step
	waiting string
	events  []events.Event
}

// here is what all Trainers have in common for the TrainJobs that they run in this cluster.
type here struct{ *dialect.Dialect }

func (here) startable(ctx context.Context, r reads, o *observed) error {
	return r.placement.Startable(ctx, o.job, o.queue.choice.Settings, o.queue.effective)
}

func (here) ready(o *observed) bool {
	return o.jobSet != nil && podsets.Ready(o.jobSet.Spec.ReplicatedJobs, podsets.Statuses(o.jobSet))
}

func (here) reports(*observed) bool { return true }

func (here) blocks(*observed, *metav1.Condition) bool { return false }

// outlived returns the pods that won't run again, by the TrainJob's status.
func outlived(o *observed) []kueue.ReclaimablePod {
	if o.queue.effective == nil {
		return nil
	}
	spec := o.queue.choice.Spec.Template.Spec
	spec.ReplicatedJobs = o.queue.effective.ReplicatedJobs
	return podsets.Outlived(&spec, dialect.Bundled.Done(o.job, o.queue.choice.Spec))
}

// migration returns the steps that move what a TrainJob said to a previous Trainer into the present one's fields. They
// are taken while nothing runs: only then may entries change. The present Trainer can't stop a JobSet that the previous
// one has created: without what the TrainJob said, it would have to change immutable fields. So the JobSet is deleted.
func migration(o *observed, to string) ([]step, string) {
	waiting := fmt.Sprintf("its spec.%s is not migrated to spec.%s yet",
		o.queue.foreign.Field, to)
	if !o.left.active {
		return []step{migrate{record: o.queue.foreign}}, waiting
	}
	if o.jobSet == nil || jobSetSuspended(o.jobSet) || !o.jobSet.DeletionTimestamp.IsZero() {
		return nil, waiting
	}
	return []step{deleteJobSet{jobSet: o.jobSet, foreground: true}}, waiting
}
