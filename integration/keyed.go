package integration

import (
	"context"

	"gomodules.xyz/jsonpatch/v2"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/signalbox-dev/signalbox/admission"
	"github.com/signalbox-dev/signalbox/overrides"
	"github.com/signalbox-dev/signalbox/review"
	"github.com/signalbox-dev/signalbox/store"
)

// keyedTrainer is a Kubeflow Trainer whose entries are keyed by manager: v2.2 and later.
type keyedTrainer struct{ kubeflowTrainer }

// write writes a start in one request, or in two for v2.2.0, which is found out by trying.
func (keyedTrainer) write(
	ctx context.Context, writer *store.Writer, start *admission.Start,
) (way string, err error) {
	atomic, err := writer.StartAtomically(ctx, start)
	if atomic {
		return oneWrite, err
	}
	return twoWrites, err
}

func (keyedTrainer) completeOwn(*review.Request) ([]jsonpatch.Operation, error) { return nil, nil }

func (keyedTrainer) keep(rq *review.Request) ([]jsonpatch.Operation, error) { return keepKeyed(rq) }

func (keyedTrainer) unqueued(*review.Request) []jsonpatch.Operation { return nil }

func (keyedTrainer) queued(rq *review.Request) ([]jsonpatch.Operation, error) {
	return canonicalSize(rq)
}

// checkSize also rejects a resize, which the CRD of Kubeflow Trainer from v2.2 on rejects without saying what to do.
func (t keyedTrainer) checkSize(rq *review.Request) field.ErrorList {
	errs := t.kubeflowTrainer.checkSize(rq)
	if rq.Created() || !overrides.Resized(rq.Old, rq.New) {
		return errs
	}
	return append(errs, field.Forbidden(field.NewPath("spec", "trainer"), "it is immutable with "+t.Name+
		"; create another TrainJob. The Trainer that Signalbox bundles supports resizing a queued TrainJob"))
}
