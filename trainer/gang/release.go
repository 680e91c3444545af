package gang

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// protection is the finalizer that the API server adds to PodGroups (Kubernetes 1.36, plugin/pkg/admission/scheduling).
const protection = "scheduling.k8s.io/podgroup-protection"

// release lets the pods that are left of the nth group's gang be placed without those that have succeeded, which
// kube-scheduler doesn't count; left is how many they are. A PodGroup that was replaced meanwhile stays as it is.
func (o *groupObjects) release(ctx context.Context, n int, state podGroupState, left int32) error {
	podGroup := o.version.object("PodGroup", types.NamespacedName{Namespace: o.job.Namespace, Name: state.name})
	podGroup.SetUID(state.uid)
	if !o.version.resizable {
		podGroup.SetFinalizers(state.finalizers)
		return o.replace(ctx, n, podGroup)
	}
	podGroup.Object["spec"] = map[string]any{
		"schedulingPolicy": map[string]any{"gang": map[string]any{"minCount": int64(left)}},
	}
	err := o.config.Client.Patch(ctx, podGroup, client.Merge)
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("lowering minCount of PodGroup %s to %d: %w", state.name, left, err)
	}
	return nil
}

// replace replaces the nth group's PodGroup by one of policy basic with the same name. A replacement of a failed pod is
// then placed separately. The finalizer is removed first, because it protects the PodGroup as long as the waiting pod
// exists. If the release is interrupted, restore creates the PodGroup with the same policy (wasPlaced), or the next
// Keep releases it once more.
func (o *groupObjects) replace(ctx context.Context, n int, podGroup *unstructured.Unstructured) error {
	name, uid := podGroup.GetName(), podGroup.GetUID()
	if err := unprotect(ctx, o.config.Client, podGroup); err != nil {
		return fmt.Errorf("releasing PodGroup %s: %w", name, err)
	}
	err := o.config.Client.Delete(ctx, podGroup, client.Preconditions{UID: &uid})
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("deleting PodGroup %s: %w", name, err)
	}
	return o.create(ctx, n, api.GangPolicyBasic)
}

// unprotect removes the finalizer that protects a PodGroup while its pods run. podGroup has nothing but its name, its
// UID and its finalizers.
func unprotect(ctx context.Context, c client.Client, podGroup *unstructured.Unstructured) error {
	controllerutil.RemoveFinalizer(podGroup, protection)
	return client.IgnoreNotFound(c.Patch(ctx, podGroup, client.Merge))
}

// releaseDue reports whether a pod of a gang waits for others that have succeeded and won't be created again. Their
// success proves that the gang was placed once. recheck is after how long to call it again, 0 to wait for a change.
// That a pod has succeeded is no such change: no TrainJob is reconciled for it, because it may have thousands.
func releaseDue(state podGroupState, size int32, c gangPods) (due bool, recheck time.Duration) {
	if state.minCount == 0 {
		return false, 0
	}
	missing := c.present+c.succeeded < size
	switch {
	case !missing && c.shortestWait < 0 || c.present+c.succeeded == 0:
		return false, 0 // all pods have a node, or there are none
	case c.succeeded == 0 || c.present >= state.minCount:
		if state.placed() {
			return false, patience // kube-scheduler will have all pods that it waits for, unless more succeed
		}
		return false, 0 // the gang is still to be placed
	case missing:
		return false, patience // the Job controller has not replaced all failed pods yet
	case c.shortestWait < patience:
		return false, patience - c.shortestWait
	}
	return true, 0
}
