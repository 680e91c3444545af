package integration

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/controller/jobframework"
	"sigs.k8s.io/kueue/pkg/podset"
	"sigs.k8s.io/kueue/pkg/workload"
	workloadfinish "sigs.k8s.io/kueue/pkg/workload/finish"

	"github.com/signalbox-dev/signalbox/admission"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides"
	"github.com/signalbox-dev/signalbox/podsets"
)

var gvk = trainerapi.GroupVersion.WithKind(trainerapi.TrainJobKind)

// job is one TrainJob during one reconcile. It is a ComposableJob of a single member: jobframework then leaves starting
// to Run and stopping to Stop, and writes nothing to the TrainJob itself.
type job struct {
	api.TrainJob
	r       *Reconciler
	dialect overrides.Dialect // of the Trainer, the same for the whole reconcile

	jobSet  *jobset.JobSet // its child; nil where there is none
	pods    []corev1.Pod   // its pods that have not ended; read only of a job that is suspended, or has ended
	lingers bool           // it has ended, and its quota is still in use
	kept    bool           // it is suspended, nothing of it runs, and its JobSet is kept
	skip    bool           // nothing is left to do
	stopped bool           // in this reconcile
	late    bool           // it was read in a version older than what we wrote last
	again   time.Duration  // after which it is to be looked at again, where nothing else brings it back

	runtime   *trainerapi.TrainingRuntimeSpec // that it stands on; set while it is suspended
	effective *overrides.Effective            // of the runtime and the others' entries; shared, not to be changed
	podSets   []kueue.PodSet
	pinned    *snapshot               // Trainer's snapshot of it; nil where there is none
	record    *overrides.Record       // of another Trainer, which has gone; nil where there is none
	stale     bool                    // the job has not run, and its runtime has changed since the snapshot
	blocked   *admission.BlockedError // why it can't be queued
	waiting   string                  // what an admitted job waits for

	matched       *kueue.Workload // its Workload
	foundFinished bool            // the Workload was finished before this reconcile
}

var (
	_ jobframework.GenericJob              = (*job)(nil)
	_ jobframework.ComposableJob           = (*job)(nil)
	_ jobframework.JobWithReclaimablePods  = (*job)(nil)
	_ jobframework.JobWithFinalize         = (*job)(nil)
	_ jobframework.JobWithSkip             = (*job)(nil)
	_ jobframework.JobWithOnHold           = (*job)(nil)
	_ jobframework.JobWithPodLabelSelector = (*job)(nil)
)

// own is the integration's entry; nil where there is none.
func (j *job) own() *trainerapi.RuntimePatch { return j.dialect.Own(&j.TrainJob) }

func (j *job) key() types.NamespacedName { return client.ObjectKeyFromObject(&j.TrainJob) }

// Object implements jobframework.GenericJob.
func (j *job) Object() client.Object { return &j.TrainJob }

// GVK implements jobframework.GenericJob.
func (j *job) GVK() schema.GroupVersionKind { return gvk }

// IsSuspended implements jobframework.GenericJob.
func (j *job) IsSuspended() bool { return ptr.Deref(j.Spec.Suspend, false) }

// Suspend implements jobframework.GenericJob; it changes the object in memory only.
func (j *job) Suspend() { j.Spec.Suspend = ptr.To(true) }

// PodLabelSelector implements jobframework.JobWithPodLabelSelector.
func (j *job) PodLabelSelector() string { return jobset.JobSetNameKey + "=" + j.Name }

// errNotComposed is what jobframework gets if it ever treats a TrainJob as other than a ComposableJob.
var errNotComposed = errors.New("a TrainJob is started by ComposableJob.Run, in one request")

// RunWithPodSetsInfo implements jobframework.GenericJob. A ComposableJob is run by Run instead.
func (j *job) RunWithPodSetsInfo(context.Context, client.Client, []podset.PodSetInfo) error {
	return errNotComposed
}

