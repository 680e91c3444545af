package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	clientutil "sigs.k8s.io/kueue/pkg/util/client"
	"sigs.k8s.io/kueue/pkg/workload"
	workloadfinish "sigs.k8s.io/kueue/pkg/workload/finish"

	"github.com/signalbox-dev/signalbox/admission/boost"
	"github.com/signalbox-dev/signalbox/admission/checkpoint"
	"github.com/signalbox-dev/signalbox/admission/usage"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/podsets"
	"github.com/signalbox-dev/signalbox/store"
	"github.com/signalbox-dev/signalbox/store/events"
)

func (s finishWorkload) do(ctx context.Context, a *actor, o *situation) error {
	err := workloadfinish.Finish(ctx, a.client, s.workload.DeepCopy(), s.reason, s.message, a.clock)
	if client.IgnoreNotFound(err) != nil && o.job.UID != "" {
		a.memory.keep(o.key(), o.job.UID, func(r *record) { r.finished = time.Time{} }) // it is to be tried again
	}
	return unlessGone(err, "finishing Workload "+s.workload.Name)
}

func (s lookAgain) do(ctx context.Context, a *actor, o *situation) error {
	after := s.workload.DeepCopy()
	metav1.SetMetaDataAnnotation(&after.ObjectMeta, DispatchAnnotation, o.now.UTC().Format(time.RFC3339))
	err := a.client.Patch(ctx, after, client.MergeFrom(s.workload))
	return unlessGone(err, "requesting that Kueue dispatches Workload "+s.workload.Name+" again")
}

// do tells it; that it can't be told changes nothing of what happens.
func (s announce) do(ctx context.Context, a *actor, o *situation) error {
	after := s.workload.DeepCopy()
	delete(after.Annotations, checkpoint.UntilAnnotation)
	delete(after.Annotations, checkpoint.BeforeAnnotation)
	says := s.until.UTC().Format(time.RFC3339)
	if !s.until.IsZero() {
		metav1.SetMetaDataAnnotation(&after.ObjectMeta, checkpoint.UntilAnnotation, says)
		metav1.SetMetaDataAnnotation(&after.ObjectMeta, checkpoint.BeforeAnnotation, s.saved)
	}
	err := a.client.Patch(ctx, after, client.MergeFrom(s.workload))
	if client.IgnoreNotFound(err) != nil {
		ctrl.LoggerFrom(ctx).Info("The API server rejects the annotations of a preempted TrainJob's Workload; trying again",
			"workload", s.workload.Name, "reason", err.Error())
		return nil
	}
	if err != nil || s.until.IsZero() {
		return nil
	}
	a.memory.keep(o.key(), o.job.UID, func(r *record) { r.announced = s.until })
	c := apimeta.FindStatusCondition(s.workload.Status.Conditions, kueue.WorkloadEvicted)
	a.recorder.Send(o.job, events.AwaitsCheckpoint.Of(strings.TrimSuffix(c.Message, "."), says))
	return nil
}

// do notes it; that it can't be noted changes nothing of what happens. The version isn't checked: others write the rest
// of the Workload meanwhile.
func (s noteBegin) do(ctx context.Context, a *actor, _ *situation) error {
	if usage.Began(s.workload) {
		if err := a.meter.part(ctx, s.workload, s.note.Attempt); err != nil {
			return err
		}
	}
	after := s.workload.DeepCopy()
	metav1.SetMetaDataAnnotation(&after.ObjectMeta, usage.Annotation, s.note.String())
	if err := a.client.Patch(ctx, after, client.MergeFrom(s.workload)); client.IgnoreNotFound(err) != nil {
		ctrl.LoggerFrom(ctx).Info("The API server rejects what is noted of a Workload's use of quota; trying again",
			"workload", s.workload.Name, "reason", err.Error())
	}
	return nil
}

