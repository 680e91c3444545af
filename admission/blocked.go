package admission

import (
	"strings"
	"time"
)

// maxMessage is how many bytes of an error are told. The API server rejects a condition with a message of more than
// 32,768, and a TrainJob would be blocked without one; what its user has written may be as long.
const maxMessage = 16 << 10

// BlockedError reports why a TrainJob can't be queued until its cause is changed. The change triggers a
// reconcile; if nothing does, the TrainJob is reconciled after RetryAfter.
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
