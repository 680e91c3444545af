package integration

import (
	"context"
	"errors"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	kevents "k8s.io/client-go/tools/events"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/controller/constants"
	"sigs.k8s.io/kueue/pkg/controller/jobframework"
	"sigs.k8s.io/kueue/pkg/podset"
	"sigs.k8s.io/kueue/pkg/workload"
	workloadfinish "sigs.k8s.io/kueue/pkg/workload/finish"
	"sigs.k8s.io/kueue/pkg/workloadslicing"

	"github.com/signalbox-dev/signalbox/admission"
	"github.com/signalbox-dev/signalbox/admission/boost"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/integration/managed"
	"github.com/signalbox-dev/signalbox/podsets"
	"github.com/signalbox-dev/signalbox/store/events"
)

// job is a TrainJob as jobframework sees it in one reconcile. It answers from what was observed, and notes what
// jobframework asks for; it reads nothing and writes nothing. It is a ComposableJob of a single member: jobframework
// then leaves starting to Run and stopping to Stop, and writes nothing to the TrainJob itself.
type job struct {
	o        *situation
	asked    *asked
	shown    *api.TrainJob // as jobframework is to see it
	features admission.Features
	// checkpointWithin is for how long a preempted TrainJob may run on until its next checkpoint; 0 for not at all.
	checkpointWithin time.Duration
}

var (
	_ jobframework.GenericJob              = (*job)(nil)
	_ jobframework.ComposableJob           = (*job)(nil)
	_ jobframework.JobWithReclaimablePods  = (*job)(nil)
	_ jobframework.JobWithFinalize         = (*job)(nil)
	_ jobframework.JobWithOnHold           = (*job)(nil)
	_ jobframework.JobWithPodLabelSelector = (*job)(nil)
	_ jobframework.TopLevelJob             = (*job)(nil)
)

// Object implements jobframework.GenericJob.
func (j *job) Object() client.Object { return j.shown }

// shownOf returns a TrainJob as jobframework is to see it. A priority class that doesn't exist doesn't count: the
// TrainJob keeps that of its Workload. One that holds quota stays in the queue that it has it of. The annotation of an
// elastic job, whose Workloads are replaced while it runs, doesn't make a TrainJob one, whenever it was added.
func shownOf(o *observed) *api.TrainJob {
	shown := o.job
	own := o.workloads.own
	if o.workloads.noClass && len(own) > 0 {
		shown = shown.DeepCopy()
		delete(shown.Labels, constants.WorkloadPriorityClassLabel)
		if class := classOf(own[0]); class != "" {
			metav1.SetMetaDataLabel(&shown.ObjectMeta, constants.WorkloadPriorityClassLabel, class)
		}
	}
	if holder := holderOf(own); holder != nil && o.standing == managed.Unqueued {
		shown = shown.DeepCopy()
		metav1.SetMetaDataLabel(&shown.ObjectMeta, constants.QueueLabel, string(holder.Spec.QueueName))
	}
	if _, elastic := shown.Annotations[workloadslicing.EnabledAnnotationKey]; elastic {
		shown = shown.DeepCopy()
		delete(shown.Annotations, workloadslicing.EnabledAnnotationKey)
	}
	return shown
}

// IsTopLevel implements jobframework.TopLevelJob: whose quota the TrainJob runs on was found out before.
func (j *job) IsTopLevel() bool { return j.o.standing != managed.Owned }

// GVK implements jobframework.GenericJob.
func (j *job) GVK() schema.GroupVersionKind { return managed.Kind }

// IsSuspended implements jobframework.GenericJob.
func (j *job) IsSuspended() bool { return j.o.suspended() }

// Suspend implements jobframework.GenericJob for jobs that another managed job owns, which a TrainJob never is.
func (j *job) Suspend() { j.o.job.Spec.Suspend = ptr.To(true) }

// PodLabelSelector implements jobframework.JobWithPodLabelSelector.
func (j *job) PodLabelSelector() string { return jobset.JobSetNameKey + "=" + j.o.job.Name }

// errNotComposed is for a jobframework that treats a TrainJob as other than a ComposableJob.
var errNotComposed = errors.New("a TrainJob is started by ComposableJob.Run, in one request")

// RunWithPodSetsInfo implements jobframework.GenericJob. A ComposableJob is run by Run instead.
func (j *job) RunWithPodSetsInfo(context.Context, client.Client, []podset.PodSetInfo) error {
	return errNotComposed
}