func (s deleteWorkload) do(ctx context.Context, a *actor, o *situation) error {
	wl := s.workload
	asRead := client.Preconditions{UID: &wl.UID, ResourceVersion: &wl.ResourceVersion}
	if err := a.client.Delete(ctx, wl.DeepCopy(), asRead); err != nil {
		return client.IgnoreNotFound(fmt.Errorf("deleting Workload %s: %w", wl.Name, err))
	}
	if s.event != nil {
		a.recorder.Send(o.job, *s.event)
	}
	return nil
}

func (s releaseWorkload) do(ctx context.Context, a *actor, _ *situation) error {
	after := s.workload.DeepCopy()
	controllerutil.RemoveFinalizer(after, kueue.ResourceInUseFinalizerName)
	// The list may have finalizers of others.
	asRead := client.MergeFromWithOptions(s.workload, client.MergeFromWithOptimisticLock{})
	err := a.client.Patch(ctx, after, asRead)
	return unlessGone(err, "releasing Workload "+string(workload.Key(s.workload)))
}

func (s deactivate) do(ctx context.Context, a *actor, _ *situation) error {
	wl := s.workload
	if err := a.setActive(ctx, wl, false, map[string]any{api.DeactivateAnnotation: nil}); err != nil {
		return client.IgnoreNotFound(fmt.Errorf("deactivating Workload %s: %w", wl.Name, err))
	}
	ctrl.LoggerFrom(ctx).Info("Deactivated a Workload whose pods have ended",
		"workload", wl.Name, "for", wl.Annotations[api.DeactivateAnnotation])
	return nil
}

func (s activate) do(ctx context.Context, a *actor, _ *situation) error {
	err := a.setActive(ctx, s.workload, true, map[string]any{api.StopAnnotation: nil})
	return unlessGone(err, "activating Workload "+s.workload.Name)
}

// setActive writes spec.active and annotations of a Workload, in the version that was read.
func (a *actor) setActive(
	ctx context.Context, wl *kueue.Workload, active bool, annotations map[string]any,
) error {
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": wl.UID, "resourceVersion": wl.ResourceVersion, "annotations": annotations},
		"spec":     map[string]any{"active": active},
	})
	if err != nil {
		return err
	}
	return a.client.Patch(ctx, wl.DeepCopy(), client.RawPatch(types.MergePatchType, patch))
}

func (s hold) do(ctx context.Context, a *actor, _ *situation) error {
	return a.setReservation(ctx, s.workload, kueue.WorkloadOnHold, s.message)
}

func (s unhold) do(ctx context.Context, a *actor, _ *situation) error {
	reason := workload.UnadmittedWorkloadReasonWithFallback(kueue.WorkloadQuotaReservedReasonPendingEvaluation, "Pending")
	return a.setReservation(ctx, s.workload, reason, "The TrainJob can be queued again")
}

// setReservation writes why a Workload has no quota.
func (a *actor) setReservation(ctx context.Context, wl *kueue.Workload, reason, message string) error {
	wl = wl.DeepCopy()
	return client.IgnoreNotFound(clientutil.PatchStatus(ctx, a.client, wl, func() (bool, error) {
		return workload.UnsetQuotaReservationWithCondition(wl, reason, message, a.clock.Now()), nil
	}))
}

// do creates it. One of the name is the slice itself, which the cache doesn't have yet, or one that is being deleted.
func (s createSlice) do(ctx context.Context, a *actor, _ *situation) error {
	err := a.client.Create(ctx, s.slice.DeepCopy())
	if apierrors.IsAlreadyExists(err) || store.Rejected(err) {
		ctrl.LoggerFrom(ctx).Info("The Workload with more nodes isn't created; trying again later",
			"workload", s.slice.Name, "reason", err.Error())
		return nil
	}
	if err != nil {
		return fmt.Errorf("creating Workload %s: %w", s.slice.Name, err)
	}
	return nil
}

// do withdraws it. That one which was replaced, whose quota is free, can't be recorded or deleted yet holds up nothing.
func (s withdraw) do(ctx context.Context, a *actor, _ *situation) error {
	err := s.delete(ctx, a)
	if err != nil && podsets.Replaced(s.workload) {
		ctrl.LoggerFrom(ctx).Info("A Workload that was replaced isn't deleted; trying again", "workload", s.workload.Name,
			"reason", err.Error())
		return nil
	}
	return err
}

