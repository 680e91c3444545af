package integration

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/go-logr/logr"
	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueueconfig "sigs.k8s.io/kueue/apis/config/v1beta2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	schdcache "sigs.k8s.io/kueue/pkg/cache/scheduler"
	"sigs.k8s.io/kueue/pkg/controller/jobframework"
	"sigs.k8s.io/kueue/pkg/features"
	clientutil "sigs.k8s.io/kueue/pkg/util/client"
	"sigs.k8s.io/kueue/pkg/workload"
	workloadfinish "sigs.k8s.io/kueue/pkg/workload/finish"

	"github.com/signalbox-dev/signalbox/admission"
	configapi "github.com/signalbox-dev/signalbox/api/config/v1alpha1"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides"
	"github.com/signalbox-dev/signalbox/podsets"
)

// gates are Kueue's feature gates that we depend on, read once: they can't change while a process runs.
type gates struct {
	topologyAware, multiLayerTopology, queueLabels bool
	claimsCounted                                  bool // or refused
}

func readGates() gates {
	return gates{
		topologyAware:      features.Enabled(features.TopologyAwareScheduling),
		multiLayerTopology: features.Enabled(features.TASMultiLayerTopology),
		queueLabels:        features.Enabled(features.AssignQueueLabelsForPods),
		claimsCounted:      features.Enabled(features.KueueDRAIntegration) || features.Enabled(features.KueueDRARejectWorkloadsWhenDRADisabled),
	}
}

func (g gates) podSets() podsets.Features {
	return podsets.Features{TopologyAware: g.topologyAware, MultiLayerTopology: g.multiLayerTopology}
}

func (g gates) admission() admission.Features {
	return admission.Features{TopologyAware: g.topologyAware, QueueLabels: g.queueLabels}
}

// memoized is how many bytes of what TrainJobs run are kept, so that the same is computed once: it is tens of kilobytes for
// most, and an eighth of the memory that the chart gives to a manager.
const memoized = 64 << 20

// Reconciler keeps TrainJobs and their Workloads in step.
type Reconciler struct {
	client   client.Client
	reader   client.Reader // reads from the API server itself
	recorder events.EventRecorder
	writer   *admission.Writer
	jobSets  *admission.JobSets
	pods     *admission.Pods
	// bundled tells that the Trainer is ours: it makes nothing before a TrainJob starts, and leaves nothing of one that was
	// stopped.
	bundled   bool
	installed *Installed
	clock     clock.Clock
	features  gates
	memory    *memory
	crowds    *crowds
	memo      *overrides.Memo
	jobs      *jobframework.JobReconciler

	manageAll  bool
	selector   labels.Selector
	ownerKinds []schema.GroupVersionKind // that may own TrainJobs
	ownerUsers []string                  // that may create TrainJobs which these own

	placement Placement
	limits    overrides.Limits
	// podsWithin is after how long a started TrainJob without pods gives its quota back.
	podsWithin time.Duration
}

// Placement knows what keeps a TrainJob from having pods once it is admitted.
type Placement interface {
	// Startable refuses, by an *admission.BlockedError, a TrainJob that asks for what can't be had here. runtime is its
	// runtime, with what the runtime's annotations say among those of its template; effective what it runs of it.
	Startable(ctx context.Context, job *api.TrainJob, runtime *trainerapi.TrainingRuntimeSpec, effective *overrides.Effective) error
}

