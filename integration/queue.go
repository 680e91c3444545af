package integration

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/controller/jobframework"

	"github.com/signalbox-dev/signalbox/admission/after"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/integration/webhook"
	"github.com/signalbox-dev/signalbox/overrides"
	"github.com/signalbox-dev/signalbox/overrides/legacy"
	"github.com/signalbox-dev/signalbox/podsets"
	"github.com/signalbox-dev/signalbox/store"
)

// pendingFor is how long after its creation a TrainJob waits, without a condition, to be verified.
const pendingFor = 10 * time.Second

// decideQueue decides what a suspended TrainJob is queued for. One that can't be queued is a *admission.BlockedError.
func (r *resolver) decideQueue(o *situation) error {
	if err := keptBack(o.observed); err != nil {
		return err
	}
	if o.queue.part != nil {
		return o.queue.part
	}
	if never := o.queue.after.Never; never != nil {
		return blocked(after.Reason, never)
	}
	if err := resolveRecord(o); err != nil {
		return blocked(ReasonInvalidOverrides, err)
	}
	if unusable := o.queue.unusable; unusable != nil && unusable.Missing {
		return blocked(ReasonRuntimeNotFound, unusable)
	} else if unusable != nil {
		return blocked(ReasonInvalidRuntime, unusable)
	}
	return r.compute(o)
}

// resolveRecord finds the Record of a previous Trainer, and rejects one that can't be migrated.
func resolveRecord(o *situation) error {
	record, err := legacy.RecordOf(o.job)
	if err != nil || !o.trainer.Foreign(record) {
		return err
	}
	o.queue.foreign = record
	_, err = o.trainer.Migrate(o.job, record, metav1.Time{})
	return err
}

// compute makes the PodSets of the runtime, and decides whether the TrainJob may be queued for them.
func (r *resolver) compute(o *situation) (err error) {
	limits, runtime := r.policy.limits, o.queue.choice.Spec
	entries := legacy.EveryEntry(o.job)
	errs := slices.Concat(overrides.CheckRoom(o.job), limits.CheckSize(o.job, entries),
		limits.CheckRuntime(o.job, runtime, entries))
	if len(errs) > 0 {
		return blocked(ReasonLimitExceeded, errs.ToAggregate())
	}
	if err := r.checkSteps(o.job, runtime.Template.Spec.ReplicatedJobs); err != nil { // before each of them costs time
		return err
	}
	dialect := o.trainer.Dialect
	effective, err := r.memo.Compute(dialect.Rules, o.job, runtime, dialect.Others(o.job))
	if err != nil {
		return blocked(ReasonInvalidRuntime, err)
	}
	errs = limits.CheckBuilt(o.job.Namespace, runtime, entries, effective, r.policy.features.claimsCounted)
	if len(errs) > 0 {
		return blocked(ReasonLimitExceeded, fmt.Errorf("%s: %w", store.Describe(o.job), errs.ToAggregate()))
	}
	if err := r.checkSteps(o.job, effective.ReplicatedJobs); err != nil {
		return err
	}
	o.queue.effective = effective
	least, invalid := r.fewest(o)
	queued := keepOff(o.observed, effective, least)
	if o.queue.podSets, err = podsets.Of(queued, r.policy.features.podSets); err != nil {
		return blocked(ReasonInvalidRuntime, err)
	}
	if errs := r.checkTopology(o.queue.podSets); len(errs) > 0 {
		return blocked(ReasonInvalidRuntime, fmt.Errorf("%s: %w", store.Describe(o.job), errs.ToAggregate()))
	}
	if least != nil && invalid == nil {
		invalid = podsets.SetMinCount(o.queue.podSets, least)
	}
	if invalid != nil {
		return blocked(ReasonInvalidMinimum, invalid)
	}
	o.compare()
	if o.workloads.noClass && len(o.queue.current) == 0 {
		return noPriorityClass(o.job)
	}
	if err := o.origin.check(o.observed); err != nil {
		return err
	}
	return cmp.Or(r.held(o), r.setBack(o))
}

// setBack returns why a TrainJob that could not be started isn't queued again yet; nil if it may be.
func (r *resolver) setBack(o *situation) error {
	s := o.memory.setback
	if s.reason == "" {
		s = setbackTold(o.observed)
	}
	if s.reason == "" {
		return nil
	}
	if askedAgain(o.observed) {
		s = s.trying()
		s.asked++
	}
	b := s.blocks(inputsOf(o.observed), o.now)
	if b == nil && s.retried.IsZero() && !s.until.IsZero() {
		s.retried = o.now
	}
	o.memory.setback = s
	if b != nil {
		o.queue.setBack = true
		return b
	}
	return nil
}

func (r *resolver) checkSteps(job *api.TrainJob, steps []jobset.ReplicatedJob) error {
	most := cmp.Or(r.policy.limits.ReplicatedJobs, podsets.Max)
	if len(steps) <= most {
		return nil
	}
	return blocked(ReasonTooManyPodSets, fmt.Errorf("%s has %d replicatedJobs, but a Workload holds at most %d PodSets; "+
		"refer to a runtime with fewer", store.Describe(job), len(steps), most))
}

// fewest returns what a TrainJob would run with its minimum of nodes; nil if it has none.
func (r *resolver) fewest(o *situation) (*overrides.Effective, error) {
	if !r.policy.features.partialAdmission {
		return nil, nil
	}
	runtime := o.queue.choice.Settings
	least, err := overrides.MinNodes(o.job, runtime)
	if err != nil || least >= overrides.Nodes(o.job, runtime) {
		return nil, err
	}
	dialect := o.trainer.Dialect
	if !dialect.PartialAdmission {
		return nil, webhook.ErrNoPartialAdmission
	}
	effective, err := r.memo.Compute(
		dialect.Rules, overrides.WithNodes(o.job, least), o.queue.choice.Spec, dialect.Others(o.job))
	if err != nil {
		return nil, fmt.Errorf("with %d nodes: %w", least, err)
	}
	return effective, nil
}

// checkTopology returns what Kueue's webhooks reject of the topology requests of its own jobs. Kueue doesn't check
// those of Workloads: it ignores half of a request, or never admits the Workload.
func (r *resolver) checkTopology(podSets []kueue.PodSet) field.ErrorList {
	if !r.policy.features.podSets.TopologyAware {
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