// delete removes its finalizer, and then deletes it, both in the version that was read: Kueue may admit it at any
// moment, and could still do so if it were kept while it is being deleted.
func (s withdraw) delete(ctx context.Context, a *actor) error {
	after := s.workload.DeepCopy()
	if controllerutil.RemoveFinalizer(after, kueue.ResourceInUseFinalizerName) {
		asRead := client.MergeFromWithOptions(s.workload, client.MergeFromWithOptimisticLock{})
		if err := a.client.Patch(ctx, after, asRead); err != nil {
			return unlessGone(err, "withdrawing Workload "+s.workload.Name)
		}
	}
	if !after.DeletionTimestamp.IsZero() {
		return nil
	}
	err := a.client.Delete(ctx, after, client.Preconditions{UID: &after.UID, ResourceVersion: &after.ResourceVersion})
	return unlessGone(err, "deleting Workload "+s.workload.Name)
}

func (s finalize) do(ctx context.Context, a *actor, _ *situation) error {
	after := s.workload.DeepCopy()
	controllerutil.AddFinalizer(after, kueue.ResourceInUseFinalizerName)
	asRead := client.MergeFromWithOptions(s.workload, client.MergeFromWithOptimisticLock{})
	return unlessGone(a.client.Patch(ctx, after, asRead), "keeping Workload "+s.workload.Name)
}

// boostManager is the name under which the API server records the writes of a boost, apart from other writes.
const boostManager = client.FieldOwner("signalbox-boost")

// do writes it to the version that was read: the Workload may have lost its quota since, or got another's boost. The
// start doesn't depend on it.
func (s setBoost) do(ctx context.Context, a *actor, o *situation) error {
	wl := s.workload
	orNull := func(text string) any {
		if text == "" {
			return nil
		}
		return text
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": wl.UID, "resourceVersion": wl.ResourceVersion, "annotations": map[string]any{
			boost.Annotation: orNull(s.mark.Text()), boost.MarkAnnotation: orNull(s.mark.String()),
		},
	}})
	if err != nil {
		return err
	}
	err = a.client.Patch(ctx, wl.DeepCopy(), client.RawPatch(types.MergePatchType, patch), boostManager)
	if client.IgnoreNotFound(err) != nil {
		a.memory.keep(o.key(), o.job.UID, func(m *record) { m.queueRead = time.Time{} }) // what was read has to be again
		level := 0
		if apierrors.IsConflict(err) {
			level = 1
		}
		ctrl.LoggerFrom(ctx).V(level).Info("The boost of a Workload isn't written; trying again",
			"workload", wl.Name, "reason", err.Error())
	}
	return nil
}

// do removes it from whatever version there is, because no other write may delay that. A boost that isn't the one that
// was read is another's.
func (s unboost) do(ctx context.Context, a *actor, o *situation) error {
	wl := s.workload
	operations := []map[string]any{{"op": "test", "path": "/metadata/uid", "value": wl.UID}}
	remove := func(annotation string) {
		path := "/metadata/annotations/" + strings.ReplaceAll(annotation, "/", "~1")
		operations = append(operations, map[string]any{"op": "test", "path": path, "value": wl.Annotations[annotation]},
			map[string]any{"op": "remove", "path": path})
	}
	remove(boost.MarkAnnotation)
	if mark, ours := boost.Of(wl); ours && mark.Value != 0 {
		remove(boost.Annotation)
	}
	patch, err := json.Marshal(operations)
	if err != nil {
		return err
	}
	err = a.client.Patch(ctx, wl.DeepCopy(), client.RawPatch(types.JSONPatchType, patch), boostManager)
	if store.Rejected(err) { // it has changed, or a policy rejects it: nothing waits for that
		ctrl.LoggerFrom(ctx).Info("The boost of a Workload isn't removed; trying again",
			"workload", wl.Name, "after", boostRetry.String(), "reason", err.Error())
		return nil
	}
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("removing the boost of Workload %s: %w", wl.Name, err)
	}
	return nil
}
