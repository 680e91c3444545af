package trainer

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	trainjobutil "github.com/kubeflow/trainer/v2/pkg/util/trainjob"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/signalbox-dev/signalbox/admission"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides"
	"github.com/signalbox-dev/signalbox/trainer/gang"
)

// fieldManager owns the children. It is Kubeflow Trainer's, so that either takes over what the other has made: an apply
// by the one takes away what the other's set and its own doesn't.
const fieldManager = "trainer"

// statusPriority is the priority, in the controller's queue, of a TrainJob of which nothing is left to do but to write its
// status: whatever else is to be done goes before it.
const statusPriority = -10

// Reconciler makes the children of TrainJobs that were started, takes away those of TrainJobs that were stopped, and
// keeps the status. It is to be run in one queue with the integration's.
type Reconciler struct {
	client   client.Client
	reader   client.Reader // reads from the API server itself
	builder  *Builder
	writer   *admission.Writer
	jobSets  *admission.JobSets
	pods     *admission.Pods
	gangs    *gang.Gangs
	recorder events.EventRecorder
	clock    clock.Clock

	mu sync.Mutex
	// changed is the TrainJobs whose status differs from what is written.
	changed map[types.NamespacedName]change
}

// change is a status that differs from what is written.
type change struct {
	since  time.Time
	others int // as many others at a time as have differed meanwhile
}

// NewReconciler returns a Reconciler. reader must not be a cache.
func NewReconciler(c client.Client, reader client.Reader, builder *Builder, writer *admission.Writer, jobSets *admission.JobSets, pods *admission.Pods, gangs *gang.Gangs, recorder events.EventRecorder, clk clock.Clock) *Reconciler {
	return &Reconciler{client: c, reader: reader, builder: builder, writer: writer, jobSets: jobSets, pods: pods, gangs: gangs, recorder: recorder, clock: clk, changed: map[types.NamespacedName]change{}}
}

// workloadIndex finds a TrainJob's Workload by the TrainJob's name.
const workloadIndex = "trainJob"

// Setup registers what the Reconciler searches by.
func (r *Reconciler) Setup(ctx context.Context, indexer client.FieldIndexer) error {
	return indexer.IndexField(ctx, &kueue.Workload{}, workloadIndex, func(o client.Object) []string {
		if owner := metav1.GetControllerOf(o); owner != nil && owner.Kind == trainerapi.TrainJobKind && owner.APIVersion == trainerapi.GroupVersion.String() {
			return []string{owner.Name}
		}
		return nil
	})
}

// Changed sends the TrainJobs whose gangs have changed.
func (r *Reconciler) Changed() <-chan event.GenericEvent { return r.gangs.Changed() }

