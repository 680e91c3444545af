package integration

import (
	"slices"
	"time"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/controller/jobframework"
	"sigs.k8s.io/kueue/pkg/workload"

	"github.com/signalbox-dev/signalbox/admission"
	"github.com/signalbox-dev/signalbox/admission/after"
	"github.com/signalbox-dev/signalbox/admission/avoid"
	"github.com/signalbox-dev/signalbox/admission/boost"
	"github.com/signalbox-dev/signalbox/admission/usage"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/integration/managed"
	"github.com/signalbox-dev/signalbox/overrides"
	"github.com/signalbox-dev/signalbox/overrides/legacy"
	"github.com/signalbox-dev/signalbox/podsets"
	"github.com/signalbox-dev/signalbox/store"
)

// observed is all that one reconcile knows of a TrainJob. observe reads it once; afterwards nobody changes it.
type observed struct {
	job   *api.TrainJob            // of one that is gone only namespace and name
	entry *trainerapi.RuntimePatch // the integration's; nil if there is none
	now   time.Time
	stage stage
	// standing is on whose quota it runs. It is not known of one that is deleted or has ended.
	standing  managed.Standing
	memory    recollection
	jobSet    *jobset.JobSet // nil if there is none
	left      leftover
	workloads claims
	queue     queueing
}

// stage is where a TrainJob is in its life.
type stage int

const (
	// stageBehind: the cache has an older version than this process has written. Nothing can be decided.
	stageBehind stage = iota
	// stageDeleted: the TrainJob is gone, or is being deleted and kept by a finalizer.
	stageDeleted
	// stageSuspended: the TrainJob waits, or is stopping.
	stageSuspended
	// stageRunning: the TrainJob was started.
	stageRunning
	// stageEnded: the Trainer has declared the TrainJob's end.
	stageEnded
)

// leftover is what may still run of a TrainJob that is not to run.
type leftover struct {
	pods []corev1.Pod // that have not ended
	// active is set if something of the TrainJob may run. Quota is released only when it isn't: a pod that terminates
	// still runs.
	active bool
	// over is set, for a deleted or ended TrainJob, when its last pod has ended and none will come.
	over bool
	// kept is what remains of the last run although nothing of it runs, such as "JobSet a"; "" if nothing does.
	kept string
	// job is a Job of the last run that is about to be deleted after its JobSet; "" if there is none.
	job string
	// lost is set if the cluster that may run it can't be reached.
	lost bool
	// unreachable describes the clusters that can't be reached, if it waits for one.
	unreachable []string
	// again is when to look again, because no event announces the next change; 0 for never.
	again time.Duration
}

// claims are the Workloads of TrainJobs of the name. They are the cache's own: they must not be changed.
type claims struct {
	own     []*kueue.Workload
	aside   []*kueue.Workload // of the TrainJob, that don't stand for it: podsets.Counts
	earlier []*kueue.Workload // of deleted TrainJobs of the same name
	// earlierRuns is set if pods of an earlier TrainJob have not ended.
	earlierRuns bool
	// noClass is set if the TrainJob names a priority class that doesn't exist, where that matters.
	noClass bool
	// deleted is set if a Workload that this process created is being deleted, and no watch has shown it.
	deleted bool
}

// wouldRun is what a suspended TrainJob would run.
type wouldRun struct {
	choice *store.Choice // the runtime; nil if it isn't known
	// unusable is why the runtime can't be used, and part why Kueue takes the TrainJob for a part of another job; nil if
	// nothing is wrong.
	unusable *store.RuntimeError
	part     *admission.BlockedError
	// foreign is the Record of a previous Trainer; nil if there is none.
	foreign   *legacy.Record
	effective *overrides.Effective // shared: it must not be changed
	podSets   []kueue.PodSet
	avoiding  avoiding
	// after is what follows from the TrainJobs that it waits for.
	after after.Verdict
}

