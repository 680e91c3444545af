package integration

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/signalbox-dev/signalbox/admission/usage"
	"github.com/signalbox-dev/signalbox/podsets"
	"github.com/signalbox-dev/signalbox/store/workqueue"
)

// watchReleases has runs recorded whose quota others release, if runs are recorded. Kueue does, of a Workload that
// isn't admitted yet when its queue is stopped, and of one that the manager cluster of MultiKueue takes back.
func (r *Reconciler) watchReleases(b *builder.Builder) *builder.Builder {
	if r.meter == nil {
		return b
	}
	return b.Watches(&kueue.Workload{}, handler.Funcs{
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, _ workqueue.Queue) {
			r.meter.released(ctx, e.ObjectOld.(*kueue.Workload), e.ObjectNew.(*kueue.Workload))
		},
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, _ workqueue.Queue) {
			wl := e.Object.(*kueue.Workload)
			r.meter.released(ctx, wl, wl)
		},
	})
}

// released records the run of a Workload that has lost its quota, unless that passed through metered. after is before
// for one that is gone. Nothing holds quota for it: the records have it a while later.
func (m *meter) released(ctx context.Context, before, after *kueue.Workload) {
	goesOn := after != before && podsets.HoldsQuota(after) && usage.Key(after) == usage.Key(before)
	if goesOn || !podsets.HoldsQuota(before) || !isTrainJob(metav1.GetControllerOfNoCopy(before)) {
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
