package integration

import (
	"context"

	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/signalbox-dev/signalbox/admission/usage"
	"github.com/signalbox-dev/signalbox/podsets"
)

// metered is the client of all that is written to Workloads, by jobframework too. What releases quota passes through
// it, so that no way to do so is forgotten: a run is in the ledger before its quota is given to others.
type metered struct {
	client.Client
	meter *meter
}

// metering returns a client that records what quota was held for, or the same one if nobody asks for that.
func metering(c client.Client, m *meter) client.Client {
	if m == nil {
		return c
	}
	return metered{c, m}
}

// Create implements client.Writer. A new Workload says whose it is: its TrainJob may be gone when its quota is
// released.
func (m metered) Create(ctx context.Context, o client.Object, options ...client.CreateOption) error {
	if wl, is := o.(*kueue.Workload); is {
		if err := m.meter.sign(ctx, wl); err != nil {
			return err
		}
	}
	return m.Client.Create(ctx, o, options...)
}

// Update implements client.Writer.
func (m metered) Update(ctx context.Context, o client.Object, options ...client.UpdateOption) error {
	if wl, is := o.(*kueue.Workload); is && !podsets.Finalized(wl) {
		if err := m.meter.account(ctx, wl); err != nil {
			return err
		}
	}
	return m.Client.Update(ctx, o, options...)
}

// Patch implements client.Writer.
func (m metered) Patch(
	ctx context.Context, o client.Object, patch client.Patch, options ...client.PatchOption,
) error {
	if wl, is := o.(*kueue.Workload); is && !podsets.Finalized(wl) {
		if err := m.meter.account(ctx, wl); err != nil {
			return err
		}
	}
	return m.Client.Patch(ctx, o, patch, options...)
}

// Delete implements client.Writer. What has the finalizer keeps its quota.
func (m metered) Delete(ctx context.Context, o client.Object, options ...client.DeleteOption) error {
	if wl, is := o.(*kueue.Workload); is && !podsets.Finalized(wl) {
		if err := m.meter.account(ctx, wl); err != nil {
			return err
		}
	}
	return m.Client.Delete(ctx, o, options...)
}

// Status implements client.Client.
func (m metered) Status() client.SubResourceWriter { return meteredStatus{m.Client.Status(), m.meter} }

// meteredStatus is what writes the status of Workloads.
type meteredStatus struct {
	client.SubResourceWriter
	meter *meter
}

// Update implements client.SubResourceWriter.
func (m meteredStatus) Update(ctx context.Context, o client.Object, options ...client.SubResourceUpdateOption) error {
	if wl, is := o.(*kueue.Workload); is && usage.Releases(wl) {
		if err := m.meter.account(ctx, wl); err != nil {
			return err
		}
	}
	return m.SubResourceWriter.Update(ctx, o, options...)
}

// Patch implements client.SubResourceWriter.
func (m meteredStatus) Patch(
	ctx context.Context, o client.Object, patch client.Patch, options ...client.SubResourcePatchOption,
) error {
	if wl, is := o.(*kueue.Workload); is && usage.Releases(wl) {
		if err := m.meter.account(ctx, wl); err != nil {
			return err
		}
	}
	return m.SubResourceWriter.Patch(ctx, o, patch, options...)
}
