package admission

import "time"

// BlockedError reports why a TrainJob can't be queued until somebody changes something. The change triggers a
// reconcile; if nothing does, the TrainJob is reconciled after RetryAfter.
type BlockedError struct {
	// Reason of the condition Blocked and of the event beside it.
	Reason string
	Err    error
	// RetryAfter is 0 if the change triggers a reconcile.
	RetryAfter time.Duration
}

// Error implements error.
func (e *BlockedError) Error() string { return e.Err.Error() }

// Unwrap returns what is wrong.
func (e *BlockedError) Unwrap() error { return e.Err }
