package integration

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/signalbox-dev/signalbox/podsets"
	"github.com/signalbox-dev/signalbox/store"
)

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