// avoiding is what a suspended TrainJob remembers of nodes.
type avoiding struct {
	counted []api.AvoidedNode
	// shared is what others of its namespace remember. It is kept off by a start alone: what waits isn't queued again
	// whenever one of them meets a node.
	shared  []api.AvoidedNode
	cluster avoid.Cluster
	// choice is what its start keeps off, and withOthers the same with what is shared; nil if that is nothing more.
	choice     avoid.Choice
	withOthers *avoid.Choice
}

// queueing is what is decided of a TrainJob that is queued, or that goes on, and what was asked for it.
type queueing struct {
	wouldRun
	// current are the TrainJob's Workloads that have these PodSets.
	current []*kueue.Workload
	// blocked is why the TrainJob can't be queued, or can't go on; nil if nothing is wrong.
	blocked *admission.BlockedError
	// setBack is set if it is blocked by an earlier start that could not be.
	setBack bool
	// start is nil if the TrainJob has no Workload that is admitted.
	start *startFacts
	// again is when to reconcile, although no event may come, because the TrainJob may be blocked then; 0 for never.
	again time.Duration
	// drained is set if the queue of a preempted TrainJob that might run on is drained, or isn't known.
	drained bool
	// pods is what is known of the pods that a started TrainJob lacks.
	pods podsAnswer
	whileItRuns
}

// whileItRuns is what is written for a TrainJob that runs on its quota.
type whileItRuns struct {
	// begun is what to note of it because its pods have begun to run; nil for nothing.
	begun *usage.Note
	// boost is what its Workload's boost is to be; nil if that stays as it is.
	boost *boost.Decision
	// freed are the hosts that its pods keep off, and for which it is started again.
	freed []string
	growth
}

// growth is what follows for a running TrainJob that grows, or may. It is zero for any other.
type growth struct {
	slice *kueue.Workload // that it is to have; nil for none
	never string          // why it doesn't grow, where nobody was told; "" for nothing
	// restarts is set if it is to be started again with the nodes of its slice, and awaits is until when it waits for a
	// checkpoint before that.
	restarts bool
	awaits   time.Time
}

// later brings the time of the next reconcile forward.
func (q *queueing) later(after time.Duration) {
	if after > 0 && (q.again == 0 || after < q.again) {
		q.again = after
	}
}

// startFacts is what a start is decided on, beside the TrainJob and its Workload.
type startFacts struct {
	flavors map[kueue.ResourceFlavorReference]kueue.ResourceFlavorSpec
	// mismatch is how the admission differs from what would run; nil if it doesn't.
	mismatch *admission.MismatchError
	// jobs of the JobSet, if the Trainer keeps them between runs.
	jobs []batchv1.Job
}

func (o *observed) key() types.NamespacedName { return client.ObjectKeyFromObject(o.job) }

func (o *observed) suspended() bool { return ptr.Deref(o.job.Spec.Suspend, false) }

func (o *observed) ended() bool { return hasEnded(o.job) }

// managed reports whether Kueue manages the TrainJob. One that holds quota is managed until that is free, whatever has
// become of its queue label and its namespace's labels.
func (o *observed) managed() bool {
	return o.standing != managed.Unqueued || holdQuota(o.workloads.own)
}

// match returns the Workload that stands for the TrainJob; nil if there is none.
func (o *observed) match() *kueue.Workload {
	prebuilt := jobframework.PrebuiltWorkloadNameFor(o.job)
	for _, wl := range o.workloads.own {
		if (prebuilt == "" || wl.Name == prebuilt) && o.fits(wl) {
			return wl
		}
	}
	return nil
}

// fits reports whether a Workload is the TrainJob's and up to date with it. That of a TrainJob which runs fits by its
// ownership alone: what was admitted can't change while it runs, and neither an edited nor a deleted runtime may stop
// it.
func (o *observed) fits(wl *kueue.Workload) bool {
	switch {
	case !metav1.IsControlledBy(wl, o.job):
		return false
	case workload.HasQuotaReservation(wl) && o.left.active:
		return true // whatever has changed, its quota is in use
	case !workload.IsActive(wl) || wl.Annotations[api.DeactivateAnnotation] != "":
		return true // another Workload in its place would be active and start what was stopped
	case o.leftQueue(wl):
		return false
	case !ptr.Equal(wl.Spec.MaximumExecutionTimeSeconds, jobframework.MaximumExecutionTimeSecondsForObject(o.job)):
		return false
	case o.ended() || !o.suspended() || o.queue.blocked != nil:
		return true
	case after.Waits(o.job) && !workload.HasAdmissionGate(wl):
		return false // another client has taken its gate off, and Kueue takes one on creation alone
	}
	return o.hasPodSets(wl)
}

