package integration

import (
	"context"

	"k8s.io/apimachinery/pkg/types"
)

// Observe observes a TrainJob, and does nothing else.
func (r *Reconciler) Observe(ctx context.Context, key types.NamespacedName) error {
	_, err := r.observe(ctx, key)
	return err
}
