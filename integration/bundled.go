package integration

import (
	"context"

	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/controller/jobframework"

	"github.com/signalbox-dev/signalbox/admission"
	"github.com/signalbox-dev/signalbox/store"
)

// bundledTrainer is Signalbox's own Trainer. It creates nothing before a TrainJob starts, and deletes the JobSet of one
// that was stopped.
type bundledTrainer struct{ here }

func (bundledTrainer) runtime(ctx context.Context, r reads, o *observed) (*store.Choice, error) {
	return r.store.Runtimes.Of(ctx, o.job)
}

// leftover finds out whether the JobSet of a stopped TrainJob, or a Job of it, exists only because a finalizer keeps
// it, or an object that names it as its owner. What runs no pod must not hold quota.
func (t bundledTrainer) leftover(ctx context.Context, r reads, o *observed) (leftover, error) {
	left := o.left
	switch {
	case len(left.pods) > 0:
		return left, nil
	case o.jobSet == nil:
		if admission.IsNeutral(t.Own(o.job)) {
			return left, nil
		}
		job, err := r.store.Pods.JobNamed(ctx, o.key())
		switch {
		case err != nil || job == nil:
			return left, err
		case isKept(job, o.now):
			left.kept = "Job " + job.Name
		default:
			left.job = job.Name
		}
		left.again = recheckDelay
		return left, nil
	case !isKept(o.jobSet, o.now):
		left.again = keptIn(o.jobSet, o.now)
		return left, nil
	}
	over, err := r.over(ctx, o.owner())
	if over {
		left.kept = "JobSet " + o.jobSet.Name
	}
	left.again = recheckDelay
	return left, err
}

func (bundledTrainer) startJobs(context.Context, reads, *observed) ([]batchv1.Job, error) {
	return nil, nil
}

// active reports whether the JobSet exists: it is deleted in the foreground, after its last pod.
func (bundledTrainer) active(o *observed) bool {
	if o.jobSet != nil {
		return o.left.kept == ""
	}
	return admission.Running(o.job, nil, o.left.pods) != ""
}

func (bundledTrainer) reclaimable(o *observed) []kueue.ReclaimablePod { return outlived(o) }

// blocks reports whether a condition may say why a started TrainJob has no JobSet. What the TrainJob still says of the
// time before it was started doesn't.
func (bundledTrainer) blocks(o *observed, c *metav1.Condition) bool {
	if o.stage != stageRunning || o.jobSet != nil {
		return false
	}
	switch c.Reason {
	case ReasonReconcileFailed, ReasonStartRejected, ReasonAdmissionMismatch, jobframework.FailedToStartFinishedReason:
		return false
	}
	return true
}

func (t bundledTrainer) prepare(o *observed) ([]step, string) {
	if o.queue.foreign != nil {
		return migration(o, t.Field)
	}
	if o.jobSet != nil {
		return nil, "the JobSet of the last admission is not gone yet"
	}
	if o.left.job != "" {
		return nil, "Job " + o.left.job + " of the last admission is not gone yet"
	}
	if admission.IsNeutral(o.entry) {
		return nil, ""
	}
	const waiting = "the last admission is not cleared yet"
	if o.left.active {
		return nil, waiting
	}
	return []step{clearEntry{}}, waiting
}

func (bundledTrainer) settle(*observed) settlement { return settlement{} }

// complete pins the runtime with the first start.
func (bundledTrainer) complete(o *observed, start *admission.Start) (err error) {
	if start.Pin = o.job.Annotations[store.PinAnnotation]; start.Pin != "" {
		return nil
	}
	start.NewPin = true
	start.Pin, err = store.Pin(o.queue.choice.Spec)
	return err
}

func (bundledTrainer) stuck(*observed) []step { return nil }

func (bundledTrainer) write(
	ctx context.Context, writer *store.Writer, start *admission.Start,
) (way string, err error) {
	return oneWrite, writer.Start(ctx, start)
}
