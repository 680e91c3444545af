package trainer

import (
	"slices"

	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	"github.com/signalbox-dev/signalbox/admission/avoid"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/store/events"
	"github.com/signalbox-dev/signalbox/trainer/status"
)

// restartForNode returns the step that restarts a TrainJob at once because of a node on which a pod can't run; nil for
// none. One that has succeeded meanwhile isn't restarted.
func restartForNode(o *observed, lost api.Loss) step {
	i := slices.IndexFunc(o.blamed, avoid.Restarts)
	most := status.MaxRestarts(o.job)
	if i < 0 || lost.Restarting || lost.Restarts >= most ||
		o.jobSet.Status.TerminalState == string(jobset.JobSetCompleted) {
		return nil
	}
	node := o.blamed[i]
	lost.Pod, lost.Restarting, lost.Restarts = node.Pod, true, lost.Restarts+1
	return writeLoss{lost: lost, event: events.NodeRestarting.Of(node.Pod, node.Name, lost.Restarts, most)}
}

// tellBlamed sends an event for each node that the TrainJob avoids from now on. It was written before.
func (r *Reconciler) tellBlamed(o *observed) {
	for _, n := range o.blamed {
		r.recorder.Send(o.job, events.NodeAvoided.Of(n.Name, r.Avoid.For.String(), n.Pod, avoid.Says(n), n.Message))
	}
}
