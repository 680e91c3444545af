package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/signalbox-dev/signalbox/admission/boost"
	"github.com/signalbox-dev/signalbox/store"
)

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