// leftQueue reports whether a stopped TrainJob has left the queue of which its Workload holds quota: until it is free,
// a Workload can't follow. Nothing replaces a prebuilt one.
func (o *observed) leftQueue(wl *kueue.Workload) bool {
	return workload.HasQuotaReservation(wl) && o.stage == stageSuspended &&
		jobframework.PrebuiltWorkloadNameFor(o.job) == "" && wl.Spec.QueueName != jobframework.QueueNameForObject(o.job)
}

// hasPodSets reports whether a Workload has the PodSets which the TrainJob is queued for. jobframework asks about a
// prebuilt Workload that it has read itself.
func (o *observed) hasPodSets(wl *kueue.Workload) bool {
	if slices.Contains(o.workloads.own, wl) {
		return slices.Contains(o.queue.current, wl)
	}
	return podsets.Equal(o.queue.podSets, o.asPartial(wl).Spec.PodSets)
}

// asPartial returns a slice as a partial admission of what the TrainJob is queued for, and any other Workload as it is.
func (o *observed) asPartial(wl *kueue.Workload) *kueue.Workload {
	return podsets.AsPartial(wl, o.queue.podSets)
}

// compare finds the Workloads that have the PodSets which the TrainJob is queued for. It is done once: comparing pod
// specs is what most of a decision costs.
func (o *observed) compare() {
	o.queue.current = nil
	for _, wl := range o.workloads.own {
		if podsets.Equal(o.queue.podSets, o.asPartial(wl).Spec.PodSets) {
			o.queue.current = append(o.queue.current, wl)
		}
	}
}

// overdue reports whether an admitted TrainJob has waited for settleTimeout since its admission and since its entry was
// cleared: a JobSet that has not followed a cleared entry would start the last admission's pods.
func (o *observed) overdue(wl *kueue.Workload) bool { return o.waited(wl) > settleTimeout }

// waited returns how long an admitted TrainJob has waited since its admission, or since its entry was cleared if that
// was later; 0 if the Workload is not admitted.
func (o *observed) waited(wl *kueue.Workload) time.Duration {
	c := apimeta.FindStatusCondition(wl.Status.Conditions, kueue.WorkloadAdmitted)
	if c == nil {
		return 0
	}
	since := o.now.Sub(c.LastTransitionTime.Time)
	if own := o.entry; own != nil && own.Time != nil && admission.IsNeutral(own) {
		since = min(since, o.now.Sub(own.Time.Time))
	}
	return since
}

// recheckDelay is when to look again at Jobs and pods whose next change no event announces.
const recheckDelay = time.Second

func (o *observed) owner() store.Owner {
	return store.Owner{NamespacedName: o.key(), UID: o.job.UID, JobSet: o.jobSet}
}

// podsAnswer is what is known of the pods that a started TrainJob lacks. It is zero if there are enough, or if the
// namespace takes more.
type podsAnswer struct {
	// missing is nil if there are enough.
	missing *missingPods
	// refused is why the next pod can't be created; nil if it can.
	refused *admission.BlockedError
	// unknown is set if that isn't known: then what the TrainJob says of it stays.
	unknown bool
}

// settleTimeout bounds how long an admitted TrainJob waits until Kubeflow Trainer and JobSet have no pending writes. A
// burst of 100 kept JobSet's one worker busy for more than 10 s on two slow cores; starts that don't wait for it meet
// conflicts.
const settleTimeout = 30 * time.Second

// missingPods is why a started TrainJob can't run: a step has fewer pods than it needs, or a pod has a scheduling gate
// that Kueue doesn't open.
type missingPods struct {
	podsets.Shortage // of no ReplicatedJob if nothing is there at all
	pod, gate        string
	suspended        bool // others have suspended its JobSet
}