// ReconcileAfter looks at a TrainJob after the integration has. Where that has failed, it makes nothing: the TrainJob may
// have to be stopped.
func (r *Reconciler) ReconcileAfter(ctx context.Context, request reconcile.Request, failed bool) (reconcile.Result, error) {
	var job api.TrainJob
	if err := r.client.Get(ctx, request.NamespacedName, &job); err != nil {
		r.settle(request.NamespacedName)
		r.jobSets.Forget(request.NamespacedName)
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if trainjobutil.IsManagedByExternalController(job.Upstream()) {
		return reconcile.Result{}, nil
	}
	if !job.DeletionTimestamp.IsZero() {
		return r.end(ctx, &job)
	}
	if r.writer.Behind(&job) {
		return reconcile.Result{RequeueAfter: time.Second}, nil // the version that we wrote comes before that
	}
	js, err := r.jobSets.Of(ctx, &job)
	if err != nil {
		return reconcile.Result{}, err
	}
	wl, err := r.workloadOf(ctx, &job)
	if err != nil {
		return reconcile.Result{}, err
	}
	status := statusOf(&job, js, wl, r.clock.Now())
	finished := trainjobutil.IsTrainJobFinished(&trainerapi.TrainJob{Status: *status})
	// What keeps the gangs from being in step keeps nothing else back, above all no stop and no end.
	again, gangErr := r.keepGangs(ctx, &job, js, status)
	stopping := !finished && js != nil && js.DeletionTimestamp.IsZero() && ptr.Deref(job.Spec.Suspend, false)
	result, err := r.writeStatus(ctx, &job, status, wl, stopping)
	if err != nil {
		return result, errors.Join(err, gangErr)
	}
	result = sooner(result, again)
	switch {
	case stopping:
		r.removeSideObjects(ctx, &job)
		err = r.remove(ctx, js)
	case finished && js != nil && js.DeletionTimestamp.IsZero() && overdue(status):
		err = r.remove(ctx, js)
	case !finished && js == nil && !failed && !ptr.Deref(job.Spec.Suspend, false) && !ofAnother(&job):
		err = r.make(ctx, &job)
	}
	if apierrors.IsConflict(err) || unseen(&job, err, r.clock.Now()) {
		ctrl.LoggerFrom(ctx).V(1).Info("Too early, trying again", "reason", err.Error())
		return reconcile.Result{RequeueAfter: admission.ConflictDelay}, gangErr
	}
	if blocked := (*admission.BlockedError)(nil); errors.As(err, &blocked) {
		result, err = sooner(result, blocked.RetryAfter), nil // nobody queues it, or it would not have been started; an event says why
	}
	if end, limited := deadline(&job, status); limited && !finished && err == nil {
		result = sooner(result, max(end.Sub(r.clock.Now()), 0)+time.Millisecond)
	}
	return result, errors.Join(err, gangErr)
}

// end deletes the JobSet of a TrainJob that is being deleted and that a finalizer keeps: nothing of it is to run on.
func (r *Reconciler) end(ctx context.Context, job *api.TrainJob) (reconcile.Result, error) {
	js, err := r.jobSets.Of(ctx, job)
	if err != nil || js == nil || !js.DeletionTimestamp.IsZero() {
		return reconcile.Result{}, err
	}
	if err := r.remove(ctx, js); apierrors.IsConflict(err) {
		return reconcile.Result{RequeueAfter: admission.ConflictDelay}, nil
	} else if err != nil {
		return reconcile.Result{}, err
	}
	return reconcile.Result{}, nil
}

// sooner brings a result's time forward; 0 is no time.
func sooner(result reconcile.Result, after time.Duration) reconcile.Result {
	if after > 0 && (result.RequeueAfter == 0 || after < result.RequeueAfter) {
		return reconcile.Result{RequeueAfter: after}
	}
	return result
}

// keepGangs brings the gangs in step with the TrainJob, and its status in step with them. They go when its end has been
// written: what became of them is written with it.
func (r *Reconciler) keepGangs(ctx context.Context, job *api.TrainJob, js *jobset.JobSet, status *trainerapi.TrainJobStatus) (again time.Duration, err error) {
	var pods []corev1.Pod
	finished := trainjobutil.IsTrainJobFinished(job.Upstream())
	running := !finished && !ptr.Deref(job.Spec.Suspend, false)
	if running && js != nil && gang.Has(js) {
		if pods, err = r.pods.Named(ctx, js); err != nil {
			return 0, err
		}
	}
	condition, again, err := r.gangs.Keep(ctx, job, js, pods, running)
	switch {
	case err != nil || finished:
	case condition != nil:
		set(status, *condition)
		observe(status, job)
	case !running:
		apimeta.RemoveStatusCondition(&status.Conditions, api.ConditionGangScheduled)
	}
	return again, err
}

// ofAnother tells whether a TrainJob was started for another Trainer, with an entry that ours doesn't read. The integration
// stops it, and starts it anew.
func ofAnother(job *api.TrainJob) bool {
	record, err := overrides.RecordOf(job)
	return err == nil && overrides.Bundled.Foreign(record)
}

// overdue tells whether the TrainJob has failed by its deadline, which nobody has told its JobSet.
func overdue(status *trainerapi.TrainJobStatus) bool {
	for _, c := range status.Conditions {
		if c.Type == trainerapi.TrainJobFailed && c.Status == metav1.ConditionTrue && c.Reason == trainerapi.TrainJobDeadlineExceededReason {
			return true
		}
	}
	return false
}

// workloadOf returns the TrainJob's Workload as the cache has it; it must not be changed.
func (r *Reconciler) workloadOf(ctx context.Context, job *api.TrainJob) (*kueue.Workload, error) {
	var list kueue.WorkloadList
	if err := r.client.List(ctx, &list, client.InNamespace(job.Namespace), client.MatchingFields{workloadIndex: job.Name}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("listing the TrainJob's Workloads: %w", err)
	}
	for i := range list.Items {
		if wl := &list.Items[i]; metav1.IsControlledBy(wl, job) && wl.DeletionTimestamp.IsZero() {
			return wl, nil
		}
	}
	return nil, nil
}

// writeStatus writes a changed status: at once where it is urgent or must be written before something is done, else
// together with what changes in the time of joinDelay.
func (r *Reconciler) writeStatus(ctx context.Context, job *api.TrainJob, status *trainerapi.TrainJobStatus, wl *kueue.Workload, now bool) (reconcile.Result, error) {
	key := client.ObjectKeyFromObject(job)
	if equality.Semantic.DeepEqual(&job.Status.TrainJobStatus, status) {
		r.settle(key)
		return reconcile.Result{}, nil
	}
	waited, others := r.waited(key)
	if left := delayOf(&job.Status.TrainJobStatus, status, others) - waited; left > 0 && !now {
		return reconcile.Result{RequeueAfter: left, Priority: ptr.To(statusPriority)}, nil
	}
	if err := r.writer.Status(ctx, job, status, map[string]any{"flavor": flavorOf(wl)}); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(fmt.Errorf("writing the status: %w", err))
	}
	r.settle(key)
	if c := apimeta.FindStatusCondition(status.Conditions, api.ConditionGangScheduled); c != nil && c.Status == metav1.ConditionFalse && !apimeta.IsStatusConditionFalse(job.Status.Conditions, c.Type) {
		r.recorder.Eventf(job, nil, corev1.EventTypeWarning, "GangUnschedulable", "Scheduling", "%s", admission.Note(c.Message))
	}
	return reconcile.Result{}, nil
}

