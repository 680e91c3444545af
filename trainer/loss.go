package trainer

import (
	"slices"

	"k8s.io/utils/ptr"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	workloadfinish "sigs.k8s.io/kueue/pkg/workload/finish"

	"github.com/signalbox-dev/signalbox/admission/avoid"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/store"
	"github.com/signalbox-dev/signalbox/store/events"
	"github.com/signalbox-dev/signalbox/trainer/status"
)

// decideLoss returns the next step of a TrainJob that has lost a pod; nil if nothing is to be done about it.
func decideLoss(o *observed) step {
	switch {
	case !o.running() || !o.jobSetStays():
		return nil
	case o.workload != nil && !workloadfinish.IsFinished(o.workload):
		return stepOfLoss(o, lossOf(o.job, o.jobSet))
	case o.workload == nil && status.Restarts(o.job, o.jobSet, nil):
		return suspend{}
	}
	return nil
}

// lossOf returns what is recorded of a JobSet's losses. Earlier JobSets leave how often the TrainJob was restarted.
func lossOf(job *api.TrainJob, js *jobset.JobSet) api.Loss {
	old := ptr.Deref(job.Status.Lost, api.Loss{})
	if old.JobSet == js.UID {
		return old
	}
	return api.Loss{JobSet: js.UID, Restarts: old.Restarts}
}

func stepOfLoss(o *observed, lost api.Loss) step {
	if again := restartForNode(o, lost); again != nil {
		return again
	}
	most := status.MaxRestarts(o.job)
	cut := o.lostPod != nil && store.PodCutShort(o.lostPod) && lost.Restarts < most
	switch {
	case o.lostPod != nil && lost.Pod == "" && lost.Restarts < most:
		lost.Pod = o.lostPod.Name
		return writeLoss{lost: lost, event: events.PodLost.Of(lost.Pod, lost.Restarts, most)}
	case lost.Restarting && status.Restarts(o.job, o.jobSet, o.workload):
		return suspend{}
	case lost.Restarting:
		return nil
	case cut:
		lost.Pod = o.lostPod.Name
		lost.Restarting, lost.Restarts = true, lost.Restarts+1
		return writeLoss{lost: lost, event: events.CutShort.Of(lost.Pod, lost.Restarts, most)}
	case status.Restarts(o.job, o.jobSet, o.workload):
		lost.Restarting, lost.Restarts = true, lost.Restarts+1
		return writeLoss{lost: lost, event: events.Restarting.Of(lost.Pod, lost.Restarts, most)}
	}
	return nil
}

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
