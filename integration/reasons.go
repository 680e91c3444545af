package integration

import (
	"github.com/signalbox-dev/signalbox/admission"
)

// Reasons of the condition Blocked, and of the events beside it.
const (
	// ReasonRuntimeNotFound: the runtime that spec.runtimeRef names doesn't exist. Create it, or delete the TrainJob and
	// refer to another.
	ReasonRuntimeNotFound = "RuntimeNotFound"
	// ReasonInvalidRuntime: the runtime with overrides applied is invalid. The message names the field.
	ReasonInvalidRuntime = "InvalidRuntime"
	// ReasonInvalidOverrides: an override that the TrainJob has for another Trainer can't be converted for this one.
	ReasonInvalidOverrides = "InvalidOverrides"
	// ReasonLastRunKept: the TrainJob's previous run has ended, but a finalizer keeps its JobSet, its Jobs or its pods.
	// Remove the finalizer; the TrainJob holds no quota meanwhile.
	ReasonLastRunKept = "LastRunKept"
	// ReasonWorkloadKept: the TrainJob's Workload was deleted, but a finalizer of another client keeps it. The message
	// names the finalizer; remove it. The TrainJob holds no quota meanwhile.
	ReasonWorkloadKept = "WorkloadKept"
	// ReasonPartOfAnother: the TrainJob's controller is a Job or a JobSet that Kueue manages, so that Kueue suspends the
	// TrainJob's JobSet as a part of it. Remove the owner reference or its controller, or the owner's queue.
	ReasonPartOfAnother = "PartOfAnother"
	// ReasonStartRejected: the API server, or a webhook of another client, has rejected the write that starts the
	// TrainJob twice. The message has its reason. The quota is released, and the TrainJob queued again later.
	ReasonStartRejected = "StartRejected"
	// ReasonAdmissionMismatch: Kueue has admitted the TrainJob twice for something else than what would run. The message
	// has both numbers. The quota is released, and the TrainJob queued again later; see what counts in Kueue's
	// configuration (resources), the namespace's LimitRanges and the RuntimeClass.
	ReasonAdmissionMismatch = "AdmissionMismatch"
	// ReasonStopRejected: the API server, or a webhook of another client, rejects the write that suspends the TrainJob.
	// The message has its reason. Its pods are deleted, and its quota is released when they have ended.
	ReasonStopRejected = "StopRejected"
	// ReasonLimitExceeded: the TrainJob requests more than one TrainJob may have, what Kueue can't count, or what harms
	// others. The message names the field and the limit.
	ReasonLimitExceeded = "LimitExceeded"
	// ReasonUnverified: the API server doesn't answer whether it would accept the JobSet. The message has its error,
	// for example of a webhook that doesn't respond. The check is retried; restore the webhook.
	ReasonUnverified = "Unverified"
	// ReasonTooManyPodSets: the runtime has more ReplicatedJobs than a Workload can have PodSets.
	ReasonTooManyPodSets = "TooManyPodSets"
	// ReasonInvalidMinimum: the minimum for partial admission is invalid, or the TrainJob can't run with it. The message
	// names the annotation.
	ReasonInvalidMinimum = "InvalidMinimum"
	// ReasonDeactivated: the Workload of a TrainJob that MultiKueue is to run in another cluster is deactivated, because
	// an admission check was rejected, or by an admin. The message has Kueue's reason, and what to do.
	ReasonDeactivated = "Deactivated"
	// ReasonNoPriorityClass: the WorkloadPriorityClass that the TrainJob's label names doesn't exist. Create it, or
	// change the label.
	ReasonNoPriorityClass = "PriorityClassNotFound"
	// ReasonNotDispatched: spec.managedBy is MultiKueue's, but the queue doesn't lead to another cluster. Use another
	// queue, or create the TrainJob without managedBy.
	ReasonNotDispatched = "NotDispatched"
	// ReasonRuntimesDiffer: the TrainJob is from another cluster, whose runtime of that name differs. The message names
	// the difference.
	ReasonRuntimesDiffer = "RuntimesDiffer"
	// ReasonReconcileFailed: the TrainJob can't be queued, started, stopped or built, because requests to the API server
	// fail. The message has its error. The requests are repeated, and the condition is removed when they succeed.
	ReasonReconcileFailed = "ReconcileFailed"
)

func blocked(reason string, err error) error {
	return &admission.BlockedError{Reason: reason, Err: err}
}
