package integration

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/controller/jobframework"

	"github.com/signalbox-dev/signalbox/admission"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides"
	"github.com/signalbox-dev/signalbox/podsets"
	"github.com/signalbox-dev/signalbox/store"
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
)

// pendingFor is how long after its creation a TrainJob waits, without a condition, to be verified.
const pendingFor = 10 * time.Second

func blocked(reason string, err error) error {
	return &admission.BlockedError{Reason: reason, Err: err}
}

// resolve finds the runtime of a suspended TrainJob and computes its PodSets. A TrainJob that can't be queued is a
// *admission.BlockedError.
func (r *Reconciler) resolve(ctx context.Context, o *observed) error {
	if err := keptBack(o); err != nil {
		return err
	}
	if err := r.partOfAnother(ctx, o.job); err != nil {
		return err
	}
	if err := resolveRecord(o); err != nil {
		return blocked(ReasonInvalidOverrides, err)
	}
	choice, err := o.trainer.runtime(ctx, r.store.Runtimes, o.job)
	if unusable := (*store.RuntimeError)(nil); errors.As(err, &unusable) {
		if unusable.Missing {
			return blocked(ReasonRuntimeNotFound, err)
		}
		return blocked(ReasonInvalidRuntime, err)
	}
	if err != nil {
		return err
	}
	o.queue.choice = choice
	return r.compute(ctx, o)
}

// resolveRecord finds the Record of a previous Trainer, and rejects one that can't be migrated.
func resolveRecord(o *observed) error {
	record, err := overrides.RecordOf(o.job)
	if err != nil || !o.trainer.dialect().Foreign(record) {
		return err
	}
	o.queue.foreign = record
	_, err = o.trainer.dialect().Migrate(o.job, record, metav1.Time{})
	return err
}

// compute makes the PodSets of the runtime, and checks that the TrainJob could start.
func (r *Reconciler) compute(ctx context.Context, o *observed) (err error) {
	limits, runtime := r.policy.limits, o.queue.choice.Spec
	entries := overrides.EveryEntry(o.job)
	errs := slices.Concat(overrides.CheckRoom(o.job), limits.CheckSize(o.job, entries),
		limits.CheckRuntime(o.job, runtime, entries))
	if len(errs) > 0 {
		return blocked(ReasonLimitExceeded, errs.ToAggregate())
	}
	if err := r.checkSteps(o.job, runtime.Template.Spec.ReplicatedJobs); err != nil { // before each of them costs time
		return err
	}
	dialect := o.trainer.dialect()
	effective, err := r.memo.Compute(dialect.Rules, o.job, runtime, dialect.Others(o.job))
	if err != nil {
		return blocked(ReasonInvalidRuntime, err)
	}
	o.queue.effective = effective
	errs = limits.CheckBuilt(o.job.Namespace, runtime, entries, effective, r.policy.features.claimsCounted)
	if len(errs) > 0 {
		return blocked(ReasonLimitExceeded, fmt.Errorf("%s: %w", store.Describe(o.job), errs.ToAggregate()))
	}
	if err := r.checkSteps(o.job, effective.ReplicatedJobs); err != nil {
		return err
	}
	if o.queue.podSets, err = podsets.Of(effective, r.policy.features.podSets()); err != nil {
		return blocked(ReasonInvalidRuntime, err)
	}
	if errs := r.checkTopology(o.queue.podSets); len(errs) > 0 {
		return blocked(ReasonInvalidRuntime, fmt.Errorf("%s: %w", store.Describe(o.job), errs.ToAggregate()))
	}
	if err := r.setMinCount(o); err != nil {
		return blocked(ReasonInvalidMinimum, err)
	}
	o.compare()
	if o.workloads.noClass && len(o.queue.current) == 0 {
		return noPriorityClass(o.job)
	}
	if err := o.place.check(o); err != nil {
		return err
	}
	if held := cmp.Or(r.held(o), r.setBack(o)); held != nil {
		return held
	}
	return o.trainer.startable(ctx, r, o)
}

// setBack returns why a TrainJob that could not be started isn't queued again yet; nil if it may be.
func (r *Reconciler) setBack(o *observed) error {
	s := o.memory.setback
	if s.reason == "" {
		s = setbackTold(o)
	}
	if s.reason == "" {
		return nil
	}
	if askedAgain(o) {
		s = s.trying()
		s.asked++
	}
	b := s.blocks(inputsOf(o), o.now)
	if b == nil && s.retried.IsZero() && !s.until.IsZero() {
		s.retried = o.now
	}
	r.setSetback(o, s)
	if b != nil {
		o.queue.setBack = true
		return b
	}
	return nil
}

// checkSteps rejects more ReplicatedJobs than a Workload can have PodSets.
func (r *Reconciler) checkSteps(job *api.TrainJob, steps []jobset.ReplicatedJob) error {
	most := cmp.Or(r.policy.limits.ReplicatedJobs, podsets.Max)
	if len(steps) <= most {
		return nil
	}
	return blocked(ReasonTooManyPodSets, fmt.Errorf("%s has %d replicatedJobs, but a Workload holds at most %d PodSets; "+
		"refer to a runtime with fewer", store.Describe(job), len(steps), most))
}

// setMinCount sets the minCount of a TrainJob that may be partially admitted.
func (r *Reconciler) setMinCount(o *observed) error {
	if !r.policy.features.partialAdmission {
		return nil
	}
	runtime := o.queue.choice.Settings
	least, err := overrides.MinNodes(o.job, runtime)
	if err != nil || least >= overrides.Nodes(o.job, runtime) {
		return err
	}
	dialect := o.trainer.dialect()
	if !dialect.PartialAdmission {
		return errNoPartialAdmission
	}
	effective, err := r.memo.Compute(
		dialect.Rules, overrides.WithNodes(o.job, least), o.queue.choice.Spec, dialect.Others(o.job))
	if err != nil {
		return fmt.Errorf("with %d nodes: %w", least, err)
	}
	return podsets.SetMinCount(o.queue.podSets, effective)
}

// checkTopology returns what Kueue's webhooks reject of the topology requests of its own jobs. Kueue doesn't check
// those of Workloads: it ignores half of a request, or never admits the Workload.
func (r *Reconciler) checkTopology(podSets []kueue.PodSet) field.ErrorList {
	if !r.policy.features.topologyAware {
		return nil
	}
	var errs field.ErrorList
	annotations := make(map[kueue.PodSetReference]*field.Path, len(podSets))
	for i := range podSets {
		podSet := &podSets[i]
		path := field.NewPath("replicatedJobs").Key(string(podSet.Name)).Child("template", "spec", "template", "metadata")
		annotations[podSet.Name] = path.Child("annotations")
		errs = append(errs, jobframework.ValidateTASPodSetRequest(path, &podSet.Template.ObjectMeta)...)
		errs = append(errs, jobframework.ValidateSliceSizeAnnotationUpperBound(path, &podSet.Template.ObjectMeta, podSet)...)
	}
	return append(errs, jobframework.ValidatePodSetGroupingTopology(podSets, annotations)...)
}