// NewReconciler returns a Reconciler. reader must not be a cache. installed knows the Trainer, which may be Signalbox's own.
func NewReconciler(c client.Client, reader client.Reader, writer *admission.Writer, jobSets *admission.JobSets, pods *admission.Pods, recorder events.EventRecorder, config *configapi.Kueue, limits overrides.Limits, podsWithin time.Duration, installed *Installed, placement Placement, clk clock.Clock) (*Reconciler, error) {
	selector, err := metav1.LabelSelectorAsSelector(config.ManagedJobsNamespaceSelector)
	if err != nil {
		return nil, fmt.Errorf("kueue.managedJobsNamespaceSelector: %w", err)
	}
	var ownerKinds []schema.GroupVersionKind
	for i, kind := range config.OwnerKinds {
		parsed, _ := schema.ParseKindArg(kind)
		if parsed == nil {
			return nil, fmt.Errorf("kueue.ownerKinds[%d] is %q; write Kind.version.group", i, kind)
		}
		ownerKinds = append(ownerKinds, *parsed)
	}
	options := []jobframework.Option{
		jobframework.WithManageJobsWithoutQueueName(config.ManageJobsWithoutQueueName),
		jobframework.WithManagedJobsNamespaceSelector(selector),
		jobframework.WithLabelKeysToCopy(sets.New(config.LabelKeysToCopy...)),
		jobframework.WithClock(clk),
		jobframework.WithCache(schdcache.New(c)), // jobframework asks it which LocalQueues have metrics of their own
	}
	if config.WaitForPodsReady {
		options = append(options, jobframework.WithWaitForPodsReady(&kueueconfig.WaitForPodsReady{}))
	}
	if config.AfterDeactivated != nil {
		options = append(options, jobframework.WithObjectRetentionPolicies(&kueueconfig.ObjectRetentionPolicies{
			Workloads: &kueueconfig.WorkloadRetentionPolicy{AfterDeactivatedByKueue: config.AfterDeactivated},
		}))
	}
	told, bundled := recorder, installed.Dialect().Bundled
	if bundled {
		told = briefly{recorder}
	}
	countFromZero(installed.Dialect())
	return &Reconciler{
		client: c, reader: reader, recorder: recorder, writer: writer, jobSets: jobSets, pods: pods, bundled: bundled, installed: installed, clock: clk,
		features: readGates(), memory: newMemory(), crowds: newCrowds(), memo: overrides.NewMemo(memoized), jobs: jobframework.NewReconciler(c, told, options...),
		manageAll: config.ManageJobsWithoutQueueName, selector: selector, ownerKinds: ownerKinds, ownerUsers: config.OwnerIdentities, placement: placement, limits: limits, podsWithin: podsWithin,
	}, nil
}

// briefly leaves out the events of jobframework that say what a TrainJob of the bundled Trainer has among its conditions:
// that it is queued, that it was started, and that it has finished.
type briefly struct{ events.EventRecorder }

func (b briefly) Eventf(regarding, related runtime.Object, eventtype, reason, action, note string, args ...any) {
	switch reason {
	case jobframework.ReasonCreatedWorkload, jobframework.ReasonStarted, jobframework.ReasonFinishedWorkload:
		return
	}
	b.EventRecorder.Eventf(regarding, related, eventtype, reason, action, note, args...)
}

// Reconcile implements reconcile.Reconciler.
func (r *Reconciler) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	j := &job{r: r, dialect: r.installed.Dialect()}
	result, err := r.jobs.ReconcileGenericJob(ctx, request, j)
	if blocked := (*admission.BlockedError)(nil); errors.As(err, &blocked) || errors.Is(err, errStillRunning) {
		err = nil // said by the condition, or by its pods; what lifts it brings the TrainJob back
	}
	if err != nil {
		return result, err
	}
	if j.late {
		return reconcile.Result{RequeueAfter: time.Second}, nil // the version that we wrote comes before that
	}
	j.countReady(ctx)
	if j.UID == "" || j.skip || !j.DeletionTimestamp.IsZero() || r.writer.Behind(&j.TrainJob) {
		return j.later(result), nil // nothing to do, or started or stopped since it was read
	}
	err = r.report(ctx, j)
	if err == nil {
		err = r.giveBack(ctx, j)
	}
	if err == nil {
		err = r.deactivate(ctx, j)
	}
	if err := errors.Join(err, r.tidy(ctx, j)); apierrors.IsConflict(err) {
		ctrl.LoggerFrom(ctx).V(1).Info("Decided on an outdated object, trying again", "reason", err.Error())
		return reconcile.Result{RequeueAfter: admission.ConflictDelay}, nil
	} else if err != nil {
		return result, err
	}
	if j.blocked != nil && j.blocked.RetryAfter > 0 {
		result.RequeueAfter, result.Priority = j.blocked.RetryAfter, ptr.To(0)
	}
	if j.waiting != "" {
		ctrl.LoggerFrom(ctx).V(2).Info("Admitted, waiting to start", "for", j.waiting)
		result.RequeueAfter = settleTimeout
	}
	return j.later(result), nil
}