// RestorePodSetsInfo implements jobframework.GenericJob. A ComposableJob is stopped by Stop instead.
func (j *job) RestorePodSetsInfo(context.Context, []podset.PodSetInfo) bool { return false }

// Finished implements jobframework.GenericJob: the job has ended, and so has the last of its pods. What jobframework takes
// for finished gives its quota back.
func (j *job) Finished(context.Context) (message string, success, finished bool) {
	c := end(&j.TrainJob)
	if c == nil {
		return "", false, false
	}
	return c.Message, c.Type == trainerapi.TrainJobComplete, !j.lingers
}

// end returns the condition by which Trainer says that a TrainJob has ended; nil where it has not.
func end(job *api.TrainJob) *metav1.Condition {
	for _, name := range []string{trainerapi.TrainJobComplete, trainerapi.TrainJobFailed} {
		if c := apimeta.FindStatusCondition(job.Status.Conditions, name); c != nil && c.Status == metav1.ConditionTrue {
			return c
		}
	}
	return nil
}

func hasEnded(job *api.TrainJob) bool { return end(job) != nil }

// IsActive implements jobframework.GenericJob. Quota is freed only when GPUs are: a terminating pod counts.
// What was read before it was stopped in this reconcile says nothing of what runs now.
func (j *job) IsActive() bool {
	if hasEnded(&j.TrainJob) {
		return j.lingers
	}
	if j.r.bundled && j.jobSet != nil {
		return !j.kept // it goes with the last of its pods
	}
	return j.stopped || admission.Running(&j.TrainJob, j.jobSet, j.pods) != ""
}

// PodsReady implements jobframework.GenericJob.
func (j *job) PodsReady(context.Context, client.Client) bool {
	return hasEnded(&j.TrainJob) || j.jobSet != nil && podsets.Ready(j.jobSet.Spec.ReplicatedJobs, podsets.Statuses(j.jobSet))
}

// ReclaimablePods implements jobframework.JobWithReclaimablePods.
func (j *job) ReclaimablePods(context.Context, client.Client) ([]kueue.ReclaimablePod, error) {
	pods := j.reclaimable()
	if j.matched != nil && workload.HasQuotaReservation(j.matched) {
		pods = podsets.AtLeast(pods, j.matched.Status.ReclaimablePods)
	}
	return pods, nil
}

// reclaimable returns the pods that will not run again.
func (j *job) reclaimable() []kueue.ReclaimablePod {
	switch {
	case j.jobSet != nil:
		return podsets.Reclaimable(j.jobSet.Spec.ReplicatedJobs, podsets.Final(j.jobSet), podsets.Statuses(j.jobSet))
	case j.r.bundled && j.effective != nil:
		spec := j.runtime.Template.Spec
		spec.ReplicatedJobs = j.effective.ReplicatedJobs
		return podsets.Outlived(&spec, j.Status.JobsStatus)
	}
	return nil
}

// IsOnHold implements jobframework.JobWithOnHold: a TrainJob that can't start must not hold quota, once none of it runs.
func (j *job) IsOnHold() bool { return j.blocked != nil && !j.IsActive() }

// Skip implements jobframework.JobWithSkip.
func (j *job) Skip(context.Context) bool { return j.skip }

