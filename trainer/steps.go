package trainer

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/store/events"
)

// step is one thing that a reconcile does. Steps are values, so that decisions can be compared in tests; they are
// carried out in one place, carryOut.
type step interface {
	do(ctx context.Context, r *Reconciler, o *observed) error
}

// carryOut carries steps out in their order. None depends on another: a status that can't be written keeps no JobSet
// from being deleted. A conflict is returned only if nothing worse has happened.
func (r *Reconciler) carryOut(ctx context.Context, o *observed, steps []step) error {
	var conflict error
	var failures []error
	for _, s := range steps {
		switch err := s.do(ctx, r, o); {
		case apierrors.IsConflict(err):
			conflict = err
		case err != nil:
			failures = append(failures, err)
		}
	}
	if len(failures) > 0 {
		return errors.Join(failures...)
	}
	return conflict
}

// writeStatus writes the status.
type writeStatus struct{ status *api.TrainJobStatus }

func (s writeStatus) do(ctx context.Context, r *Reconciler, o *observed) error {
	if err := r.store.Writer.Status(ctx, o.job, s.status); err != nil {
		return client.IgnoreNotFound(fmt.Errorf("writing the status: %w", err))
	}
	r.settle(o.key())
	if c := s.status.Condition(api.ConditionGangScheduled); isFalse(c) && !isFalse(o.job.Status.Condition(c.Type)) {
		r.recorder.Send(o.job, events.GangUnschedulable.Of(c.Message))
	}
	return nil
}

// deleteJobSet deletes the JobSet, in the foreground: it exists until the last of its pods is gone, and as long as it
// exists, something may run. It is deleted in the version that was observed, because the next may have come to its end.
type deleteJobSet struct{}

func (deleteJobSet) do(ctx context.Context, r *Reconciler, o *observed) error {
	asRead := client.Preconditions{UID: &o.jobSet.UID, ResourceVersion: &o.jobSet.ResourceVersion}
	err := r.client.Delete(ctx, o.jobSet.DeepCopy(), client.PropagationPolicy(metav1.DeletePropagationForeground), asRead)
	if err != nil {
		return client.IgnoreNotFound(fmt.Errorf("deleting the JobSet: %w", err))
	}
	return nil
}

// deleteSideObjects deletes what was created beside the JobSet of a TrainJob that stops; its next start creates it
// again. A failure doesn't keep the TrainJob running: the side objects are deleted with the TrainJob at the latest.
type deleteSideObjects struct{}

func (deleteSideObjects) do(ctx context.Context, r *Reconciler, o *observed) error {
	log := ctrl.LoggerFrom(ctx).WithValues("trainJob", o.key())
	runtime, err := r.store.Runtimes.Of(ctx, o.job)
	if err != nil {
		log.Error(err, "Can't determine the side objects of a TrainJob that stops; they stay until it is deleted")
		return nil
	}
	objects, err := r.builder.SideObjects(ctx, o.job, runtime.Spec)
	if err != nil {
		log.Error(err, "Can't determine the side objects of a TrainJob that stops; they stay until it is deleted")
		return nil
	}
	for _, object := range objects {
		if err := r.deleteSideObject(ctx, o.job, object); client.IgnoreNotFound(err) != nil {
			log.Error(err, "Deleting a side object; it stays until the TrainJob is deleted",
				"kind", object.GetKind(), "name", object.GetName())
		}
	}
	return nil
}