// later brings a result forward to when the job is to be looked at again.
func (j *job) later(result reconcile.Result) reconcile.Result {
	if j.again > 0 && (result.RequeueAfter == 0 || j.again < result.RequeueAfter) {
		return reconcile.Result{RequeueAfter: j.again, Priority: ptr.To(laterPriority)}
	}
	return result
}

// manages tells whether Kueue manages the TrainJob, in jobframework's terms.
func (r *Reconciler) manages(ctx context.Context, trainJob *api.TrainJob) (bool, error) {
	if !r.manageAll && jobframework.QueueNameForObject(trainJob) == "" {
		return false, nil
	}
	var namespace corev1.Namespace
	if err := r.client.Get(ctx, client.ObjectKey{Name: trainJob.Namespace}, &namespace); err != nil {
		return false, client.IgnoreNotFound(err)
	}
	if !r.selector.Matches(labels.Set(namespace.Labels)) {
		return false, nil
	}
	ancestor, err := jobframework.FindAncestorJobManagedByKueue(ctx, r.client, trainJob, r.manageAll)
	return ancestor == nil, err
}

// report keeps the conditions Blocked and StopOverdue of a TrainJob, with an event when one comes.
func (r *Reconciler) report(ctx context.Context, j *job) error {
	before := &j.TrainJob
	has := func(name string) bool { return apimeta.FindStatusCondition(j.Status.Conditions, name) != nil }
	if j.blocked != nil || len(j.pods) > 0 || has(api.ConditionBlocked) || has(api.ConditionStopOverdue) {
		before = j.TrainJob.DeepCopy() // it may be about to change
	}
	changed := r.reportStop(j)
	if j.blocked == nil {
		changed = apimeta.RemoveStatusCondition(&j.Status.Conditions, api.ConditionBlocked) || changed
	} else if apimeta.SetStatusCondition(&j.Status.Conditions, metav1.Condition{
		Type: api.ConditionBlocked, Status: metav1.ConditionTrue, Reason: j.blocked.Reason, Message: j.blocked.Error(), ObservedGeneration: j.Generation,
	}) {
		changed = true
		r.recorder.Eventf(&j.TrainJob, nil, corev1.EventTypeWarning, j.blocked.Reason, "Queueing", "%s", admission.Note(j.blocked.Error()))
	}
	if !changed {
		return nil
	}
	if err := r.writer.Status(ctx, before, &j.Status.TrainJobStatus, nil); err != nil {
		return client.IgnoreNotFound(fmt.Errorf("writing the conditions: %w", err))
	}
	return nil
}

// tidy does what a suspended TrainJob needs beside jobframework's steps.
func (r *Reconciler) tidy(ctx context.Context, j *job) error {
	if !j.IsSuspended() || j.blocked != nil || j.runtime == nil {
		return nil // nothing to do, or nothing known
	}
	if err := r.release(ctx, j); err != nil {
		return err
	}
	if j.stale {
		return r.dropSnapshot(ctx, j)
	}
	if j.record != nil {
		return r.migrate(ctx, j)
	}
	if j.own() == nil && !r.bundled {
		return r.dropOutdated(ctx, j)
	}
	if admission.IsNeutral(j.own()) {
		return nil
	}
	if clear, err := j.clearable(); err != nil || !clear {
		return err
	}
	if err := r.writer.Clear(ctx, j.dialect, &j.TrainJob); err != nil {
		return fmt.Errorf("clearing the entry of the last admission: %w", err)
	}
	return nil
}

