package integration

import (
	"context"

	"k8s.io/apimachinery/pkg/types"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
)

// Observe observes a TrainJob, and does nothing else.
func (r *Reconciler) Observe(ctx context.Context, key types.NamespacedName) error {
	_, err := r.observe(ctx, key)
	return err
}

// Released is a change of a Workload that is seen, before for after is its deletion. What is owed is written then.
func (r *Reconciler) Released(ctx context.Context, before, after *kueue.Workload) error {
	r.meter.released(ctx, before, after)
	return r.meter.ledger.Settle(ctx)
}
