package trainer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	"github.com/signalbox-dev/signalbox/admission"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides"
	"github.com/signalbox-dev/signalbox/store"
	"github.com/signalbox-dev/signalbox/store/events"
	"github.com/signalbox-dev/signalbox/trainer/gang"
)

// create creates the children of a TrainJob that was started, the JobSet last.
type create struct{}

func (create) do(ctx context.Context, r *Reconciler, o *observed) error {
	err := r.createChildren(ctx, o.job)
	pending := (*admission.PendingError)(nil)
	if err != nil && !apierrors.IsConflict(err) && !unseen(o.job, err, o.now) && !errors.As(err, &pending) {
		r.recorder.Send(o.job, events.ResourcesCreationFailed.Of(err))
	}
	return err
}

func (r *Reconciler) createChildren(ctx context.Context, job *api.TrainJob) error {
	runtime, err := r.store.Runtimes.Of(ctx, job)
	if err != nil {
		return err
	}
	if !runtime.Pinned {
		entries := overrides.EveryEntry(job)
		errs := append(r.limits.CheckSize(job, entries), r.limits.CheckRuntime(job, runtime.Spec, entries)...)
		if len(errs) > 0 {
			return &admission.BlockedError{Reason: ReasonTooLarge, RetryAfter: refusedRetry, Err: errs.ToAggregate()}
		}
		pin, err := store.Pin(runtime.Spec)
		if err != nil {
			return err
		}
		return r.store.Writer.Pin(ctx, job, pin) // the change triggers a reconcile
	}
	return r.createJobSet(ctx, job, runtime.Spec)
}

// createJobSet creates the gangs, the claims, the side objects and the JobSet.
func (r *Reconciler) createJobSet(
	ctx context.Context, job *api.TrainJob, spec *trainerapi.TrainingRuntimeSpec,
) error {
	sideObjects, js, err := r.builder.Build(ctx, job, spec)
	if err != nil {
		return err
	}
	key := client.ObjectKeyFromObject(job)
	if exists, err := r.jobSetExists(ctx, job); err != nil || exists {
		return err
	}
	built, err := specOf(js)
	if err != nil {
		return err
	}
	claims := claimsOf(job, spec)
	if slices.ContainsFunc(spec.Template.Spec.ReplicatedJobs, func(rj jobset.ReplicatedJob) bool {
		return !hasReplicatedJob(built.ReplicatedJobs, rj.Name) // it is done
	}) {
		if again, err := r.runAgain(ctx, job, claims); err != nil || again {
			return err
		}
	}
	markInitializers(js, overrides.Initializers(job, spec))
	skipped, err := r.gangs.Make(ctx, job, spec, built, js)
	if err != nil {
		return err
	}
	if err := r.createBeside(ctx, job, claims, sideObjects); err != nil {
		return err
	}
	o, err := objectOf(js)
	if err != nil {
		return err
	}
	// However it is deleted, by the garbage collector above all, its Jobs go before it and their pods before them: as
	// long as there is a pod, its owners show whose it is.
	o.SetFinalizers([]string{metav1.FinalizerDeleteDependents})
	if err := r.client.Create(ctx, o, client.FieldOwner(fieldManager)); err != nil {
		r.store.JobSets.Attempted(key)
		return fmt.Errorf("creating the JobSet: %w", err)
	}
	if skipped != nil {
		r.gangs.Skipped(job, skipped)
	}
	r.store.JobSets.Created(key, o.GetUID())
	ctrl.LoggerFrom(ctx).V(1).Info("Made the JobSet", "trainJob", key)
	return nil
}

// jobSetExists reports whether the TrainJob has a JobSet, by the API server: the cache may be stale, and a previous
// JobSet has to be gone first. One of another owner is an error.
func (r *Reconciler) jobSetExists(ctx context.Context, job *api.TrainJob) (bool, error) {
	var js jobset.JobSet
	err := r.reader.Get(ctx, client.ObjectKeyFromObject(job), &js)
	switch {
	case apierrors.IsNotFound(err):
		return false, nil
	case err != nil:
		return false, err
	case metav1.IsControlledBy(&js, job):
		return true, nil // its events trigger a reconcile
	case ofName(&js, job) && !js.DeletionTimestamp.IsZero():
		return false, going(&js, r.clock.Now())
	}
	return false, fmt.Errorf("there is a JobSet %s already that is not the TrainJob's; delete it, or create the TrainJob "+
		"by another name", client.ObjectKeyFromObject(job))
}

// ofName reports whether a JobSet is of a TrainJob of the same name, which is gone.
func ofName(js *jobset.JobSet, job *api.TrainJob) bool {
	owner := metav1.GetControllerOfNoCopy(js)
	return owner != nil && owner.Kind == trainerapi.TrainJobKind && owner.Name == job.Name
}

