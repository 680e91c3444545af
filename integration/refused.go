package integration

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	"sigs.k8s.io/jobset/pkg/util/placement"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	workloadevict "sigs.k8s.io/kueue/pkg/workload/evict"

	"github.com/signalbox-dev/signalbox/admission"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides"
	"github.com/signalbox-dev/signalbox/podsets"
)

// A started TrainJob whose pods can't be created says why, by condition Blocked. The API server is asked for it: what a
// namespace takes may have changed since the TrainJob was queued. Nothing is stopped or kept by the answer.

const (
	// missingFor is for how long pods must be missing before the API server is asked why.
	missingFor = 10 * time.Second
	// askedEvery is after which time it is asked again.
	askedEvery = time.Minute
	// answerWithin is how long it may take to answer. It is less than workerTime, so that the worker isn't kept.
	answerWithin = 2 * time.Second
)

// probeRefusal asks the API server whether a started TrainJob's namespace takes the next of its missing pods. What
// isn't answered decides nothing.
func (r *resolver) probeRefusal(ctx context.Context, o *situation) {
	step := stepOf(o.jobSet, o.queue.pods.missing)
	if step == nil {
		return
	}
	o.queue.pods.unknown = true
	if left := missingFor - o.now.Sub(o.memory.podless.since); left > 0 {
		o.queue.later(left)
		return
	}
	o.queue.later(askedEvery)
	if !staysStarted(o.observed) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	refused, pending := (*admission.BlockedError)(nil), (*admission.PendingError)(nil)
	switch err := r.askForPods(ctx, o, step); {
	case errors.As(err, &pending):
		o.queue.later(pending.RetryAfter)
	case err != nil && !errors.As(err, &refused):
		ctrl.LoggerFrom(ctx).Info("It isn't known why a started TrainJob has no pods", "error", err.Error())
	default:
		o.queue.pods.refused, o.queue.pods.unknown = sameRefusal(o.observed, refused), false
	}
}

// askForPods returns why the API server wouldn't take what a ReplicatedJob lacks: its pods, or its Jobs.
func (r *resolver) askForPods(ctx context.Context, o *situation, step *jobset.ReplicatedJob) error {
	ofPods := r.placement.TakesPods(ctx, o.job, step)
	refused := ofPods
	if ofPods == nil {
		refused = r.placement.TakesJobs(ctx, o.job, o.jobSet, step)
	}
	switch {
	case refused == nil:
		return r.foreignJob(ctx, o, step)
	case !errors.As(refused, new(*admission.BlockedError)):
		return refused
	}
	jobs, err := r.store.Pods.JobsOf(ctx, o.jobSet)
	if err != nil {
		return err
	}
	if podsets.Short(o.jobSet, podsets.PodsOf(jobs)) == nil {
		return nil // pods that have ended are gone, and no Job needs others
	}
	there := int32(0)
	for i := range jobs {
		if jobs[i].Labels[jobset.ReplicatedJobNameKey] == step.Name {
			there++
		}
	}
	if ofPods == nil && there >= step.Replicas {
		return nil // the TrainJob has its Jobs, and a ResourceQuota has no room for more
	}
	return refused
}

// foreignJob returns an *admission.BlockedError if a Job that isn't the JobSet's has the name of one that the JobSet
// lacks: JobSet doesn't create its own then. It is looked for once pods have been missing for askedEvery, because each
// TrainJob has Jobs of its own.
func (r *resolver) foreignJob(ctx context.Context, o *situation, step *jobset.ReplicatedJob) error {
	if o.now.Sub(o.memory.podless.since) < askedEvery {
		return nil
	}
	jobs, err := r.store.Pods.JobsOf(ctx, o.jobSet)
	if err != nil {
		return err
	}
	for i := range int(step.Replicas) {
		name := placement.GenJobName(o.jobSet.Name, step.Name, i)
		if slices.ContainsFunc(jobs, func(job batchv1.Job) bool { return job.Name == name }) {
			continue
		}
		err := r.live.Get(ctx, types.NamespacedName{Namespace: o.job.Namespace, Name: name}, &batchv1.Job{})
		if err != nil {
			return client.IgnoreNotFound(err)
		}
		return &admission.BlockedError{Reason: admission.ReasonPodsRefused, Err: fmt.Errorf(
			"Job %s exists and isn't the TrainJob's, so that its own can't be created; delete it, or create the TrainJob by "+
				"another name", name)}
	}
	return nil
}

// stepOf returns the ReplicatedJob of a JobSet that lacks pods which others don't keep from it; nil if none does.
func stepOf(js *jobset.JobSet, missing *missingPods) *jobset.ReplicatedJob {
	if js == nil || missing.gate != "" || missing.suspended {
		return nil
	}
	built := overrides.Effective{ReplicatedJobs: js.Spec.ReplicatedJobs}
	return built.ReplicatedJob(missing.ReplicatedJob)
}

// staysStarted reports whether nothing is about to stop a started TrainJob. A stop doesn't wait for an answer.
func staysStarted(o *observed) bool {
	return !stoppedByUser(o.job) && (!o.managed() || slices.ContainsFunc(o.workloads.own, func(wl *kueue.Workload) bool {
		return podsets.HoldsQuota(wl) && !workloadevict.IsEvicted(wl) && !deactivating(o)
	}))
}

// toldRefusal returns the condition by which a TrainJob says that its namespace doesn't take its pods; nil if it
// doesn't.
func toldRefusal(job *api.TrainJob) *metav1.Condition {
	c := blockedCondition(job)
	if c == nil || !admission.RefusesPods(c.Reason) {
		return nil
	}
	return c
}

// usedUp is where the API server begins to say how much of a ResourceQuota is used, which changes all the time
// (k8s.io/apiserver v0.36, plugin/resourcequota).
const usedUp = ", used: "

// sameRefusal returns a refusal with the text that the TrainJob has already, if only numbers differ: one write is
// enough.
func sameRefusal(o *observed, refused *admission.BlockedError) *admission.BlockedError {
	told := toldRefusal(o.job)
	if refused == nil || told == nil || told.Reason != refused.Reason {
		return refused
	}
	text, _, varies := strings.Cut(refused.Error(), usedUp)
	if !varies || !strings.HasPrefix(told.Message, text+usedUp) {
		return refused
	}
	return &admission.BlockedError{Reason: told.Reason, Err: errors.New(told.Message)}
}

// whyNoPods returns why a TrainJob has no pods, as far as it is known.
func whyNoPods(o *observed) string {
	if refused := o.queue.pods.refused; refused != nil {
		return strings.TrimSuffix(refused.Error(), admission.Retried)
	}
	if told := toldRefusal(o.job); told != nil && o.queue.pods.unknown {
		return strings.TrimSuffix(told.Message, admission.Retried)
	}
	return "the events of the TrainJob, of its JobSet and of its Jobs say why"
}