// RestorePodSetsInfo implements jobframework.GenericJob. A ComposableJob is stopped by Stop instead.
func (j *job) RestorePodSetsInfo(context.Context, []podset.PodSetInfo) bool { return false }

// Finished implements jobframework.GenericJob: jobframework is not asked about a TrainJob that has ended (release).
func (j *job) Finished(context.Context) (message string, success, finished bool) {
	return "", false, false
}

// IsActive implements jobframework.GenericJob.
func (j *job) IsActive() bool { return j.o.left.active }

// PodsReady implements jobframework.GenericJob.
func (j *job) PodsReady(context.Context, client.Client) bool { return j.o.ready() }

// ReclaimablePods implements jobframework.JobWithReclaimablePods.
func (j *job) ReclaimablePods(context.Context, client.Client) ([]kueue.ReclaimablePod, error) {
	j.asked.reclaim = reclaims(j.o)
	return j.asked.reclaim.pods, nil
}

// IsOnHold implements jobframework.JobWithOnHold: a TrainJob that can't start, or that its user has stopped, must not
// hold quota once none of it runs.
func (j *job) IsOnHold() bool {
	if stoppedByUser(j.o.job) && j.o.suspended() && !j.o.origin.awaitsEnd {
		return true
	}
	return (j.o.queue.blocked != nil || stoppedByUser(j.o.job)) && !j.o.left.active
}

// Load implements jobframework.ComposableJob. The TrainJob was observed before; removeFinalizers is set for one that is
// deleted and whose pods have ended.
func (j *job) Load(context.Context, client.Client, *types.NamespacedName) (removeFinalizers bool, err error) {
	return j.o.stage == stageDeleted, nil
}

// PodSets implements jobframework.GenericJob. What a TrainJob that runs was admitted for doesn't change.
func (j *job) PodSets(context.Context, client.Client) ([]kueue.PodSet, error) {
	if j.o.queue.blocked != nil {
		return nil, j.o.queue.blocked
	}
	if wl := j.o.match(); j.o.stage != stageSuspended && wl != nil {
		return wl.DeepCopy().Spec.PodSets, nil
	}
	return j.o.queue.podSets, nil
}

// ConstructComposableWorkload implements jobframework.ComposableJob.
func (j *job) ConstructComposableWorkload(
	ctx context.Context, c client.Client, _ kevents.EventRecorder, labelKeys, annotations sets.Set[string],
) (*kueue.Workload, error) {
	wl, err := jobframework.ConstructWorkload(ctx, c, j, labelKeys, annotations)
	if err != nil {
		return nil, err
	}
	j.asked.noted = append(j.asked.noted, remember{workload: wl.Name})
	return wl, nil
}

// ListChildWorkloads implements jobframework.ComposableJob. jobframework finishes what it gets of a deleted TrainJob. A
// Workload that MultiKueue has created is left to the garbage collector: Kueue in the manager cluster would take its
// end for that of the TrainJob, but dispatches the TrainJob again when the Workload is deleted.
func (j *job) ListChildWorkloads(
	context.Context, client.Client, types.NamespacedName,
) (*kueue.WorkloadList, error) {
	list := &kueue.WorkloadList{}
	for _, wl := range slices.Concat(j.o.workloads.own, j.o.workloads.earlier) {
		if j.o.stage == stageDeleted && wl.Labels[kueue.MultiKueueOriginLabel] != "" && wl.DeletionTimestamp.IsZero() {
			continue
		}
		list.Items = append(list.Items, *wl.DeepCopy())
	}
	return list, nil
}

// FindMatchingWorkloads implements jobframework.ComposableJob. Workloads of an earlier TrainJob of the name stay while
// its pods run.
func (j *job) FindMatchingWorkloads(
	context.Context, client.Client, kevents.EventRecorder,
) (match *kueue.Workload, toDelete []*kueue.Workload, err error) {
	matching := j.o.match()
	for _, wl := range j.o.workloads.own {
		if wl == matching {
			match = wl.DeepCopy()
		} else {
			toDelete = append(toDelete, wl.DeepCopy())
		}
	}
	for _, wl := range j.o.workloads.earlier {
		if !j.o.workloads.earlierRuns || !podsets.HoldsQuota(wl) {
			toDelete = append(toDelete, wl.DeepCopy())
		}
	}
	return match, toDelete, nil
}

