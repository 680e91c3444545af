package store

import (
	"context"
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// Status writes the difference between the status of a TrainJob and status, with the state that it amounts to. Of a CRD
// that isn't Signalbox's it writes only Kubeflow Trainer's fields. It leaves all others: a training process may be
// writing its own.
func (w *Writer) Status(ctx context.Context, before *api.TrainJob, status *api.TrainJobStatus) error {
	return w.status(ctx, before, status, !w.extended) // Kubeflow Trainer writes the same list of conditions
}

// StatusAsRead writes it only if the TrainJob hasn't changed since it was read.
func (w *Writer) StatusAsRead(ctx context.Context, before *api.TrainJob, status *api.TrainJobStatus) error {
	return w.status(ctx, before, status, true)
}

func (w *Writer) status(
	ctx context.Context, before *api.TrainJob, status *api.TrainJobStatus, asRead bool,
) error {
	after := before.DeepCopy()
	after.Status.TrainJobStatus = status.TrainJobStatus
	if w.extended {
		after.Status = *status
		after.Status.State = api.StateOf(&status.TrainJobStatus)
	}
	unguarded := before.DeepCopy()
	unguarded.UID = ""
	if asRead {
		unguarded.ResourceVersion = ""
	}
	patch := client.MergeFrom(unguarded)
	if err := w.client.Status().Patch(ctx, after, patch, client.FieldOwner(FieldManager)); err != nil {
		return err
	}
	w.wrote(after)
	return nil
}

// Usage writes what a TrainJob has held of quota into its status, where that has a place for it. An older version may
// lack what was counted last, by this process or another: it is a conflict.
func (w *Writer) Usage(ctx context.Context, job *api.TrainJob, used *api.Usage) error {
	if !w.extended {
		return nil
	}
	if w.Behind(job) {
		return apierrors.NewConflict(schema.GroupResource{Resource: "trainjobs"}, job.Name,
			errors.New("the cache doesn't have its last version yet"))
	}
	status := job.Status.DeepCopy()
	status.Usage = used
	return w.StatusAsRead(ctx, job, status)
}
