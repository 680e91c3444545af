package integration

import (
	"encoding/json"
	"errors"
	"hash/fnv"
	"maps"
	"slices"
	"strconv"
	"strings"

	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/workload"

	"github.com/signalbox-dev/signalbox/admission"
	"github.com/signalbox-dev/signalbox/integration/managed"
	"github.com/signalbox-dev/signalbox/store"
)

// What is refused is refused again when nothing has changed: the API server rejects a write, or an admission doesn't
// stand for what would run. Quota isn't held for it, and nobody is preempted for it. A rejected stop deletes the JobSet
// all the same, and one that has lasted releases the quota when the pods have ended. A start that is impossible for
// the second time waits without quota for an hour, or until the TrainJob is changed for the first time.

// setbackTold returns the setback of a TrainJob that an earlier process has told by condition Blocked; zero for none.
// What has failed then is taken for what would run now: a restart of the manager tries no start again, because that may
// preempt others.
func setbackTold(o *observed) setback {
	c := blockedCondition(o.job)
	if c == nil || o.stage != stageSuspended || managed.Elsewhere(o.job) ||
		c.Reason != ReasonStartRejected && c.Reason != ReasonAdmissionMismatch ||
		!slices.ContainsFunc(o.workloads.own, workload.IsOnHold) { // else it was being tried again
		return setback{}
	}
	return setback{}.certain(c.Reason, strings.TrimSuffix(c.Message, setbackEnds), inputsOf(o), o.now)
}

// inputsOf returns what identifies what a TrainJob would run, and what its user has said of it: what rejects a start
// may look at any label.
func inputsOf(o *observed) string {
	annotations := maps.Clone(o.job.Annotations)
	delete(annotations, store.PinAnnotation)
	hash := fnv.New64a()
	err := json.NewEncoder(hash).Encode([]any{o.queue.podSets, o.job.Labels, annotations})
	if err != nil { // they were read from JSON
		return err.Error()
	}
	return strconv.FormatUint(hash.Sum64(), 16)
}

// stopRejected returns why a TrainJob that is to stop gives its quota back although it isn't suspended; nil if it
// needn't.
func stopRejected(o *observed) *admission.BlockedError {
	if r := o.memory.stopRejected; !r.since.IsZero() && o.now.Sub(r.since) >= rejectedFor {
		return &admission.BlockedError{Reason: ReasonStopRejected, RetryAfter: rejectedFor, Err: errors.New(
			"it can't be suspended: " + r.message + "; its pods are deleted and its quota is released. Change what rejects it")}
	}
	return nil
}

// askedAgain reports whether a user has deleted the Workload of a TrainJob that could not be started, which is kept
// until the next attempt. That is tried after setbackLook, and again after twice as long each time: an attempt may
// preempt others, and Kueue deletes finished Workloads by itself where objectRetentionPolicies says so.
func askedAgain(o *observed) bool {
	s := o.memory.setback
	after := min(setbackLook<<min(s.asked, 6), setbackFor)
	return !s.tried() && o.now.Sub(s.since) >= after &&
		s.reason != ReasonStartRejected && s.reason != ReasonAdmissionMismatch &&
		!slices.ContainsFunc(o.workloads.own, func(wl *kueue.Workload) bool { return wl.DeletionTimestamp.IsZero() })
}