// migrate brings what a TrainJob said to a Trainer of before into the way in which the present one takes it. It is done
// while nothing runs: only then may entries change. The present Trainer can't stop a JobSet that the one before has made:
// without what the TrainJob said, it would have to change what is immutable. So the JobSet is deleted, and made anew.
func (r *Reconciler) migrate(ctx context.Context, j *job) error {
	if j.IsActive() {
		if j.jobSet == nil || ptr.Deref(j.jobSet.Spec.Suspend, false) || !j.jobSet.DeletionTimestamp.IsZero() {
			return nil
		}
		return r.dropJobSet(ctx, j, metav1.DeletePropagationForeground)
	}
	m, err := j.dialect.Migrate(&j.TrainJob, j.record, metav1.NewTime(r.clock.Now()))
	if err != nil {
		return fmt.Errorf("bringing spec.%s to spec.%s: %w", j.record.Field, j.dialect.Field, err)
	}
	if err := r.writer.Migrate(ctx, j.dialect, &j.TrainJob, m); err != nil {
		return fmt.Errorf("bringing spec.%s to spec.%s: %w", j.record.Field, j.dialect.Field, err)
	}
	if len(j.record.Users) > 0 {
		r.recorder.Eventf(&j.TrainJob, nil, corev1.EventTypeNormal, "OverridesMigrated", "Queueing", "The CRD is another's now: what spec.%s said is in spec.%s, for %s", j.record.Field, j.dialect.Field, j.dialect.Name)
	}
	return nil
}

// dropSnapshot makes Trainer pin the runtime anew for a TrainJob that waits and has never run: it follows an edit of its
// runtime until it is admitted.
func (r *Reconciler) dropSnapshot(ctx context.Context, j *job) error {
	object := j.pinned.object
	if err := r.client.Delete(ctx, object, client.Preconditions{UID: &object.UID, ResourceVersion: &object.ResourceVersion}); err != nil {
		return client.IgnoreNotFound(fmt.Errorf("deleting the outdated runtime snapshot: %w", err))
	}
	snapshotsDropped.Inc()
	r.recorder.Eventf(&j.TrainJob, nil, corev1.EventTypeNormal, "RuntimeChanged", "Queueing", "%s was edited; the TrainJob, which has not run yet, follows it", admission.Describe(&j.TrainJob))
	if j.jobSet == nil {
		return nil
	}
	return r.dropJobSet(ctx, j, metav1.DeletePropagationBackground)
}

// dropOutdated deletes the JobSet of a TrainJob that has never run, where it was built from an earlier runtime or from
// earlier entries and can't be brought up to date; Trainer builds it anew. It is done once for each state of the two: a
// JobSet that differs even when it was built anew was changed by somebody else.
func (r *Reconciler) dropOutdated(ctx context.Context, j *job) error {
	if j.jobSet == nil {
		return nil
	}
	older := j.pinned != nil && j.jobSet.CreationTimestamp.Before(&j.pinned.object.CreationTimestamp)
	if !older && admission.CanFit(j.jobSet, j.effective) {
		return nil
	}
	state := fmt.Sprintf("generation %d", j.Generation)
	if j.pinned != nil {
		state += fmt.Sprintf(", snapshot %s", j.pinned.object.UID)
	}
	if r.memory.of(j.key(), j.UID).rebuilt == state {
		return nil
	}
	if err := r.dropJobSet(ctx, j, metav1.DeletePropagationBackground); err != nil {
		return err
	}
	r.memory.keep(j.key(), j.UID, func(rec *record) { rec.rebuilt = state })
	return nil
}

func (r *Reconciler) dropJobSet(ctx context.Context, j *job, propagation metav1.DeletionPropagation) error {
	err := r.client.Delete(ctx, j.jobSet, client.PropagationPolicy(propagation), client.Preconditions{UID: &j.jobSet.UID})
	if err != nil {
		return client.IgnoreNotFound(fmt.Errorf("deleting the JobSet of the earlier runtime: %w", err))
	}
	return nil
}

// release lets a Workload queue again that was put on hold while its TrainJob was blocked.
func (r *Reconciler) release(ctx context.Context, j *job) error {
	wl := j.matched
	if wl == nil || !workload.IsOnHold(wl) {
		return nil
	}
	err := clientutil.PatchStatus(ctx, r.client, wl, func() (bool, error) {
		reason := workload.UnadmittedWorkloadReasonWithFallback(kueue.WorkloadQuotaReservedReasonPendingEvaluation, "Pending")
		return workload.UnsetQuotaReservationWithCondition(wl, reason, "The TrainJob is no longer blocked", r.clock.Now()), nil
	})
	return client.IgnoreNotFound(err)
}

