package trainer

import (
	"context"
	"errors"
	"fmt"
	"time"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	"github.com/signalbox-dev/signalbox/admission"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides/dialect"
	"github.com/signalbox-dev/signalbox/overrides/legacy"
	"github.com/signalbox-dev/signalbox/store"
	"github.com/signalbox-dev/signalbox/store/events"
	"github.com/signalbox-dev/signalbox/trainer/status"
	"github.com/signalbox-dev/signalbox/trainer/trial"
)

// create creates the children of a TrainJob that was started, and sends an event about what fails for good.
func (r *Reconciler) create(ctx context.Context, o *observed) error {
	err := r.createChildren(ctx, o.job)
	pending := (*admission.PendingError)(nil)
	if err != nil && !apierrors.IsConflict(err) && !ownerUnknown(o.job, err, o.now) && !errors.As(err, &pending) {
		r.recorder.Send(o.job, events.ResourcesCreationFailed.Of(err))
	}
	return err
}

func (r *Reconciler) createChildren(ctx context.Context, job *api.TrainJob) error {
	runtime, err := r.Store.Runtimes.Of(ctx, job)
	if err != nil {
		return err
	}
	if !runtime.Pinned {
		entries := legacy.EveryEntry(job)
		errs := append(r.Limits.CheckSize(job, entries), r.Limits.CheckRuntime(job, runtime.Spec, entries)...)
		if len(errs) > 0 {
			return &admission.BlockedError{Reason: trial.ReasonTooLarge, RetryAfter: refusedRetry, Err: errs.ToAggregate()}
		}
		pin, err := store.Pin(runtime.Spec)
		if err != nil {
			return err
		}
		return r.Store.Writer.Pin(ctx, job, pin) // the change triggers a reconcile
	}
	return r.createJobSet(ctx, job, runtime.Spec)
}

// createJobSet creates the gangs, the claims, the side objects and the JobSet.
func (r *Reconciler) createJobSet(
	ctx context.Context, job *api.TrainJob, spec *trainerapi.TrainingRuntimeSpec,
) error {
	children, err := r.Builder.Build(ctx, job, spec)
	if err != nil {
		return err
	}
	key := client.ObjectKeyFromObject(job)
	if exists, err := r.jobSetExists(ctx, job); err != nil || exists {
		return err
	}
	if len(children.Spec.ReplicatedJobs) < len(spec.Template.Spec.ReplicatedJobs) { // some are done
		if again, err := r.rerunInitializers(ctx, job, children.Claims); err != nil || again {
			return err
		}
	}
	js := children.JobSet
	status.MarkInitializers(js, dialect.Bundled.Initializers(job, spec))
	skipped, err := r.Gangs.Make(ctx, job, spec, children.Spec, js)
	if err != nil {
		return err
	}
	if err := r.createMounted(ctx, job, children); err != nil {
		return err
	}
	o, err := objectOf(js)
	if err != nil {
		return err
	}
	// However it is deleted, by the garbage collector above all, its Jobs go before it and their pods before them: as
	// long as there is a pod, its owners show whose it is.
	o.SetFinalizers([]string{metav1.FinalizerDeleteDependents})
	if err := r.Client.Create(ctx, o, client.FieldOwner(fieldManager)); err != nil {
		r.Store.JobSets.Attempted(key)
		return fmt.Errorf("creating the JobSet: %w", err)
	}
	if skipped != nil {
		r.Gangs.Skipped(job, skipped)
	}
	r.Store.JobSets.Created(key, o.GetUID())
	ctrl.LoggerFrom(ctx).V(1).Info("Made the JobSet", "trainJob", key)
	return nil
}

// jobSetExists reports whether the TrainJob has a JobSet, by the API server: the cache may be stale, and a previous
// JobSet has to be gone first. One of another owner is an error.
func (r *Reconciler) jobSetExists(ctx context.Context, job *api.TrainJob) (bool, error) {
	js, err := store.JobSetNamed(ctx, r.Reader, client.ObjectKeyFromObject(job))
	switch {
	case err != nil || js == nil:
		return false, err
	case metav1.IsControlledBy(js, job):
		return true, nil // its events trigger a reconcile
	case store.OfTrainJob(js, job.Name, "") && !js.DeletionTimestamp.IsZero():
		return false, terminating(js, r.Clock.Now())
	}
	return false, fmt.Errorf("there is a JobSet %s already that is not the TrainJob's; delete it, or create the TrainJob "+
		"by another name", client.ObjectKeyFromObject(job))
}

// terminatingFor is for how long the JobSet of a deleted TrainJob may terminate before an event says so.
const terminatingFor = 10 * time.Second

// terminating is the error of a start that waits until the JobSet of a deleted TrainJob of the name is gone, with its
// pods. That happens whenever a TrainJob is deleted and created again at once. The deletion triggers a reconcile.
func terminating(js *jobset.JobSet, now time.Time) error {
	err := errors.New("the JobSet of the previous TrainJob of this name is being deleted, and its pods haven't ended; " +
		"the TrainJob gets its own then")
	if left := terminatingFor - now.Sub(js.DeletionTimestamp.Time); left > 0 {
		return &admission.PendingError{RetryAfter: left, Err: err}
	}
	return err
}

// unknownFor is how long after its creation a TrainJob may be unknown to the webhooks of others.
const unknownFor = 10 * time.Second

