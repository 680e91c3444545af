package store

import (
	"context"
	"encoding/json"
	"fmt"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// Status writes the difference between the status of a TrainJob and status and, if the CRD has it, the state of the
// latter. more are further fields of the status. It leaves all other fields: a training process may be writing its own.
func (w *Writer) Status(
	ctx context.Context, before *api.TrainJob, status *trainerapi.TrainJobStatus, more map[string]any,
) error {
	after := before.DeepCopy()
	after.Status.TrainJobStatus = *status
	data, err := client.MergeFrom(before).Data(after)
	if err != nil {
		return fmt.Errorf("encoding the status: %w", err)
	}
	var change struct {
		Status map[string]any `json:"status"`
	}
	if err := json.Unmarshal(data, &change); err != nil {
		return fmt.Errorf("encoding the status: %w", err)
	}
	fields, metadata := change.Status, map[string]any{"uid": before.UID}
	if fields == nil {
		fields = map[string]any{}
	}
	if w.extended {
		fields["state"] = api.StateOf(status)
		for key, value := range more {
			fields[key] = value
		}
	} else {
		metadata["resourceVersion"] = before.ResourceVersion // Kubeflow Trainer writes the same list of conditions
	}
	if data, err = json.Marshal(map[string]any{"metadata": metadata, "status": fields}); err != nil {
		return fmt.Errorf("encoding the status: %w", err)
	}
	patch := client.RawPatch(types.MergePatchType, data)
	if err := w.client.Status().Patch(ctx, after, patch, client.FieldOwner(FieldManager)); err != nil {
		return err
	}
	w.wrote(after)
	return nil
}
