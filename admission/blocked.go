package admission

import "time"

// BlockedError says why a TrainJob can't be queued until somebody changes something. The change brings it back; where
// none does, it is looked at again after RetryAfter.
type BlockedError struct {
	// Reason of the condition Blocked and of the event beside it.
	Reason string
	Err    error
	// RetryAfter is 0 where the change brings the TrainJob back.
	RetryAfter time.Duration
}

func (e *BlockedError) Error() string { return e.Err.Error() }
func (e *BlockedError) Unwrap() error { return e.Err }