// waited is for how long a change of status has been waiting, and how many others at a time have been, meanwhile: a crowd that
// gets less is about to be through, which is no reason to tell now what its last are still waiting for.
func (r *Reconciler) waited(key types.NamespacedName) (time.Duration, int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c, known := r.changed[key]
	if !known {
		c.since = r.clock.Now()
	}
	others := len(r.changed)
	if known {
		others--
	}
	c.others = max(c.others, others)
	r.changed[key] = c
	return r.clock.Since(c.since), c.others
}

func (r *Reconciler) settle(key types.NamespacedName) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.changed, key)
}

// remove deletes a JobSet, which stays until the last of its pods is gone: as long as it is there, something may run.
func (r *Reconciler) remove(ctx context.Context, js *jobset.JobSet) error {
	// In the version that was looked at: its next may say that it has come to its end.
	err := r.client.Delete(ctx, js, client.PropagationPolicy(metav1.DeletePropagationForeground), client.Preconditions{UID: &js.UID, ResourceVersion: &js.ResourceVersion})
	if err != nil {
		return client.IgnoreNotFound(fmt.Errorf("deleting the JobSet: %w", err))
	}
	return nil
}

// removeSideObjects deletes what was made beside the JobSet of a TrainJob that stops; it is made anew with the next. What
// keeps it from that is no reason to let the TrainJob run on: its side objects go with the TrainJob at the latest.
func (r *Reconciler) removeSideObjects(ctx context.Context, job *api.TrainJob) {
	log := ctrl.LoggerFrom(ctx).WithValues("trainJob", client.ObjectKeyFromObject(job))
	spec, _, err := r.runtimeOf(ctx, job)
	if err != nil {
		log.Error(err, "Can't tell the side objects of a TrainJob that stops; they stay until it is deleted")
		return
	}
	objects, err := r.builder.SideObjects(ctx, job, spec)
	if err != nil {
		log.Error(err, "Can't tell the side objects of a TrainJob that stops; they stay until it is deleted")
		return
	}
	for _, o := range objects {
		if err := r.removeSideObject(ctx, job, o); client.IgnoreNotFound(err) != nil {
			log.Error(err, "Deleting a side object; it stays until the TrainJob is deleted", "kind", o.GetKind(), "name", o.GetName())
		}
	}
}

func (r *Reconciler) removeSideObject(ctx context.Context, job *api.TrainJob, o client.Object) error {
	if isSecret(o) {
		return r.client.Delete(ctx, o) // nobody reads Secrets; that it is a TrainJob's is for a policy of the chart to hold
	}
	there := &metav1.PartialObjectMetadata{}
	there.SetGroupVersionKind(o.GetObjectKind().GroupVersionKind())
	if err := r.reader.Get(ctx, client.ObjectKeyFromObject(o), there); err != nil || !metav1.IsControlledBy(there, job) {
		return err
	}
	return r.client.Delete(ctx, there, client.Preconditions{UID: &there.UID})
}

func isSecret(o client.Object) bool {
	return o.GetObjectKind().GroupVersionKind() == corev1.SchemeGroupVersion.WithKind("Secret")
}

// create creates a side object of a TrainJob. One of the name that is there already is deleted where it is the TrainJob's
// own, of an earlier start, and is an error where it is not: nothing of anybody else is taken over.
func (r *Reconciler) create(ctx context.Context, job *api.TrainJob, o *unstructured.Unstructured) error {
	err := r.client.Create(ctx, o.DeepCopy(), client.FieldOwner(fieldManager))
	if !apierrors.IsAlreadyExists(err) {
		return err
	}
	taken := fmt.Errorf("there is a %s %s/%s already that is not the TrainJob's; delete it, or create the TrainJob by another name", o.GetKind(), o.GetNamespace(), o.GetName())
	if isSecret(o) {
		if err := r.client.Delete(ctx, o.DeepCopy()); apierrors.IsForbidden(err) {
			return errors.Join(taken, err)
		} else if client.IgnoreNotFound(err) != nil {
			return err
		}
		return r.client.Create(ctx, o, client.FieldOwner(fieldManager))
	}
	there := &metav1.PartialObjectMetadata{}
	there.SetGroupVersionKind(o.GroupVersionKind())
	if err := r.reader.Get(ctx, client.ObjectKeyFromObject(o), there); err != nil {
		return err
	}
	if !metav1.IsControlledBy(there, job) {
		return taken
	}
	if err := r.client.Delete(ctx, there, client.Preconditions{UID: &there.UID}); client.IgnoreNotFound(err) != nil {
		return err
	}
	return r.client.Create(ctx, o, client.FieldOwner(fieldManager))
}