// ownerUnknown reports whether the JobSet was rejected because the cache of a webhook doesn't have the TrainJob yet:
// Kueue's for JobSets looks its owner up. It is no failure: the next attempt succeeds.
func ownerUnknown(job *api.TrainJob, err error, now time.Time) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) || !apierrors.IsNotFound(err) || now.Sub(job.CreationTimestamp.Time) >= unknownFor {
		return false
	}
	missing := status.Status().Details
	return missing != nil && missing.Group == trainerapi.GroupVersion.Group && missing.Name == job.Name
}

// createMounted creates what the pods of a JobSet mount.
func (r *Reconciler) createMounted(ctx context.Context, job *api.TrainJob, children *Children) error {
	if err := r.createClaims(ctx, job, children.Claims); err != nil {
		return err
	}
	for _, o := range children.SideObjects {
		if err := r.createSideObject(ctx, job, o); err != nil {
			return fmt.Errorf("creating %s %s: %w", o.GetKind(), o.GetName(), err)
		}
	}
	return nil
}

// createSideObject creates a side object of a TrainJob. An existing one of the name is deleted if it is the TrainJob's
// own, of an earlier start, and is an error if it isn't: nothing of another owner is taken over.
func (r *Reconciler) createSideObject(ctx context.Context, job *api.TrainJob, o *unstructured.Unstructured) error {
	err := r.Client.Create(ctx, o.DeepCopy(), client.FieldOwner(fieldManager))
	if !apierrors.IsAlreadyExists(err) {
		return err
	}
	own, err := r.deleteSideObject(ctx, job, o)
	if !own {
		return errors.Join(fmt.Errorf("there is a %s %s/%s already that is not the TrainJob's; delete it, or create the "+
			"TrainJob by another name", o.GetKind(), o.GetNamespace(), o.GetName()), err)
	}
	if err != nil {
		return err
	}
	return r.Client.Create(ctx, o, client.FieldOwner(fieldManager))
}

// deleteSideObject deletes a side object of a TrainJob. One of another owner stays: own is false. Secrets can't be
// read; a policy of the chart rejects the deletion of others'.
func (r *Reconciler) deleteSideObject(ctx context.Context, job *api.TrainJob, o client.Object) (own bool, err error) {
	var options []client.DeleteOption
	if !isSecret(o) {
		there, err := existing(ctx, r.Reader, o)
		if err != nil || there == nil {
			return true, err
		}
		if !metav1.IsControlledBy(there, job) {
			return false, nil
		}
		options = append(options, client.Preconditions{UID: &there.UID})
	}
	err = r.Client.Delete(ctx, o, options...)
	return !isSecret(o) || !apierrors.IsForbidden(err), client.IgnoreNotFound(err)
}

// existing returns the metadata of an object that exists, by the API server; nil if there is none. It may be being
// deleted.
func existing(ctx context.Context, reader client.Reader, o client.Object) (*metav1.PartialObjectMetadata, error) {
	there := &metav1.PartialObjectMetadata{}
	there.SetGroupVersionKind(o.GetObjectKind().GroupVersionKind())
	if err := reader.Get(ctx, client.ObjectKeyFromObject(o), there); err != nil {
		return nil, client.IgnoreNotFound(err)
	}
	return there, nil
}

// createClaims creates the claims of a TrainJob that aren't there.
func (r *Reconciler) createClaims(
	ctx context.Context, job *api.TrainJob, claims []*corev1.PersistentVolumeClaim,
) error {
	for _, claim := range claims {
		err := r.Client.Create(ctx, claim.DeepCopy(), client.FieldOwner(fieldManager))
		if apierrors.IsAlreadyExists(err) {
			var there *metav1.PartialObjectMetadata
			if there, err = existing(ctx, r.Reader, claim); err == nil && (gone(there) || ofJobSet(there, job)) {
				err = errors.New("the previous one is being deleted")
			} else if err == nil && !belongsTo(there, job) {
				err = nameTaken(claim.Kind, claim.Name)
			}
		}
		if err != nil {
			return fmt.Errorf("creating PersistentVolumeClaim %s: %w", claim.Name, err)
		}
	}
	return nil
}

// rerunInitializers reports whether a claim of a TrainJob is gone, to which a finished initializer may have written.
// All of them run again then: the TrainJob is started again, with their quota.
func (r *Reconciler) rerunInitializers(
	ctx context.Context, job *api.TrainJob, claims []*corev1.PersistentVolumeClaim,
) (bool, error) {
	for _, claim := range claims {
		if there, err := existing(ctx, r.Reader, claim); err != nil || !gone(there) {
			if err != nil {
				return false, err
			}
			continue
		}
		// The status is second: a manager that is killed finds the claim missing again.
		if queued(job) {
			if err := r.Store.Writer.Suspend(ctx, job); err != nil {
				return false, client.IgnoreNotFound(fmt.Errorf("suspending for a restart: %w", err))
			}
		}
		status := job.Status.DeepCopy()
		status.Initializers = nil
		for i := range status.JobsStatus {
			status.JobsStatus[i].Succeeded = new(int32)
		}
		r.recorder.Send(job, events.ClaimLost.Of(claim.Name))
		return true, client.IgnoreNotFound(r.Store.Writer.Status(ctx, job, status))
	}
	return false, nil
}