// Load implements jobframework.ComposableJob: it reads all that the methods without a client answer from.
func (j *job) Load(ctx context.Context, c client.Client, key *types.NamespacedName) (removeFinalizers bool, err error) {
	if err := c.Get(ctx, *key, &j.TrainJob); apierrors.IsNotFound(err) {
		j.Namespace, j.Name = key.Namespace, key.Name
		j.r.memory.forget(*key)
		j.r.writer.Forget(*key)
		return j.loadDeleted(ctx)
	} else if err != nil {
		return false, err
	}
	ended := hasEnded(&j.TrainJob)
	j.r.memory.look(*key, j.UID, ended, j.r.clock.Now())
	if !j.DeletionTimestamp.IsZero() {
		return j.loadDeleted(ctx)
	}
	if j.late = j.r.writer.Behind(&j.TrainJob); j.late {
		j.skip = true
		return false, nil
	}
	if err := j.letEarlierGo(ctx, c); err != nil {
		return false, err
	}
	if j.skip, err = j.done(ctx, c); err != nil || j.skip {
		return false, err
	}
	if err := j.loadChildren(ctx); err != nil || ended {
		return false, err
	}
	managed, err := j.r.manages(ctx, &j.TrainJob)
	if err != nil || !managed {
		return false, err
	}
	if !j.IsSuspended() {
		if err := j.recall(ctx); err != nil || j.skip {
			return false, err
		}
		j.blocked, j.again, err = j.stillborn(ctx)
		return false, err
	}
	return false, j.resolve(ctx, c)
}

// deletedDelay is after how long a deleted job is looked at again whose Jobs have no pods, and have not ended either.
const deletedDelay = time.Second

// loadDeleted decides on a TrainJob that is deleted, or is being deleted and kept by a finalizer: its Workloads, and so its
// quota, are let go when the last of its pods has ended.
func (j *job) loadDeleted(ctx context.Context) (removeFinalizers bool, err error) {
	holds, err := j.r.holdsQuota(ctx, j.key())
	if err != nil || !holds {
		return err == nil, err
	}
	js, err := j.r.jobSets.Left(ctx, &j.TrainJob)
	if err != nil {
		return false, err
	}
	if j.pods, err = j.r.pods.Running(ctx, j.key(), j.UID, js); err != nil {
		return false, err
	}
	over, err := j.quiet(ctx, js)
	if j.skip = !over; err != nil || over {
		return over, err
	}
	if j.IsSuspended() || hasEnded(&j.TrainJob) || j.r.bundled || j.UID == "" || js == nil || !js.DeletionTimestamp.IsZero() {
		return false, nil // it is stopping; the bundled Trainer deletes the JobSet of a TrainJob that is being deleted
	}
	if err := j.r.writer.Suspend(ctx, &j.TrainJob); err != nil {
		return false, client.IgnoreNotFound(fmt.Errorf("suspending: %w", err))
	}
	return false, nil
}

// quiet reports whether nothing of a deleted job runs, or will.
func (j *job) quiet(ctx context.Context, js *jobset.JobSet) (bool, error) {
	switch {
	case len(j.pods) > 0:
		return false, nil
	case js != nil && (j.UID == "" || j.r.bundled):
		return false, nil // it is deleted next, by the garbage collector or by the bundled Trainer
	case js != nil && !hasEnded(&j.TrainJob):
		if admission.Running(&j.TrainJob, js, nil) != "" {
			return false, nil
		}
	}
	return j.over(ctx, js)
}

// over reports whether the job has no pods and gets no more, by the API server: no unfinished Job, and then no running pod. js
// restricts the Jobs to those of one JobSet. The caches can't answer this: the watch of pods may be behind those of Jobs and
// JobSets. It sets j.again, because no event follows when a Job finishes.
func (j *job) over(ctx context.Context, js *jobset.JobSet) (bool, error) {
	j.again = deletedDelay
	if js == nil || js.Spec.Suspend == nil || !*js.Spec.Suspend {
		if ended, err := j.r.pods.JobsEnded(ctx, j.key(), admission.Is(js)); err != nil || !ended {
			return false, err
		}
	}
	pods, err := j.r.pods.RunningNow(ctx, j.key(), j.UID, js)
	if err != nil || len(pods) > 0 {
		return false, err
	}
	j.again = 0
	return true, nil
}