// EquivalentToWorkload implements jobframework.ComposableJob.
func (j *job) EquivalentToWorkload(_ context.Context, _ client.Client, wl *kueue.Workload) (bool, error) {
	return j.o.origin.equivalent(j.o.observed, wl), nil
}

// EnsureWorkloadOwnedByAllMembers implements jobframework.ComposableJob for prebuilt Workloads. They get the finalizer
// that Kueue's own have: without it, the garbage collector would release the quota of a deleted TrainJob at once. They
// bring no boost: whatever controlled them before is not protected from one.
func (j *job) EnsureWorkloadOwnedByAllMembers(
	ctx context.Context, c client.Client, _ kevents.EventRecorder, wl *kueue.Workload,
) error {
	owned := metav1.IsControlledBy(wl, j.o.job)
	if !owned {
		delete(wl.Annotations, boost.Annotation)
		delete(wl.Annotations, boost.MarkAnnotation)
	}
	if workloadfinish.IsFinished(wl) || !wl.DeletionTimestamp.IsZero() ||
		!controllerutil.AddFinalizer(wl, kueue.ResourceInUseFinalizerName) || !owned {
		return jobframework.EnsurePrebuiltWorkloadOwnership(ctx, c, wl, j.o.job)
	}
	return c.Update(ctx, wl)
}

// ForEach implements jobframework.ComposableJob.
func (j *job) ForEach(f func(runtime.Object)) { f(j.o.job) }

// Run implements jobframework.ComposableJob: it decides the start.
func (j *job) Run(
	_ context.Context, _ client.Client, wl *kueue.Workload, _ []podset.PodSetInfo, _ kevents.EventRecorder, message string,
) error {
	return decideStart(j.o, j.asked, wl, message, j.features)
}

// errStillRunning keeps a deleted Workload, and so its quota, until the last of the TrainJob's pods has ended.
var errStillRunning = errors.New("pods of the TrainJob have not ended")

// Stop implements jobframework.ComposableJob: it notes that the TrainJob is to be suspended. The entry stays until no
// pod is left.
func (j *job) Stop(
	_ context.Context, _ client.Client, _ []podset.PodSetInfo, reason jobframework.StopReason, message string,
) ([]client.Object, error) {
	if evictionOf(reason) == kueue.WorkloadEvictedByPreemption {
		j.asked.respite = awaits(j.o, j.checkpointWithin)
		if !j.asked.respite.until.IsZero() {
			return nil, nil
		}
	}
	if !j.o.suspended() && !j.o.ended() {
		j.asked.stop = &stop{suspend{reason: message, eviction: evictionOf(reason)}, ptr.To(events.Stopped.Of(message))}
	}
	if reason == jobframework.StopReasonWorkloadDeleted && j.o.left.active {
		return nil, errStillRunning
	}
	return nil, nil
}

// Finalize implements jobframework.JobWithFinalize: the Workload of a TrainJob that hasn't ended is finished.
func (j *job) Finalize(context.Context, client.Client) error {
	if wl := j.o.match(); wl != nil && workloadfinish.IsFinished(wl) {
		j.o.origin.finished(j.o.observed, wl, j.asked)
	}
	return nil
}

// reclaimEvery is the least time between two writes of what a running TrainJob gives back. The first comes at once, as
// that of an initializer. Of many ReplicatedJobs that end together, each would be a write that Kueue's scheduler
// follows.
const reclaimEvery = 10 * time.Second

// reclaims decides what a TrainJob gives back of its quota.
func reclaims(o *situation) reclaim {
	pods, wl := o.reclaimable(), o.match()
	if wl == nil || !workload.HasQuotaReservation(wl) {
		return reclaim{pods: pods}
	}
	stored := wl.Status.ReclaimablePods
	pods = podsets.AtLeast(podsets.AddNotAdmitted(pods, wl), stored)
	if workload.ReclaimablePodsAreEqual(workload.LimitReclaimablePodsToPodSetSizes(wl, pods), stored) {
		return reclaim{pods: pods}
	}
	if wait := reclaimEvery - o.now.Sub(o.memory.reclaimed); wait > 0 {
		return reclaim{pods: stored, later: wait}
	}
	return reclaim{pods: pods, changed: true}
}