// make makes the children of a TrainJob that was started, the JobSet last.
func (r *Reconciler) make(ctx context.Context, job *api.TrainJob) error {
	spec, pinned, err := r.runtimeOf(ctx, job)
	if err == nil && !pinned {
		pin, err := overrides.Pin(spec)
		if err != nil {
			return err
		}
		return r.writer.Pin(ctx, job, pin) // the change brings the TrainJob back
	}
	if err == nil {
		err = r.apply(ctx, job, spec)
	}
	if err != nil && !apierrors.IsConflict(err) && !unseen(job, err, r.clock.Now()) {
		r.recorder.Eventf(job, nil, corev1.EventTypeWarning, "TrainJobResourcesCreationFailed", "Reconciling", "TrainJob resources reconciliation failed: %s", admission.Note(err.Error()))
	}
	return err
}

// unseenFor is how long after its creation a TrainJob may be unknown to the webhooks of others.
const unseenFor = 10 * time.Second

// unseen tells whether the JobSet was refused for a TrainJob that the cache of a webhook doesn't have yet: Kueue's for JobSets
// looks its owner up. It is no failure: the next try finds it.
func unseen(job *api.TrainJob, err error, now time.Time) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) || !apierrors.IsNotFound(err) || now.Sub(job.CreationTimestamp.Time) >= unseenFor {
		return false
	}
	missing := status.Status().Details
	return missing != nil && missing.Group == trainerapi.GroupVersion.Group && missing.Name == job.Name
}

func (r *Reconciler) apply(ctx context.Context, job *api.TrainJob, spec *trainerapi.TrainingRuntimeSpec) error {
	sideObjects, js, err := r.builder.Build(ctx, job, spec)
	if err != nil {
		return err
	}
	// The cache may be late; a JobSet of before that is still there, or on its way out, must be gone first.
	var there jobset.JobSet
	if err := r.reader.Get(ctx, client.ObjectKeyFromObject(job), &there); err == nil {
		if metav1.IsControlledBy(&there, job) {
			return nil // its coming or its going brings the TrainJob back
		}
		return fmt.Errorf("there is a JobSet %s already that is not the TrainJob's; delete it, or create the TrainJob by another name", client.ObjectKeyFromObject(job))
	} else if !apierrors.IsNotFound(err) {
		return err
	}
	built, err := specOf(js)
	if err != nil {
		return err
	}
	skipped, err := r.gangs.Make(ctx, job, spec, built, js)
	if err != nil {
		return err
	}
	for _, a := range sideObjects {
		o, err := objectOf(a)
		if err != nil {
			return err
		}
		if err := r.create(ctx, job, o); err != nil {
			return fmt.Errorf("creating %s %s: %w", o.GetKind(), o.GetName(), err)
		}
	}
	o, err := objectOf(js)
	if err != nil {
		return err
	}
	if err := r.client.Create(ctx, o, client.FieldOwner(fieldManager)); err != nil {
		r.jobSets.Attempted(client.ObjectKeyFromObject(job))
		return fmt.Errorf("creating the JobSet: %w", err)
	}
	if skipped != nil {
		r.gangs.Skipped(job, skipped)
	}
	r.jobSets.Made(client.ObjectKeyFromObject(job), o.GetUID())
	ctrl.LoggerFrom(ctx).V(1).Info("Made the JobSet", "trainJob", client.ObjectKeyFromObject(job))
	return nil
}

// runtimeOf returns the runtime that the TrainJob starts on, and whether it is pinned to it: its own pin, else Kubeflow
// Trainer's, else the live runtime.
func (r *Reconciler) runtimeOf(ctx context.Context, job *api.TrainJob) (spec *trainerapi.TrainingRuntimeSpec, pinned bool, err error) {
	if spec, err = overrides.Pinned(job); err != nil || spec != nil {
		return spec, true, err
	}
	if overrides.SeenByTrainer(job) {
		if spec, _, err = admission.Snapshot(ctx, r.reader, job); err != nil || spec != nil {
			return spec, false, err
		}
	}
	live, err := admission.LiveRuntime(ctx, r.client, job)
	if err != nil {
		return nil, false, err
	}
	if live == nil {
		return nil, false, fmt.Errorf("spec.runtimeRef: there is no %s; create it, or delete this TrainJob and refer to another", admission.Describe(job))
	}
	return live.Pinnable(), false, nil
}