// recall stops a TrainJob that the Trainer of before was told to start and did not: the present one knows nothing of the
// entry that it was to run with. It is started anew, on the quota that it has.
func (j *job) recall(ctx context.Context) error {
	record, err := overrides.RecordOf(&j.TrainJob)
	if err != nil || !j.dialect.Foreign(record) || record.Time == nil {
		return nil // nobody but us writes it; what can't be read is said when it stops
	}
	if j.jobSet != nil && admission.RunsWith(j.jobSet, record.Entry(&j.TrainJob)) {
		return nil
	}
	ctrl.LoggerFrom(ctx).Info("Stopping a TrainJob that was started for another Trainer", "before", record.Field, "now", j.dialect.Name)
	if err := j.r.writer.Suspend(ctx, &j.TrainJob); err != nil {
		return fmt.Errorf("suspending: %w", err)
	}
	j.skip, j.late = true, true // the version that we wrote comes
	return nil
}

// letGoAfter is for how long after its end a TrainJob's Workload keeps the finalizer of what is in use, where so many others
// have not ended. To take it away is a write that nobody waits for: it comes when the burst that the TrainJob was part of is
// over, or when the Workload is deleted. It is a minute, and 200 ms for each of the others, at most ten minutes.
func letGoAfter(others int) time.Duration {
	return min(letGoAtLeast+time.Duration(others)*200*time.Millisecond, 10*time.Minute)
}

// finishedSeen bounds how long the cache may take to have the end of a Workload that this process has written.
const finishedSeen = 10 * time.Second

// letGoAtLeast is letGoAfter where there are no others. For as long, a manager that has just started to look takes no finalizer
// away: it doesn't know yet how many others there are, and has what was admitted meanwhile to start.
const letGoAtLeast = time.Minute

// done tells whether the job's end has been written already, so that no later event repeats it.
func (j *job) done(ctx context.Context, c client.Client) (bool, error) {
	finished := hasEnded(&j.TrainJob)
	if !finished && !j.IsSuspended() {
		return false, nil
	}
	// The cache may not have it yet. It never gets it if Kueue v0.19.2, from a stale cache, overwrites the conditions: then the
	// Workload is declared finished again.
	left := finishedSeen - j.r.clock.Since(j.r.memory.of(j.key(), j.UID).finished)
	declared := finished && left > 0
	var workloads kueue.WorkloadList // the cache's own: read only
	err := c.List(ctx, &workloads, client.InNamespace(j.Namespace), jobframework.OwnerReferenceIndexFieldMatcher(gvk, j.Name), client.UnsafeDisableDeepCopy)
	if err != nil || len(workloads.Items) == 0 {
		return declared, err
	}
	for i := range workloads.Items {
		wl := &workloads.Items[i]
		ended := workloadfinish.IsFinished(wl) && metav1.IsControlledBy(wl, &j.TrainJob)
		if !ended && !declared {
			return false, nil
		}
		if !ended && metav1.IsControlledBy(wl, &j.TrainJob) {
			j.again = left
		}
		if !ended || !controllerutil.ContainsFinalizer(wl, kueue.ResourceInUseFinalizerName) {
			continue
		}
		if !finished {
			return false, nil // jobframework lets it go
		}
		if err := j.letGo(ctx, c, wl); err != nil {
			return false, err
		}
	}
	return true, nil
}

// letGo takes the finalizer from the Workload of a finished job, when it is time.
func (j *job) letGo(ctx context.Context, c client.Client, wl *kueue.Workload) error {
	ended := apimeta.FindStatusCondition(wl.Status.Conditions, kueue.WorkloadFinished).LastTransitionTime
	others, since := j.r.memory.unfinished()
	if left := max(letGoAfter(others)-j.r.clock.Since(ended.Time), letGoAtLeast-j.r.clock.Since(since)); left > 0 && wl.DeletionTimestamp.IsZero() {
		j.again = left
		return nil
	}
	after := wl.DeepCopy()
	controllerutil.RemoveFinalizer(after, kueue.ResourceInUseFinalizerName)
	err := c.Patch(ctx, after, client.MergeFromWithOptions(wl, client.MergeFromWithOptimisticLock{})) // the list may have others'
	if apierrors.IsConflict(err) {
		j.again = admission.ConflictDelay
		return nil
	}
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("letting Workload %s go: %w", workload.Key(wl), err)
	}
	return nil
}

