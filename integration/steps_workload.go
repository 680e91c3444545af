package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	clientutil "sigs.k8s.io/kueue/pkg/util/client"
	"sigs.k8s.io/kueue/pkg/workload"
	workloadfinish "sigs.k8s.io/kueue/pkg/workload/finish"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/store/events"
)

// finishWorkload ends the Workload of a TrainJob that can't be started.
type finishWorkload struct {
	workload        *kueue.Workload
	reason, message string
}

func (s finishWorkload) do(ctx context.Context, r *Reconciler, _ *observed) error {
	err := workloadfinish.Finish(ctx, r.client, s.workload.DeepCopy(), s.reason, s.message, r.clock)
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("finishing Workload %s: %w", s.workload.Name, err)
	}
	return nil
}

// lookAgain changes a Workload so that Kueue reconciles it.
type lookAgain struct{ workload *kueue.Workload }

func (s lookAgain) do(ctx context.Context, r *Reconciler, o *observed) error {
	after := s.workload.DeepCopy()
	metav1.SetMetaDataAnnotation(&after.ObjectMeta, DispatchAnnotation, o.now.UTC().Format(time.RFC3339))
	if err := r.client.Patch(ctx, after, client.MergeFrom(s.workload)); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("requesting that Kueue dispatches Workload %s again: %w", s.workload.Name, err)
	}
	return nil
}

// deleteWorkload deletes a Workload that was admitted for something else; the next is for what is to run.
type deleteWorkload struct {
	workload *kueue.Workload
	event    *events.Event // nil for none
}

func (s deleteWorkload) do(ctx context.Context, r *Reconciler, o *observed) error {
	wl := s.workload
	asRead := client.Preconditions{UID: &wl.UID, ResourceVersion: &wl.ResourceVersion}
	if err := r.client.Delete(ctx, wl.DeepCopy(), asRead); err != nil {
		return client.IgnoreNotFound(fmt.Errorf("deleting Workload %s: %w", wl.Name, err))
	}
	if s.event != nil {
		r.recorder.Send(o.job, *s.event)
	}
	return nil
}

// releaseWorkload removes the finalizer that keeps a Workload, and its quota if it isn't finished.
type releaseWorkload struct{ workload *kueue.Workload }

func (s releaseWorkload) do(ctx context.Context, r *Reconciler, _ *observed) error {
	after := s.workload.DeepCopy()
	controllerutil.RemoveFinalizer(after, kueue.ResourceInUseFinalizerName)
	// The list may have finalizers of others.
	asRead := client.MergeFromWithOptions(s.workload, client.MergeFromWithOptimisticLock{})
	if err := r.client.Patch(ctx, after, asRead); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("releasing Workload %s: %w", workload.Key(s.workload), err)
	}
	return nil
}

// deactivate deactivates a Workload whose pods have ended.
type deactivate struct{ workload *kueue.Workload }

func (s deactivate) do(ctx context.Context, r *Reconciler, _ *observed) error {
	wl := s.workload
	if err := r.setActive(ctx, wl, false, map[string]any{DeactivateAnnotation: nil}); err != nil {
		return client.IgnoreNotFound(fmt.Errorf("deactivating Workload %s: %w", wl.Name, err))
	}
	ctrl.LoggerFrom(ctx).Info("Deactivated a Workload whose pods have ended",
		"workload", wl.Name, "for", wl.Annotations[DeactivateAnnotation])
	return nil
}

// activate activates the Workload of a TrainJob that its user had stopped.
type activate struct{ workload *kueue.Workload }

func (s activate) do(ctx context.Context, r *Reconciler, _ *observed) error {
	if err := r.setActive(ctx, s.workload, true, map[string]any{api.StopAnnotation: nil}); err != nil {
		return client.IgnoreNotFound(fmt.Errorf("activating Workload %s: %w", s.workload.Name, err))
	}
	return nil
}

// setActive writes spec.active and annotations of a Workload, in the version that was read.
func (r *Reconciler) setActive(
	ctx context.Context, wl *kueue.Workload, active bool, annotations map[string]any,
) error {
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": wl.UID, "resourceVersion": wl.ResourceVersion, "annotations": annotations},
		"spec":     map[string]any{"active": active},
	})
	if err != nil {
		return err
	}
	return r.client.Patch(ctx, wl.DeepCopy(), client.RawPatch(types.MergePatchType, patch))
}

// hold keeps a Workload out of its queue, and takes its quota. None of its TrainJob runs.
type hold struct {
	workload *kueue.Workload
	message  string
}

func (s hold) do(ctx context.Context, r *Reconciler, _ *observed) error {
	return r.setReservation(ctx, s.workload, kueue.WorkloadOnHold, s.message)
}

// unhold queues a Workload again that was put on hold while its TrainJob was blocked or stopped.
type unhold struct{ workload *kueue.Workload }

func (s unhold) do(ctx context.Context, r *Reconciler, _ *observed) error {
	reason := workload.UnadmittedWorkloadReasonWithFallback(kueue.WorkloadQuotaReservedReasonPendingEvaluation, "Pending")
	return r.setReservation(ctx, s.workload, reason, "The TrainJob can be queued again")
}

// setReservation writes why a Workload has no quota.
func (r *Reconciler) setReservation(ctx context.Context, wl *kueue.Workload, reason, message string) error {
	wl = wl.DeepCopy()
	return client.IgnoreNotFound(clientutil.PatchStatus(ctx, r.client, wl, func() (bool, error) {
		return workload.UnsetQuotaReservationWithCondition(wl, reason, message, r.clock.Now()), nil
	}))
}
