package admission

import (
	"strings"
	"time"
)

// Reasons of the condition Blocked.
const (
	// ReasonPodsRefused: the TrainJob's namespace doesn't take pods as the TrainJob needs them, or doesn't any more if the
	// TrainJob was started. The message has who refuses them and why; change the TrainJob, the runtime, or what the
	// namespace allows.
	ReasonPodsRefused = "PodsRefused"
	// ReasonQuotaExceeded: the TrainJob was started, and a ResourceQuota has no room for its pods, because others use it
	// up. The message names the quota. The pods are created when it has room, and the condition is removed.
	ReasonQuotaExceeded = "QuotaExceeded"
	// ReasonNoPods: the TrainJob was started and had no pod for limits.podsWithin, or ten minutes longer after one has
	// failed. The message has the reason if a dry run shows it, and otherwise the events of its JobSet and its Jobs. It is
	// queued again after twelve times as long.
	ReasonNoPods = "NoPods"
	// ReasonGated: a pod of the TrainJob had a scheduling gate for longer than limits.podsWithin, because nothing
	// removed it. Remove the gate from the runtime or the overrides.
	ReasonGated = "SchedulingGated"
)

// ReasonFailedToStart: the TrainJob can't be started on what it was admitted for: an entry or a setting contradicts a
// flavor. The message names both; correct one of them.
const ReasonFailedToStart = "FailedToStart" // jobframework.FailedToStartFinishedReason

// RefusesPods reports whether a reason of the condition Blocked is that a namespace doesn't take pods.
func RefusesPods(reason string) bool {
	return reason == ReasonPodsRefused || reason == ReasonQuotaExceeded
}

// LackedPods reports whether a reason of the condition Blocked is that a started TrainJob had no pods that could run.
// It is kept out of its queue for a time.
func LackedPods(reason string) bool { return reason == ReasonNoPods || reason == ReasonGated }

// Retried is the end of a refusal of pods that the Job controller repeats by itself.
const Retried = ". Kubernetes tries again by itself"

// maxMessage is how many bytes of an error are told. The API server rejects a condition with a message of more than
// 32,768, and a TrainJob would be blocked without one; what its user has written may be as long.
const maxMessage = 16 << 10

// BlockedError reports why a TrainJob can't be queued, or can't go on, until its cause is changed. The change triggers
// a reconcile; if nothing does, the TrainJob is reconciled after RetryAfter.
type BlockedError struct {
	// Reason of the condition Blocked and of the event beside it.
	Reason string
	Err    error
	// RetryAfter is 0 if the change triggers a reconcile.
	RetryAfter time.Duration
}

// Error implements error. A text of more than 16 KiB ends with an ellipsis.
func (e *BlockedError) Error() string {
	text := e.Err.Error()
	if len(text) <= maxMessage {
		return text
	}
	return strings.ToValidUTF8(text[:maxMessage], "") + "…"
}

// Unwrap returns what is wrong.
func (e *BlockedError) Unwrap() error { return e.Err }

// PendingError reports that whether a TrainJob can be queued or started isn't known yet. It is reconciled again after
// RetryAfter, and nothing is decided before.
type PendingError struct {
	Err        error
	RetryAfter time.Duration
}

// Error implements error.
func (e *PendingError) Error() string { return e.Err.Error() }

// Unwrap returns why it isn't known.
func (e *PendingError) Unwrap() error { return e.Err }