func (j *job) loadChildren(ctx context.Context) error {
	var err error
	if j.jobSet, err = j.r.jobSets.Of(ctx, &j.TrainJob); err != nil {
		return err
	}
	ended := hasEnded(&j.TrainJob)
	if !j.IsSuspended() && !ended {
		return nil // only of a job that stops or has ended do the pods matter
	}
	if j.pods, err = j.r.pods.Running(ctx, j.key(), j.UID, j.jobSet); err != nil {
		return err
	}
	if !ended {
		return j.loadStopped(ctx)
	}
	j.lingers = len(j.pods) > 0
	if j.lingers || j.jobSet != nil && admission.EndedCleanly(j.jobSet) {
		return nil
	}
	if holds, err := j.r.holdsQuota(ctx, j.key()); err != nil || !holds {
		return err
	}
	over, err := j.over(ctx, j.jobSet)
	j.lingers = !over
	return err
}

// loadStopped loads the pods of a suspended job. The bundled Trainer's JobSet is deleted after its last pod. A JobSet that
// Kubeflow Trainer has suspended may have pods that the cache doesn't have yet.
func (j *job) loadStopped(ctx context.Context) (err error) {
	if j.r.bundled {
		return j.loadKept(ctx)
	}
	if len(j.pods) > 0 || admission.IsNeutral(j.own()) || admission.Running(&j.TrainJob, j.jobSet, nil) != "" {
		return nil
	}
	if j.pods, err = j.r.pods.RunningNow(ctx, j.key(), j.UID, j.jobSet); len(j.pods) > 0 {
		j.again = deletedDelay
	}
	return err
}

// keptAfter is how long after its deletion a JobSet of which nothing runs is taken for kept.
const keptAfter = 30 * time.Second

// loadKept finds out whether the JobSet of a stopped job is there only because somebody's finalizer keeps a pod that has
// ended: such a pod uses nothing, and must not hold quota.
func (j *job) loadKept(ctx context.Context) (err error) {
	if j.jobSet == nil || j.jobSet.DeletionTimestamp.IsZero() || len(j.pods) > 0 {
		return nil
	}
	if left := keptAfter - j.r.clock.Since(j.jobSet.DeletionTimestamp.Time); left > 0 {
		j.again = left
		return nil
	}
	j.kept, err = j.over(ctx, j.jobSet)
	return err
}

// resolve finds the runtime of a suspended job, and what follows from it. That it can't be queued is a result.
func (j *job) resolve(ctx context.Context, c client.Client) error {
	err := func() (err error) {
		if j.kept {
			return &admission.BlockedError{Reason: ReasonLastRunKept, RetryAfter: keptAfter, Err: fmt.Errorf(
				"JobSet %s of the last run can't be deleted, although all its pods have ended; look for a finalizer on the JobSet, its Jobs or its pods, and remove it", j.jobSet.Name)}
		}
		record, err := overrides.RecordOf(&j.TrainJob)
		if err != nil {
			return &admission.BlockedError{Reason: ReasonInvalidOverrides, Err: err}
		}
		if j.dialect.Foreign(record) {
			j.record = record
			if _, err := j.dialect.Migrate(&j.TrainJob, record, metav1.Time{}); err != nil {
				return &admission.BlockedError{Reason: ReasonInvalidOverrides, Err: err}
			}
		}
		if j.r.bundled {
			if j.runtime, err = runtimeHere(ctx, c, j.r.reader, &j.TrainJob); err != nil {
				return err
			}
			return j.compute(ctx, j.runtime)
		}
		runtime, err := liveRuntime(ctx, c, &j.TrainJob)
		if err != nil {
			return err
		}
		var live *trainerapi.TrainingRuntimeSpec
		if runtime != nil {
			live = &runtime.Spec
		}
		if j.dialect.Snapshots {
			spec, object, err := admission.Snapshot(ctx, j.r.reader, &j.TrainJob)
			if err != nil {
				return err
			}
			if spec != nil {
				j.pinned = &snapshot{object: object, spec: *spec}
			}
		}
		if j.runtime, j.stale, err = runtimeOf(&j.TrainJob, j.own() != nil, live, j.pinned); err != nil {
			return err
		}
		return j.compute(ctx, runtime.Pinnable())
	}()
	if errors.As(err, &j.blocked) {
		return nil
	}
	return err
}