// goingFor is for how long the JobSet of a deleted TrainJob may terminate before that is told.
const goingFor = 10 * time.Second

// going is the error of a start that waits until the JobSet of a deleted TrainJob of the name is gone, with its pods.
// That happens whenever a TrainJob is deleted and created again at once. The deletion triggers a reconcile.
func going(js *jobset.JobSet, now time.Time) error {
	err := errors.New("the JobSet of the previous TrainJob of this name is being deleted, and its pods haven't ended; " +
		"the TrainJob gets its own then")
	if left := goingFor - now.Sub(js.DeletionTimestamp.Time); left > 0 {
		return &admission.PendingError{RetryAfter: left, Err: err}
	}
	return err
}

// unseenFor is how long after its creation a TrainJob may be unknown to the webhooks of others.
const unseenFor = 10 * time.Second

// unseen reports whether the JobSet was rejected because the cache of a webhook doesn't have the TrainJob yet: Kueue's
// for JobSets looks its owner up. It is no failure: the next attempt succeeds.
func unseen(job *api.TrainJob, err error, now time.Time) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) || !apierrors.IsNotFound(err) || now.Sub(job.CreationTimestamp.Time) >= unseenFor {
		return false
	}
	missing := status.Status().Details
	return missing != nil && missing.Group == trainerapi.GroupVersion.Group && missing.Name == job.Name
}

func isSecret(o client.Object) bool {
	return o.GetObjectKind().GroupVersionKind() == corev1.SchemeGroupVersion.WithKind("Secret")
}

// createBeside creates what the pods of a JobSet mount.
func (r *Reconciler) createBeside(
	ctx context.Context, job *api.TrainJob, claims []*corev1.PersistentVolumeClaim,
	sideObjects []runtime.ApplyConfiguration,
) error {
	if err := r.createClaims(ctx, job, claims); err != nil {
		return err
	}
	for _, a := range sideObjects {
		o, err := objectOf(a)
		if err != nil {
			return err
		}
		if err := r.createSideObject(ctx, job, o); err != nil {
			return fmt.Errorf("creating %s %s: %w", o.GetKind(), o.GetName(), err)
		}
	}
	return nil
}

// createSideObject creates a side object of a TrainJob. An existing one of the name is deleted if it is the TrainJob's
// own, of an earlier start, and is an error if it isn't: nothing of another owner is taken over.
func (r *Reconciler) createSideObject(ctx context.Context, job *api.TrainJob, o *unstructured.Unstructured) error {
	err := r.client.Create(ctx, o.DeepCopy(), client.FieldOwner(fieldManager))
	if !apierrors.IsAlreadyExists(err) {
		return err
	}
	taken := fmt.Errorf("there is a %s %s/%s already that is not the TrainJob's; delete it, or create the TrainJob by "+
		"another name", o.GetKind(), o.GetNamespace(), o.GetName())
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
	err = r.client.Delete(ctx, there, client.Preconditions{UID: &there.UID})
	if client.IgnoreNotFound(err) != nil {
		return err
	}
	return r.client.Create(ctx, o, client.FieldOwner(fieldManager))
}

// deleteSideObject deletes a side object of a TrainJob; one of another owner stays.
func (r *Reconciler) deleteSideObject(ctx context.Context, job *api.TrainJob, o client.Object) error {
	if isSecret(o) {
		return r.client.Delete(ctx, o) // Secrets can't be read; a policy of the chart rejects the deletion of others'
	}
	there := &metav1.PartialObjectMetadata{}
	there.SetGroupVersionKind(o.GetObjectKind().GroupVersionKind())
	err := r.reader.Get(ctx, client.ObjectKeyFromObject(o), there)
	if err != nil || !metav1.IsControlledBy(there, job) {
		return err
	}
	return r.client.Delete(ctx, there, client.Preconditions{UID: &there.UID})
}

// keptGangs is what the gangs report.
type keptGangs struct {
	known     bool // the gangs were kept
	condition *metav1.Condition
	again     time.Duration
}

// keepGangs updates the gangs of a TrainJob. They are deleted once its end has been written: what became of them is
// written with it.
func (r *Reconciler) keepGangs(ctx context.Context, o *observed) (kept keptGangs, err error) {
	var pods []corev1.Pod
	if o.running() && o.jobSet != nil && gang.Has(o.jobSet) {
		if pods, err = r.store.Pods.Named(ctx, o.jobSet); err != nil {
			return kept, err
		}
	}
	kept.condition, kept.again, err = r.gangs.Keep(ctx, o.job, o.jobSet, pods, o.running())
	kept.known = err == nil
	return kept, err
}
