package trainer

import (
	"context"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/signalbox-dev/signalbox/admission/stalled"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/store/events"
	"github.com/signalbox-dev/signalbox/trainer/status"
)

// What follows from a stall is done in two writes. Condition Stalled is the first. The second is written only if the
// TrainJob hasn't changed since it was read, so that a report, an end or another annotation that arrives meanwhile
// counts.

// runOf returns what is judged of a TrainJob.
func (r *Reconciler) runOf(o *observed) stalled.Run {
	used := ptr.Deref(o.job.Status.Lost, api.Loss{}).Restarts
	return stalled.Run{
		Job: o.job, JobSet: o.jobSet, Workload: o.workload, Restarts: status.MaxRestarts(o.job) - used,
		Listening: r.listening,
	}
}

// decideStall returns the next step of a TrainJob that has stalled, and whose condition says so; nil if nothing
// follows.
func decideStall(o *observed, verdict stalled.Verdict) step {
	written := o.job.Status.Condition(api.ConditionStalled)
	if verdict.Then == stalled.Nothing || written == nil || written.Status != metav1.ConditionTrue {
		return nil
	}
	since := verdict.Condition.LastTransitionTime.UTC().Format(time.RFC3339)
	if verdict.Then == stalled.Stop {
		return stopStalled{since, events.StalledStopped.Of(since, o.job.Name)}
	}
	lost := lossOf(o.job, o.jobSet)
	lost.Pod, lost.Restarting, lost.Restarts = "", true, lost.Restarts+1
	return writeLoss{lost, events.StalledRestarting.Of(since, lost.Restarts, status.MaxRestarts(o.job)), true}
}

// stallEvent returns the event about a stall, or about an annotation that is ignored, which a status says first; nil
// for none.
func stallEvent(before, after *api.TrainJobStatus) *events.Event {
	c, was := after.Condition(api.ConditionStalled), before.Condition(api.ConditionStalled)
	if c == nil || was != nil && was.Reason == c.Reason {
		return nil
	}
	switch c.Reason {
	case stalled.ReasonNoReport:
		return ptr.To(events.Stalled.Of(c.Message))
	case stalled.ReasonInvalid:
		return ptr.To(events.StalledIgnored.Of(c.Message))
	}
	return nil
}

func (r *Reconciler) stopStalled(ctx context.Context, o *observed, s stopStalled) (err error) {
	if o.workload != nil {
		err = r.Store.Writer.Stop(ctx, o.job, stalled.StopValue(s.since))
	} else {
		err = r.Store.Writer.SuspendAsRead(ctx, o.job)
	}
	if err != nil {
		return client.IgnoreNotFound(fmt.Errorf("stopping a TrainJob that has stalled: %w", err))
	}
	r.recorder.Send(o.job, s.event)
	return nil
}