// compute makes the PodSets of the runtime. settings is the runtime with what its annotations say.
func (j *job) compute(ctx context.Context, settings *trainerapi.TrainingRuntimeSpec) (err error) {
	limits := j.r.limits
	if errs := append(limits.CheckSize(&j.TrainJob), limits.CheckRuntime(&j.TrainJob, j.runtime)...); len(errs) > 0 {
		return &admission.BlockedError{Reason: ReasonLimitExceeded, Err: errs.ToAggregate()}
	}
	if j.effective, err = j.r.memo.Compute(j.dialect, &j.TrainJob, j.runtime, j.dialect.Others(&j.TrainJob)); err != nil {
		return &admission.BlockedError{Reason: ReasonInvalidRuntime, Err: err}
	}
	if errs := limits.CheckBuilt(j.effective.ReplicatedJobs, j.r.features.claimsCounted); len(errs) > 0 {
		return &admission.BlockedError{Reason: ReasonLimitExceeded, Err: fmt.Errorf("%s: %w", admission.Describe(&j.TrainJob), errs.ToAggregate())}
	}
	if n := len(j.effective.ReplicatedJobs); n > podsets.Max {
		return &admission.BlockedError{Reason: ReasonTooManyPodSets, Err: fmt.Errorf(
			"%s has %d replicatedJobs, but a Workload holds at most %d PodSets; refer to a runtime with fewer", admission.Describe(&j.TrainJob), n, podsets.Max)}
	}
	if j.podSets, err = podsets.Of(j.effective, j.r.features.podSets()); err != nil {
		return &admission.BlockedError{Reason: ReasonInvalidRuntime, Err: err}
	}
	if err := j.held(); err != nil {
		return err
	}
	return j.r.placement.Startable(ctx, &j.TrainJob, settings, j.effective)
}

// PodSets implements jobframework.GenericJob. A job that was running when it was loaded, and was stopped since, is
// resolved here.
func (j *job) PodSets(ctx context.Context, c client.Client) ([]kueue.PodSet, error) {
	if j.effective == nil && j.blocked == nil {
		if err := j.resolve(ctx, c); err != nil {
			return nil, err
		}
	}
	if j.blocked != nil {
		return nil, j.blocked
	}
	return j.podSets, nil
}

// ConstructComposableWorkload implements jobframework.ComposableJob.
func (j *job) ConstructComposableWorkload(ctx context.Context, c client.Client, _ events.EventRecorder, labelKeys, annotations sets.Set[string]) (*kueue.Workload, error) {
	wl, err := jobframework.ConstructWorkload(ctx, c, j, labelKeys, annotations)
	if err != nil {
		return nil, err
	}
	j.r.memory.keep(j.key(), j.UID, func(r *record) { r.workload = wl.Name })
	return wl, nil
}

// ListChildWorkloads implements jobframework.ComposableJob.
func (j *job) ListChildWorkloads(ctx context.Context, c client.Client, parent types.NamespacedName) (*kueue.WorkloadList, error) {
	var list kueue.WorkloadList
	return &list, c.List(ctx, &list, client.InNamespace(parent.Namespace), jobframework.OwnerReferenceIndexFieldMatcher(gvk, parent.Name))
}

