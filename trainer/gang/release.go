package gang

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// protection is the finalizer that the API server adds to PodGroups (Kubernetes 1.36, plugin/pkg/admission/scheduling).
const protection = "scheduling.k8s.io/podgroup-protection"

// release lets the pods that are left of the nth group's gang be placed without those that have succeeded; left is how
// many they are.
func (o *groupObjects) release(ctx context.Context, n int, state podGroupState, left int32) error {
	if o.version.resizable {
		return o.lower(ctx, state, left)
	}
	return o.replace(ctx, n, state)
}

// lower sets minCount to the number of pods that are left, so that replacements of failed pods are placed without those
// that have succeeded, which kube-scheduler doesn't count. A PodGroup that was replaced meanwhile stays as it is.
func (o *groupObjects) lower(ctx context.Context, state podGroupState, left int32) error {
	podGroup := o.podGroupNamed(state.name)
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": state.uid},
		"spec":     map[string]any{"schedulingPolicy": map[string]any{"gang": map[string]any{"minCount": left}}},
	})
	if err != nil {
		return err
	}
	err = o.client.Patch(ctx, podGroup, client.RawPatch(types.MergePatchType, patch))
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("lowering minCount of PodGroup %s to %d: %w", state.name, left, err)
	}
	return nil
}

// replace replaces the nth group's PodGroup by one of policy basic with the same name. A replacement of a failed pod is
// then placed separately. kube-scheduler doesn't count the gang's succeeded pods, so it would wait forever for minCount
// pods. No field of a PodGroup can change (Kubernetes 1.36). The finalizer is removed first, because it protects the
// PodGroup as long as the waiting pod exists. If the release is interrupted, restore creates the PodGroup with the same
// policy (wasPlaced), or the next Keep releases it once more.
func (o *groupObjects) replace(ctx context.Context, n int, state podGroupState) error {
	podGroup := o.podGroupNamed(state.name)
	others := slices.DeleteFunc(slices.Clone(state.finalizers), func(f string) bool { return f == protection })
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": state.uid, "finalizers": others}})
	if err != nil {
		return err
	}
	c := o.client
	err = c.Patch(ctx, podGroup, client.RawPatch(types.MergePatchType, patch))
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("releasing PodGroup %s: %w", state.name, err)
	}
	err = c.Delete(ctx, podGroup, client.Preconditions{UID: &state.uid})
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("deleting PodGroup %s: %w", state.name, err)
	}
	return o.create(ctx, n, api.GangPolicyBasic)
}

// podGroupNamed returns the TrainJob's PodGroup of a name, to write it.
func (o *groupObjects) podGroupNamed(name string) *unstructured.Unstructured {
	return o.version.object("PodGroup", types.NamespacedName{Namespace: o.job.Namespace, Name: name})
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
