package integration

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/signalbox-dev/signalbox/admission/usage"
	"github.com/signalbox-dev/signalbox/integration/managed"
	"github.com/signalbox-dev/signalbox/podsets"
	"github.com/signalbox-dev/signalbox/store/workqueue"
)

// watchReleases has runs recorded whose quota others release, if runs are recorded. Kueue does, of a Workload that
// isn't admitted yet when its queue is stopped, and of one that the manager cluster of MultiKueue takes back.
func (m *meter) watchReleases(b *builder.Builder) *builder.Builder {
	if m == nil {
		return b
	}
	return b.Watches(&kueue.Workload{}, handler.Funcs{
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, _ workqueue.Queue) {
			m.released(ctx, e.ObjectOld.(*kueue.Workload), e.ObjectNew.(*kueue.Workload))
		},
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, _ workqueue.Queue) {
			wl := e.Object.(*kueue.Workload)
			m.released(ctx, wl, wl)
		},
	})
}

// released records the run of a Workload that has lost its quota, unless that passed through metered. after is before
// for one that is gone. Nothing holds quota for it: the records have it a while later. One that another has replaced is
// recorded before it is deleted, which passes through metered.
func (m *meter) released(ctx context.Context, before, after *kueue.Workload) {
	if podsets.Replaced(after) {
		return
	}
	goesOn := after != before && podsets.HoldsQuota(after) && usage.Key(after) == usage.Key(before)
	if goesOn || !podsets.HoldsQuota(before) || !managed.IsTrainJob(metav1.GetControllerOfNoCopy(before)) {
		return
	}
	last, known := m.accounted.Get(before.UID)
	if known && !last.(accountedAt).at.Before(usage.Reserved(before)) {
		return
	}
	job, err := m.trainJobOf(ctx, before)
	if err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "What a released Workload has used isn't recorded", "workload", before.Name)
		return
	}
	if run := m.runOf(job, before, after, m.clock.Now()); run != nil && !countedElsewhere(job, before) {
		m.ledger.Later(run, m.holding(ctx, before.Namespace))
	}
}

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

// Update implements client.Writer. What has the finalizer keeps its quota. A prebuilt Workload says whose it is as soon
// as a TrainJob controls it.
func (m metered) Update(ctx context.Context, o client.Object, options ...client.UpdateOption) error {
	if err := m.meter.before(ctx, o, unfinalized); err != nil {
		return err
	}
	if wl, is := o.(*kueue.Workload); is && wl.Annotations[usage.Annotation] == "" {
		if err := m.meter.sign(ctx, wl); err != nil {
			return err
		}
	}
	return m.Client.Update(ctx, o, options...)
}

// Patch implements client.Writer.
func (m metered) Patch(ctx context.Context, o client.Object, p client.Patch, options ...client.PatchOption) error {
	if err := m.meter.before(ctx, o, unfinalized); err != nil {
		return err
	}
	return m.Client.Patch(ctx, o, p, options...)
}

// Delete implements client.Writer.
func (m metered) Delete(ctx context.Context, o client.Object, options ...client.DeleteOption) error {
	if err := m.meter.before(ctx, o, unfinalized); err != nil {
		return err
	}
	return m.Client.Delete(ctx, o, options...)
}

func unfinalized(wl *kueue.Workload) bool { return !podsets.Finalized(wl) }

// Status implements client.Client.
func (m metered) Status() client.SubResourceWriter { return meteredStatus{m.Client.Status(), m.meter} }

// meteredStatus is what writes the status of Workloads.
type meteredStatus struct {
	client.SubResourceWriter
	meter *meter
}

// Update implements client.SubResourceWriter.
func (m meteredStatus) Update(ctx context.Context, o client.Object, options ...client.SubResourceUpdateOption) error {
	if err := m.meter.before(ctx, o, usage.Releases); err != nil {
		return err
	}
	return m.SubResourceWriter.Update(ctx, o, options...)
}

// Patch implements client.SubResourceWriter.
func (m meteredStatus) Patch(
	ctx context.Context, o client.Object, p client.Patch, options ...client.SubResourcePatchOption,
) error {
	if err := m.meter.before(ctx, o, usage.Releases); err != nil {
		return err
	}
	return m.SubResourceWriter.Patch(ctx, o, p, options...)
}