// runtimeIndex finds the TrainJobs that refer to a runtime.
const runtimeIndex = "spec.runtimeRef"

// controllerName is the controller's in logs and metrics.
const controllerName = "trainjob"

func runtimeKey(kind, name string) string { return kind + "/" + name }

// Next is what is run after each reconcile of a TrainJob.
type Next interface {
	// ReconcileAfter looks at the same TrainJob. failed tells that the reconcile before has failed: what may have to be
	// stopped must not be started.
	ReconcileAfter(ctx context.Context, request reconcile.Request, failed bool) (reconcile.Result, error)
	// Changed sends TrainJobs that are to be looked at again.
	Changed() <-chan event.GenericEvent
}

// SetupWithManager registers the controller, its indexes and its watches. next, where it is not nil, is run after each
// reconcile of a TrainJob: one queue for both means that they never write the same TrainJob at the same time.
func (r *Reconciler) SetupWithManager(ctx context.Context, mgr ctrl.Manager, concurrency int, next Next) error {
	for _, kind := range append(slices.Clone(r.ownerKinds), gvk) {
		if err := jobframework.SetupWorkloadOwnerIndex(ctx, mgr.GetFieldIndexer(), kind); err != nil {
			return err
		}
	}
	err := mgr.GetFieldIndexer().IndexField(ctx, &corev1.Pod{}, admission.PodIndex, admission.PodIndexOf)
	if err != nil {
		return err
	}
	err = mgr.GetFieldIndexer().IndexField(ctx, &api.TrainJob{}, runtimeIndex, func(o client.Object) []string {
		ref := o.(*api.TrainJob).Spec.RuntimeRef
		return []string{runtimeKey(ptr.Deref(ref.Kind, ""), ref.Name)}
	})
	if err != nil {
		return err
	}
	if err := collect(mgr, overduePods{mgr.GetClient(), r.clock}); err != nil {
		return err
	}
	if r.bundled { // another's status doesn't say
		if err := collect(mgr, states{mgr.GetClient()}); err != nil {
			return err
		}
	}
	owner := holdersFirst{handler.EnqueueRequestForOwner(mgr.GetScheme(), mgr.GetRESTMapper(), &api.TrainJob{}, handler.OnlyControllerOwner()), r.crowds}
	log := mgr.GetLogger().WithValues("controller", controllerName, "controllerGroup", gvk.Group, "controllerKind", gvk.Kind)
	b := ctrl.NewControllerManagedBy(mgr).
		Named(controllerName).
		WithLogConstructor(func(request *reconcile.Request) logr.Logger {
			if request == nil {
				return log
			}
			return log.WithValues(gvk.Kind, klog.KRef(request.Namespace, request.Name), "namespace", request.Namespace, "name", request.Name)
		}).
		Watches(&api.TrainJob{}, holdersFirst{&handler.EnqueueRequestForObject{}, r.crowds}).
		Watches(&kueue.Workload{}, owner).
		Watches(&jobset.JobSet{}, owner).
		Watches(&corev1.Pod{}, holdersFirst{handler.EnqueueRequestsFromMapFunc(r.jobOf), r.crowds}, builder.WithPredicates(podEnds())).
		Watches(&api.ClusterTrainingRuntime{}, holdersFirst{handler.EnqueueRequestsFromMapFunc(r.waitingJobsOf(trainerapi.ClusterTrainingRuntimeKind)), r.crowds}).
		Watches(&api.TrainingRuntime{}, holdersFirst{handler.EnqueueRequestsFromMapFunc(r.waitingJobsOf(trainerapi.TrainingRuntimeKind)), r.crowds}).
		WatchesRawSource(source.Channel(r.installed.again(ctx, r.client), &handler.EnqueueRequestForObject{})).
		WithOptions(controller.Options{MaxConcurrentReconciles: concurrency})
	if next != nil {
		b = b.WatchesRawSource(source.Channel(next.Changed(), &handler.EnqueueRequestForObject{}))
	}
	return b.Complete(reconcile.Func(func(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
		r.crowds.took(request)
		result, err := r.Reconcile(ctx, request)
		if next != nil {
			theirs, nextErr := next.ReconcileAfter(ctx, request, err != nil)
			result, err = sooner(result, theirs), errors.Join(err, nextErr)
		}
		return placed(result, err), err
	}))
}

