package integration

import (
	"errors"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/controller/jobframework"
	"sigs.k8s.io/kueue/pkg/podset"
	"sigs.k8s.io/kueue/pkg/workload"

	"github.com/signalbox-dev/signalbox/admission"
	"github.com/signalbox-dev/signalbox/admission/after"
	"github.com/signalbox-dev/signalbox/admission/avoid"
	"github.com/signalbox-dev/signalbox/store/events"
)

// startsIf reports whether a TrainJob is to start if it is ready. Kueue counts nothing of a Workload that is not
// active.
func startsIf(o *situation, wl *kueue.Workload) bool {
	return o.stage == stageSuspended && o.queue.blocked == nil && workload.IsActive(wl) && !deactivating(o.observed) &&
		!stoppedByUser(o.job)
}

// decideStart decides the start of an admitted TrainJob: it notes the start, or what it waits for. An error of type
// *finalError ends the Workload. The message is jobframework's, about the admission.
func decideStart(o *situation, a *asked, wl *kueue.Workload, message string, features admission.Features) error {
	match := o.match()
	switch {
	case !startsIf(o, wl):
		return nil // conditions have the reason
	case after.Waits(o.job): // whoever has taken its gate off the Workload, or turned Kueue's gates off
		a.waiting = "those that it runs after"
		return nil
	case match == nil || match.UID != wl.UID || o.queue.start == nil:
		a.waiting = "the cache, which doesn't have its Workload yet"
		return nil
	}
	if _, a.waiting = o.trainer.prepare(o.observed); a.waiting != "" {
		return nil
	}
	settled := o.trainer.settle(o.observed)
	a.noted = append(a.noted, settled.steps...)
	if a.waiting = settled.waiting; a.waiting != "" {
		return nil
	}
	if mismatch := o.queue.start.mismatch; mismatch != nil {
		a.mismatched(o, match, mismatch)
		return nil
	}
	if left := o.memory.setback.waits(o.now); left > 0 {
		a.waiting, a.retry = "the API server, which has "+o.memory.setback.message, left
		return nil
	}
	decided, choice, err := decide(o, match, features)
	if conflict := (*admission.ConflictError)(nil); errors.As(err, &conflict) {
		failed := o.memory.setback.certain(
			jobframework.FailedToStartFinishedReason, err.Error(), inputsOf(o.observed), o.now).of(match)
		a.noted = append(a.noted, remember{setback: &failed}, failStart{events.FailedToStart.Of(err, match.Name)})
		return &finalError{err}
	}
	if err != nil {
		return fmt.Errorf("deciding the start: %w", err)
	}
	a.start = &start{start: decided, workload: match, message: message,
		events: append(settled.events, tells(choice)...)}
	return nil
}

// mismatched notes that a Workload was admitted for something else than what would run. The first is deleted; the next
// is for what is to run. After the second, the TrainJob is set back, and its Workload put on hold: that is one write.
func (a *asked) mismatched(o *situation, wl *kueue.Workload, mismatch *admission.MismatchError) {
	next := o.memory.setback.again(ReasonAdmissionMismatch, mismatch.Error(), inputsOf(o.observed), o.now)
	if s := o.memory.setback; s.reason == ReasonAdmissionMismatch && s.until.IsZero() && s.workload == wl.UID {
		next = s // the cache doesn't have its deletion yet
	}
	a.waiting, a.retry = "another admission, because "+mismatch.Error(), recheckDelay
	if next.until.IsZero() {
		a.noted = append(a.noted, deleteWorkload{wl, ptr.To(events.AdmissionMismatch.Of(mismatch, wl.Name))})
	}
	a.noted = append(a.noted, remember{setback: ptr.To(next.of(wl))})
}

// decide returns the start of a TrainJob on its Workload, with what the Trainer needs with it, and what it keeps off.
// What others remember fails no start that contradicts it.
func decide(
	o *situation, wl *kueue.Workload, features admission.Features,
) (decided *admission.Start, choice avoid.Choice, err error) {
	choices := []avoid.Choice{o.queue.avoiding.choice}
	if with := o.queue.avoiding.withOthers; with != nil {
		choices = []avoid.Choice{*with, o.queue.avoiding.choice}
	}
	for _, choice = range choices {
		decided, err = admission.Decide(admission.Input{
			Job: o.job, Runtime: o.queue.choice.Spec, Effective: o.queue.effective, Dialect: o.trainer.Dialect,
			Workload: o.asPartial(wl), Flavors: o.queue.start.flavors, Features: features, Now: metav1.NewTime(o.now),
			KeepsOff: avoid.Beyond(o.queue.effective, choice.Hosts),
		})
		if !errors.As(err, new(*admission.ConflictError)) {
			break
		}
	}
	if err != nil {
		return nil, choice, err
	}
	return decided, choice, o.trainer.complete(o.observed, decided)
}

// finalError fails a start for good: jobframework finishes the Workload, which releases its quota.
type finalError struct{ error }

// Unwrap returns why.
func (e *finalError) Unwrap() error { return e.error }

// Is reports whether jobframework's permanent error is asked for.
func (e *finalError) Is(target error) bool { return target == podset.ErrInvalidPodsetInfo }
