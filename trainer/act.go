package trainer

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/store/events"
)

// act carries out a step.
func (r *Reconciler) act(ctx context.Context, o *observed, s step) error {
	switch s := s.(type) {
	case forget:
		r.memory.recall(o.key, o.now, false, false)
		r.Store.JobSets.Forget(o.key)
		return nil
	case writeStatus:
		return r.writeStatus(ctx, o, s.status)
	case writeLoss:
		return r.writeLoss(ctx, o, s)
	case stopStalled:
		return r.stopStalled(ctx, o, s)
	case suspend:
		if err := r.Store.Writer.Suspend(ctx, o.job); err != nil {
			return client.IgnoreNotFound(fmt.Errorf("suspending for a restart: %w", err))
		}
		return nil
	case keepGangs:
		return r.Gangs.Keep(ctx, s.outlook)
	case create:
		return r.create(ctx, o)
	case deleteJobSet:
		return r.deleteJobSet(ctx, o)
	case deleteSideObjects:
		r.deleteSideObjects(ctx, o)
		return nil
	case announceWaiting:
		if r.memory.announce(o.key, s.condition.LastTransitionTime) {
			r.recorder.Send(o.job, events.Waiting.Of(s.condition.Message))
		}
		return nil
	}
	return fmt.Errorf("%T is no step", s)
}

func (r *Reconciler) writeStatus(ctx context.Context, o *observed, status *api.TrainJobStatus) error {
	if err := r.Store.Writer.Status(ctx, o.job, status); err != nil {
		return client.IgnoreNotFound(fmt.Errorf("writing the status: %w", err))
	}
	r.memory.written(o.key)
	if c := status.Condition(api.ConditionGangScheduled); isFalse(c) && !isFalse(o.job.Status.Condition(c.Type)) {
		r.recorder.Send(o.job, events.GangUnschedulable.Of(c.Message))
	}
	if told := stallEvent(&o.job.Status, status); told != nil {
		r.recorder.Send(o.job, *told)
	}
	r.tellBlamed(o)
	return nil
}

func isFalse(c *metav1.Condition) bool { return c != nil && c.Status == metav1.ConditionFalse }

func (r *Reconciler) writeLoss(ctx context.Context, o *observed, s writeLoss) error {
	status := o.job.Status.DeepCopy()
	status.Lost = &s.lost
	status.Avoided = r.Avoid.Remember(status.Avoided, o.blamed, o.now)
	write := r.Store.Writer.Status
	if s.asRead {
		write = r.Store.Writer.StatusAsRead
	}
	if err := write(ctx, o.job, status); err != nil {
		return client.IgnoreNotFound(fmt.Errorf("writing that a TrainJob is to be restarted: %w", err))
	}
	r.tellBlamed(o)
	r.recorder.Send(o.job, s.event)
	return nil
}

func (r *Reconciler) deleteJobSet(ctx context.Context, o *observed) error {
	asRead := client.Preconditions{UID: &o.jobSet.UID, ResourceVersion: &o.jobSet.ResourceVersion}
	err := r.Client.Delete(ctx, o.jobSet.DeepCopy(), client.PropagationPolicy(metav1.DeletePropagationForeground), asRead)
	if err != nil {
		return client.IgnoreNotFound(fmt.Errorf("deleting the JobSet: %w", err))
	}
	return nil
}

func (r *Reconciler) deleteSideObjects(ctx context.Context, o *observed) {
	log := ctrl.LoggerFrom(ctx).WithValues("trainJob", o.key)
	children := &Children{}
	runtime, err := r.Store.Runtimes.Of(ctx, o.job)
	if err == nil {
		children, err = r.Builder.Build(ctx, o.job, runtime.Spec)
	}
	if err != nil {
		log.Error(err, "The side objects of a TrainJob that stops are unknown; they stay until it is deleted")
		return
	}
	for _, object := range children.SideObjects {
		if _, err := r.deleteSideObject(ctx, o.job, object); err != nil {
			log.Error(err, "Deleting a side object; it stays until the TrainJob is deleted",
				"kind", object.GetKind(), "name", object.GetName())
		}
	}
}
