package v1alpha1

import (
	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// Conditions of a TrainJob beside Kubeflow Trainer's own. The first three are its Workload's, with the reason and the
// message that Kueue gives. They, GangScheduled and Stalled are in status.queue.conditions, and in status.conditions too
// while the TrainJob doesn't run.
const (
	// ConditionQuotaReserved is True when the TrainJob has quota. While it is False, the message has the reason.
	ConditionQuotaReserved = "QuotaReserved"
	// ConditionAdmitted is True when the TrainJob may run: it has quota and has passed its admission checks.
	ConditionAdmitted = "Admitted"
	// ConditionEvicted is True when the TrainJob lost its quota; the message has the reason. It is False after the next
	// admission.
	ConditionEvicted = "Evicted"
	// ConditionBlocked is True when the TrainJob can't be queued, or can't go on; the message has the reason and what to
	// do. It is removed when the TrainJob can.
	ConditionBlocked = "Blocked"
	// ConditionStopOverdue is True when a TrainJob was stopped, has finished or lost its quota, and a pod of it still
	// runs 30 seconds after its grace period. Its quota is held until the pod has ended.
	ConditionStopOverdue = "StopOverdue"
	// ConditionGangScheduled is True when the gangs of a running TrainJob are placed. While it is False, the message
	// has the gang, the reason and the time. A TrainJob without gangs doesn't have it.
	ConditionGangScheduled = "GangScheduled"
	// ConditionStalled is True when a running TrainJob has reported nothing for as long as annotation
	// signalbox.dev/stalled-after says; its time is that of the last report, and the message has what follows. It is False
	// while the TrainJob reports. Only a TrainJob with the annotation has it, while its pods are ready.
	ConditionStalled = "Stalled"
)

// Condition returns a condition of the status, wherever it is; nil if there is none of the type.
func (s *TrainJobStatus) Condition(name string) *metav1.Condition {
	if c := apimeta.FindStatusCondition(s.Conditions, name); c != nil || s.Queue == nil {
		return c
	}
	return apimeta.FindStatusCondition(s.Queue.Conditions, name)
}

// StateOf returns the state that a status amounts to. It depends on nothing else, so that every writer of a status can
// write the state with it.
func StateOf(status *trainerapi.TrainJobStatus) TrainJobState {
	active, ready := false, false
	for _, s := range status.JobsStatus {
		active = active || ptr.Deref(s.Active, 0) > 0
		ready = ready || ptr.Deref(s.Ready, 0) > 0
	}
	suspended := apimeta.IsStatusConditionTrue(status.Conditions, trainerapi.TrainJobSuspended)
	switch {
	case apimeta.IsStatusConditionTrue(status.Conditions, trainerapi.TrainJobFailed):
		return StateFailed
	case apimeta.IsStatusConditionTrue(status.Conditions, trainerapi.TrainJobComplete):
		return StateComplete
	case !suspended && ready:
		return StateRunning
	case !suspended && apimeta.IsStatusConditionTrue(status.Conditions, ConditionBlocked):
		return StateBlocked
	case !suspended:
		return StateStarting
	case active:
		return StateStopping
	}
	return waitingState(status)
}

// waitingState returns the state of a suspended TrainJob without pods.
func waitingState(status *trainerapi.TrainJobStatus) TrainJobState {
	switch {
	case apimeta.IsStatusConditionTrue(status.Conditions, ConditionBlocked):
		return StateBlocked
	case apimeta.IsStatusConditionTrue(status.Conditions, ConditionAdmitted):
		return StateAdmitted
	case apimeta.IsStatusConditionTrue(status.Conditions, ConditionQuotaReserved):
		return StateQuotaReserved
	case apimeta.FindStatusCondition(status.Conditions, ConditionQuotaReserved) != nil:
		return StateQueued
	}
	return StateSuspended
}
