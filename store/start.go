package store

import (
	"context"
	"strings"
	"time"

	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/signalbox-dev/signalbox/admission"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// Refused reports whether an atomic start was rejected by a Trainer that takes no changes of entries in the update that
// starts a TrainJob: Kubeflow Trainer v2.2.0, whose CRD is the same as v2.2.1's.
func Refused(err error) bool {
	const refusal = "RuntimePatches can only be modified when the TrainJob is suspended"
	return err != nil && strings.Contains(err.Error(), refusal) &&
		!strings.Contains(err.Error(), "before or after the update")
}

// refusalHolds is how long a refused atomic start is remembered. Kubeflow Trainer v2.2.0 refuses all of them, v2.2.1,
// which has the same CRD, none: an upgrade of the one to the other is seen by trying only.
const refusalHolds = 10 * time.Minute

// StartAtomically writes a start in one request, or in two if the Trainer refuses that, or has refused it a short while
// ago. atomic is false if it wrote, or tried to write, in two.
func (w *Writer) StartAtomically(ctx context.Context, s *admission.Start) (atomic bool, err error) {
	if at := w.refused.Load(); at != nil && w.clock.Since(*at) < refusalHolds {
		return false, w.StartInTwo(ctx, s)
	}
	err = w.Start(ctx, s)
	if !Refused(err) {
		return true, err
	}
	w.refused.Store(new(w.clock.Now()))
	ctrl.LoggerFrom(ctx).Info("The installed Kubeflow Trainer is v2.2.0, which refuses to change entries in the write "+
		"that starts a TrainJob; starting in two", "refusal", err.Error())
	return false, w.StartInTwo(ctx, s)
}

// Start writes the entry, and the pin of a first start, and clears suspend in one request. It fails with a conflict if
// the TrainJob has changed since the start was decided.
func (w *Writer) Start(ctx context.Context, s *admission.Start) error {
	job := &api.TrainJob{}
	job.Namespace, job.Name = s.Key.Namespace, s.Key.Name
	operations := append(guard(s.UID, s.ResourceVersion), entryOf(s), resume())
	if s.NewPin {
		operations = append(operations, pinOf(s))
	}
	if err := w.patchFields(ctx, job, operations); err != nil {
		return err
	}
	if s.NewPin {
		pins.Inc()
	}
	return nil
}

// StartInTwo writes the entry while the TrainJob is suspended, and then clears suspend, for Trainers that reject both
// in one request. Each request fails with a conflict if the TrainJob has changed since it was read; what was written is
// then cleared, and the start decided again.
func (w *Writer) StartInTwo(ctx context.Context, s *admission.Start) error {
	job := &api.TrainJob{}
	job.Namespace, job.Name, job.UID, job.ResourceVersion = s.Key.Namespace, s.Key.Name, s.UID, s.ResourceVersion
	var unchanged []operation
	if s.Record != nil {
		list, err := w.writeRecord(ctx, job, s.Record)
		if err != nil {
			return err
		}
		// A CRD that is upgraded now drops the list, which changes no version of the TrainJob.
		unchanged = append(unchanged, operation{Operation: "test", Path: "/spec/" + s.Record.Field, Value: list})
	} else {
		written := job.DeepCopy()
		if err := w.patchFields(ctx, written, append(guard(s.UID, s.ResourceVersion), entryOf(s))); err != nil {
			return err
		}
		job.ResourceVersion = written.ResourceVersion
	}
	return w.patchFields(ctx, job, append(append(guard(s.UID, job.ResourceVersion), unchanged...), resume()))
}