func sooner(a, b reconcile.Result) reconcile.Result {
	if a.RequeueAfter == 0 || b.RequeueAfter > 0 && b.RequeueAfter < a.RequeueAfter {
		return b
	}
	return a
}

// podEnds passes what can end a stop: a pod that is gone or at its end.
func podEnds() predicate.Funcs {
	ended := func(o client.Object) bool { return admission.PodEnded(o.(*corev1.Pod)) }
	return predicate.Funcs{
		CreateFunc:  func(event.CreateEvent) bool { return false },
		UpdateFunc:  func(e event.UpdateEvent) bool { return ended(e.ObjectNew) && !ended(e.ObjectOld) },
		DeleteFunc:  func(event.DeleteEvent) bool { return true },
		GenericFunc: func(event.GenericEvent) bool { return false },
	}
}

// jobOf returns the TrainJob of a pod, where its end matters: quota is held for its pods alone, because it is suspended,
// finished or deleted; or the pod, in a gang, may have to be replaced.
func (r *Reconciler) jobOf(ctx context.Context, o client.Object) []reconcile.Request {
	pod := o.(*corev1.Pod)
	key := types.NamespacedName{Namespace: pod.GetNamespace(), Name: pod.Labels[jobset.JobSetNameKey]}
	request := []reconcile.Request{{NamespacedName: key}}
	if pod.Spec.SchedulingGroup != nil && pod.Status.Phase != corev1.PodSucceeded {
		return request
	}
	var trainJob api.TrainJob
	err := r.client.Get(ctx, key, &trainJob, client.UnsafeDisableDeepCopy)
	if client.IgnoreNotFound(err) != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Reading the TrainJob of a pod", "trainJob", key)
		return request
	}
	present := err == nil && trainJob.DeletionTimestamp.IsZero() && !hasEnded(&trainJob)
	if present && ptr.Deref(trainJob.Spec.Suspend, false) {
		return request
	}
	if present {
		return nil
	}
	if holds, err := r.holdsQuota(ctx, key); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Listing the Workloads of a pod's TrainJob", "trainJob", key)
	} else if !holds {
		return nil
	}
	return request
}

// holdsQuota reports whether a Workload of a TrainJob of the name holds quota.
func (r *Reconciler) holdsQuota(ctx context.Context, key types.NamespacedName) (bool, error) {
	var workloads kueue.WorkloadList
	err := r.client.List(ctx, &workloads, client.InNamespace(key.Namespace), jobframework.OwnerReferenceIndexFieldMatcher(gvk, key.Name), client.UnsafeDisableDeepCopy)
	return err != nil || slices.ContainsFunc(workloads.Items, func(wl kueue.Workload) bool {
		return !workloadfinish.IsFinished(&wl) && workload.HasQuotaReservation(&wl)
	}), err
}

// waitingJobsOf returns the suspended TrainJobs that refer to a runtime of the kind.
func (r *Reconciler) waitingJobsOf(kind string) handler.MapFunc {
	return func(ctx context.Context, rt client.Object) []reconcile.Request {
		var list api.TrainJobList
		err := r.client.List(ctx, &list, client.InNamespace(rt.GetNamespace()), client.MatchingFields{runtimeIndex: runtimeKey(kind, rt.GetName())})
		if err != nil {
			ctrl.LoggerFrom(ctx).Error(err, "Listing the TrainJobs of a runtime", "kind", kind, "name", rt.GetName())
			return nil
		}
		var requests []reconcile.Request
		for i := range list.Items {
			if ptr.Deref(list.Items[i].Spec.Suspend, false) {
				requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&list.Items[i])})
			}
		}
		return requests
	}
}

var _ reconcile.Reconciler = (*Reconciler)(nil)
