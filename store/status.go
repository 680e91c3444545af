package store

import (
	"context"

	"sigs.k8s.io/controller-runtime/pkg/client"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// Status writes the difference between the status of a TrainJob and status, with the state that it amounts to. Of a CRD
// that isn't Signalbox's it writes only Kubeflow Trainer's fields. It leaves all others: a training process may be
// writing its own.
func (w *Writer) Status(ctx context.Context, before *api.TrainJob, status *api.TrainJobStatus) error {
	after := before.DeepCopy()
	after.Status.TrainJobStatus = status.TrainJobStatus
	if w.extended {
		after.Status = *status
		after.Status.State = api.StateOf(&status.TrainJobStatus)
	}
	unguarded := before.DeepCopy()
	unguarded.UID = ""
	if !w.extended {
		unguarded.ResourceVersion = "" // Kubeflow Trainer writes the same list of conditions
	}
	patch := client.MergeFrom(unguarded)
	if err := w.client.Status().Patch(ctx, after, patch, client.FieldOwner(FieldManager)); err != nil {
		return err
	}
	w.wrote(after)
	return nil
}