// FindMatchingWorkloads implements jobframework.ComposableJob.
func (j *job) FindMatchingWorkloads(ctx context.Context, c client.Client, _ events.EventRecorder) (match *kueue.Workload, toDelete []*kueue.Workload, err error) {
	list, err := j.ListChildWorkloads(ctx, c, j.key())
	if err != nil {
		return nil, nil, err
	}
	if made := j.r.memory.of(j.key(), j.UID).workload; made != "" && len(list.Items) == 0 {
		// The cache doesn't show the Workload that this process has made: it is late, or the Workload was deleted.
		var wl kueue.Workload
		err := j.r.reader.Get(ctx, types.NamespacedName{Namespace: j.Namespace, Name: made}, &wl)
		if client.IgnoreNotFound(err) != nil {
			return nil, nil, err
		}
		if err == nil {
			list.Items = append(list.Items, wl)
		}
		if !wl.DeletionTimestamp.IsZero() {
			j.again = deletedDelay // a watch that missed the creation has no event for the deletion
		}
	}
	for i := range list.Items {
		wl := &list.Items[i]
		switch {
		case match == nil && j.fits(wl):
			match = wl
		default:
			used, err := j.inUse(ctx, wl)
			if err != nil {
				return nil, nil, err
			}
			if !used {
				toDelete = append(toDelete, wl)
			}
		}
	}
	j.matched, j.foundFinished = match, match != nil && workloadfinish.IsFinished(match)
	return match, toDelete, nil
}

// fits tells whether a Workload is this job's and up to date with it. A job that runs fits by its ownership alone: what
// it was admitted with can't change while it runs, and neither an edited nor a deleted runtime may stop it.
func (j *job) fits(wl *kueue.Workload) bool {
	if !metav1.IsControlledBy(wl, &j.TrainJob) {
		return false
	}
	if workload.HasQuotaReservation(wl) && j.IsActive() {
		return true // whatever has changed, its quota is in use
	}
	if !workload.IsActive(wl) {
		return true // another in its place would be active: the TrainJob that somebody has stopped would run
	}
	if !ptr.Equal(wl.Spec.MaximumExecutionTimeSeconds, jobframework.MaximumExecutionTimeSeconds(j)) {
		return false
	}
	if hasEnded(&j.TrainJob) || !j.IsSuspended() || j.blocked != nil {
		return true
	}
	return podsets.Equal(j.podSets, wl.Spec.PodSets)
}

// letEarlierGo removes the finalizer from Workloads of earlier TrainJobs of the same name when the last of their pods has
// ended. This TrainJob may be one that Kueue doesn't manage: nobody else looks after them.
func (j *job) letEarlierGo(ctx context.Context, c client.Client) error {
	var workloads kueue.WorkloadList // the cache's own: read only
	if err := c.List(ctx, &workloads, client.InNamespace(j.Namespace), jobframework.OwnerReferenceIndexFieldMatcher(gvk, j.Name), client.UnsafeDisableDeepCopy); err != nil {
		return err
	}
	for i := range workloads.Items {
		wl := &workloads.Items[i]
		if metav1.IsControlledBy(wl, &j.TrainJob) || wl.DeletionTimestamp.IsZero() || !controllerutil.ContainsFinalizer(wl, kueue.ResourceInUseFinalizerName) {
			continue
		}
		if used, err := j.inUse(ctx, wl); err != nil {
			return err
		} else if used {
			continue
		}
		after := wl.DeepCopy()
		controllerutil.RemoveFinalizer(after, kueue.ResourceInUseFinalizerName)
		if err := c.Patch(ctx, after, client.MergeFromWithOptions(wl, client.MergeFromWithOptimisticLock{})); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("letting Workload %s go: %w", workload.Key(wl), err)
		}
	}
	return nil
}

