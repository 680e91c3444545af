package integration

import (
	"context"

	"github.com/signalbox-dev/signalbox/admission"
	"github.com/signalbox-dev/signalbox/store"
)

// listTrainer is a Kubeflow Trainer whose list of overrides is not keyed by manager: v2.0 and v2.1. A Record in an
// annotation holds which elements are the integration's.
type listTrainer struct{ kubeflowTrainer }

func (listTrainer) write(
	ctx context.Context, writer *store.Writer, start *admission.Start,
) (way string, err error) {
	return twoWrites, writer.StartInTwo(ctx, start)
}
