package integration

import (
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/signalbox-dev/signalbox/admission"
)

// rejectedFor is how long a write must have been rejected before that has consequences.
const rejectedFor = time.Minute

// rejection is a write of a TrainJob that is rejected.
type rejection struct {
	since   time.Time // of the first; zero for none
	message string
}

// again returns the rejection after one more at a time.
func (r rejection) again(err error, now time.Time) rejection {
	if r.since.IsZero() {
		r.since = now
	}
	r.message = err.Error()
	return r
}

// setback is why a TrainJob could not be started on what it was admitted for.
type setback struct {
	reason, message string
	// inputs is what the TrainJob was (inputsOf).
	inputs string
	since  time.Time // of the first
	until  time.Time // when the next start is tried; zero while it isn't certain
	// changed is set if the last start was tried because the TrainJob had changed.
	changed bool
	// retried is when it was queued again; zero if it wasn't.
	retried time.Time
	// workload is the last that was admitted in vain.
	workload types.UID
	// asked is how often in a row its Workload was deleted, and it was tried for that.
	asked int
}

const (
	// setbackAfter is how long after a start was rejected it is tried a second time. What rejects it may have been
	// changed a moment ago.
	setbackAfter = 10 * time.Second
	// setbackFor is how long a TrainJob waits after the second time: an attempt costs several writes, and may preempt.
	// Its first change meanwhile is tried at once. Further ones wait as long, because its owner may change it each second.
	setbackFor = time.Hour
	// retriedFor is for how long a TrainJob that is queued again still says what its last start has failed of. Where
	// nothing else waits, the next has failed by then, and nothing new is to be written.
	retriedFor = 10 * time.Second
	// setbackLook is how often it is looked whether the TrainJob would run something else meanwhile.
	setbackLook = time.Minute
)

// setbackEnds is what a TrainJob that waits so says of it.
var setbackEnds = fmt.Sprintf(
	". It is queued again when the TrainJob or its runtime is changed, once in %s, or after that time", setbackFor)

// again returns the setback after one more start that could not be, for a reason. The first may be by chance; the
// second is certain, whatever has changed between them.
func (s setback) again(reason, message, inputs string, now time.Time) setback {
	if s.reason == "" || s.until.IsZero() && now.Sub(s.since) > setbackFor {
		return setback{reason: reason, message: message, inputs: inputs, since: now}
	}
	return s.certain(reason, message, inputs, now)
}

// certain returns the setback after a start that is impossible, whenever it is tried.
func (s setback) certain(reason, message, inputs string, now time.Time) setback {
	return setback{reason: reason, message: message, inputs: inputs, since: now, until: now.Add(setbackFor),
		changed: now.Before(s.until), asked: s.asked}
}

// trying returns the setback of a TrainJob that is queued again whatever it is.
func (s setback) trying() setback {
	s.inputs, s.changed = "", false
	return s
}

// tried reports whether it is being tried like that.
func (s setback) tried() bool { return s.inputs == "" && !s.changed }

// of returns the setback as that of a Workload.
func (s setback) of(wl *kueue.Workload) setback {
	s.workload = wl.UID
	return s
}

// stands reports whether a TrainJob needn't try again yet.
func (s setback) stands(inputs string, now time.Time) bool {
	return now.Before(s.until) && (s.changed || s.inputs == inputs)
}

// waits returns for how long a TrainJob waits with its second start, and with what comes before a start.
func (s setback) waits(now time.Time) time.Duration {
	if s.reason != ReasonStartRejected || !s.until.IsZero() {
		return 0
	}
	return max(setbackAfter-now.Sub(s.since), 0)
}

// blocks returns why a TrainJob isn't queued for now; nil if it may be.
func (s setback) blocks(inputs string, now time.Time) *admission.BlockedError {
	if !s.stands(inputs, now) {
		return nil
	}
	return &admission.BlockedError{Reason: s.reason, RetryAfter: min(s.until.Sub(now), setbackLook),
		Err: errors.New(s.message + setbackEnds)}
}

// retries reports for how much longer a TrainJob says what its last start has failed of.
func (s setback) retries(reason string, now time.Time) time.Duration {
	if s.retried.IsZero() || s.reason != reason {
		return 0
	}
	return max(retriedFor-now.Sub(s.retried), 0)
}