// inUse reports whether a Workload stands for pods of an earlier TrainJob of the same name, which have not ended.
func (j *job) inUse(ctx context.Context, wl *kueue.Workload) (bool, error) {
	if metav1.IsControlledBy(wl, &j.TrainJob) || workloadfinish.IsFinished(wl) || !workload.HasQuotaReservation(wl) {
		return false, nil
	}
	js, err := j.r.jobSets.Of(ctx, &j.TrainJob)
	if err != nil {
		return false, err
	}
	named := &api.TrainJob{} // a JobSet that is there may still be the earlier one's
	named.Namespace, named.Name = j.Namespace, j.Name
	present, err := j.r.jobSets.Left(ctx, named)
	if err != nil {
		return false, err
	}
	earlier := func(uid types.UID) bool { return js == nil || uid != js.UID }
	if present != nil && earlier(present.UID) {
		j.again = deletedDelay // JobSet may create its Jobs until the garbage collector deletes it
		return true, nil
	}
	ended, err := j.r.pods.JobsEnded(ctx, j.key(), earlier)
	if err != nil {
		return false, err
	}
	pods, err := j.r.pods.RunningNow(ctx, j.key(), "", present)
	used := !ended || slices.ContainsFunc(pods, func(p corev1.Pod) bool { return earlier(types.UID(p.Labels[jobset.JobSetUIDKey])) })
	if used {
		j.again = deletedDelay
	}
	return used, err
}

// EquivalentToWorkload implements jobframework.ComposableJob.
func (j *job) EquivalentToWorkload(_ context.Context, _ client.Client, wl *kueue.Workload) (bool, error) {
	if !j.fits(wl) {
		return false, nil
	}
	j.matched, j.foundFinished = wl, workloadfinish.IsFinished(wl)
	return true, nil
}

// EnsureWorkloadOwnedByAllMembers implements jobframework.ComposableJob for prebuilt Workloads.
func (j *job) EnsureWorkloadOwnedByAllMembers(ctx context.Context, c client.Client, _ events.EventRecorder, wl *kueue.Workload) error {
	return jobframework.EnsurePrebuiltWorkloadOwnership(ctx, c, wl, &j.TrainJob)
}

// ForEach implements jobframework.ComposableJob.
func (j *job) ForEach(f func(runtime.Object)) { f(&j.TrainJob) }

// errStillRunning keeps a deleted Workload, and so its quota, until the last of the job's pods is gone.
var errStillRunning = errors.New("pods of the TrainJob have not ended")

// Stop implements jobframework.ComposableJob: it suspends, once. The entry stays until no pod is left.
func (j *job) Stop(ctx context.Context, _ client.Client, _ []podset.PodSetInfo, reason jobframework.StopReason, _ string) ([]client.Object, error) {
	var stoppedNow []client.Object
	if !j.IsSuspended() && !hasEnded(&j.TrainJob) {
		if err := j.r.writer.Suspend(ctx, &j.TrainJob); err != nil {
			return nil, fmt.Errorf("suspending: %w", err)
		}
		j.stopped = true
		j.countEviction(reason)
		stoppedNow = []client.Object{&j.TrainJob}
	}
	if reason == jobframework.StopReasonWorkloadDeleted && j.IsActive() {
		return stoppedNow, errStillRunning
	}
	return stoppedNow, nil
}

// Finalize implements jobframework.JobWithFinalize: it notes that the job was declared finished.
func (j *job) Finalize(ctx context.Context, _ client.Client) error {
	finished := hasEnded(&j.TrainJob)
	if !finished && j.foundFinished && !j.IsSuspended() && j.DeletionTimestamp.IsZero() {
		// Its end was declared and its quota given away, but Trainer v2.3.0 runs a failed job again whose JobSet was
		// deleted (trainer#3737).
		return j.r.writer.Suspend(ctx, &j.TrainJob)
	}
	if finished && j.matched != nil && !j.foundFinished {
		j.r.memory.keep(j.key(), j.UID, func(r *record) { r.finished = j.r.clock.Now() })
	}
	return nil
}
