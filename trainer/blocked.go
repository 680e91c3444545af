package trainer

import (
	"fmt"
	"time"

	"github.com/signalbox-dev/signalbox/admission"
)

// Reasons of the condition Blocked, and of the events beside it.
const (
	// ReasonNameTaken: an object that the TrainJob needs exists and belongs to another owner. The message names it;
	// delete it, or create the TrainJob by another name.
	ReasonNameTaken = "NameTaken"
)

// After which times a TrainJob is tried again whose name is taken, whose JobSet is refused, or about which the API
// server has not answered: no event says when that changes.
const (
	takenRetry      = 10 * time.Second
	refusedRetry    = time.Minute
	unansweredRetry = 5 * time.Second
)

// nameTaken is the error of a TrainJob that needs an object which exists and isn't its own.
func nameTaken(what, name string) error {
	return &admission.BlockedError{Reason: ReasonNameTaken, RetryAfter: takenRetry, Err: fmt.Errorf(
		"there is a %s %q already that is not the TrainJob's; delete it, or create the TrainJob by another name", what, name)}
}
