package integration

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/signalbox-dev/signalbox/store"
	"github.com/signalbox-dev/signalbox/store/events"
	"github.com/signalbox-dev/signalbox/store/steps"
)

// actor carries out steps.
type actor struct {
	client   client.Client
	store    *store.Store
	recorder *events.Recorder
	memory   *memory
	clock    clock.Clock
	meter    *meter
}

// act is a step that can be carried out: each is.
type act interface {
	step
	do(ctx context.Context, a *actor, o *situation) error
}

var _ = []act{
	start{},
	suspend{},
	stop{},
	announce{},
	noteBegin{},
	setBoost{},
	unboost{},
	createSlice{},
	withdraw{},
	finalize{},
	failStart{},
	tell{},
	count{},
	remember{},
	writeStatus{},
	clearEntry{},
	migrate{},
	heed{},
	deleteSnapshot{},
	deleteJobSet{},
	deleteJob{},
	finishWorkload{},
	lookAgain{},
	deleteWorkload{},
	releaseWorkload{},
	deactivate{},
	activate{},
	hold{},
	unhold{},
}

// carryOut carries steps out in their order.
func (a *actor) carryOut(ctx context.Context, o *situation, planned []step) error {
	return steps.Run(planned, func(s step) error { return s.(act).do(ctx, a, o) })
}

func (s start) do(ctx context.Context, a *actor, o *situation) error {
	way, err := o.trainer.write(ctx, a.store.Writer, s.start)
	a.countStart(o, way, s.workload, err)
	if err != nil {
		a.startRejected(o, err)
		return fmt.Errorf("starting: %w", err)
	}
	a.memory.keep(o.key(), o.job.UID, func(m *record) { m.setback = setback{} })
	for _, e := range s.events {
		a.recorder.Send(o.job, e)
	}
	a.recorder.Send(o.job, events.Started.Of(s.message, wayNames[way], o.trainer.Field))
	return nil
}

// wayNames are the ways of a start, in words.
var wayNames = map[string]string{oneWrite: "one write", twoWrites: "two writes"}

func (s suspend) do(ctx context.Context, a *actor, o *situation) error {
	if err := client.IgnoreNotFound(a.store.Writer.Suspend(ctx, o.job)); err != nil {
		if store.Rejected(err) {
			a.memory.keep(o.key(), o.job.UID, func(m *record) { m.stopRejected = m.stopRejected.again(err, o.now) })
		}
		return errors.Join(fmt.Errorf("suspending: %w", err), a.stopJobSet(ctx, o))
	}
	if !o.memory.stopRejected.since.IsZero() {
		a.memory.keep(o.key(), o.job.UID, func(m *record) { m.stopRejected = rejection{} })
	}
	if s.eviction != "" {
		a.countEviction(o, s.eviction)
	}
	ctrl.LoggerFrom(ctx).V(1).Info("Suspended the TrainJob", "reason", s.reason)
	return nil
}

// stopJobSet deletes the JobSet of a TrainJob that can't be suspended. The bundled Trainer creates none for one that
// has lost its quota.
func (a *actor) stopJobSet(ctx context.Context, o *situation) error {
	if o.jobSet == nil || !o.jobSet.DeletionTimestamp.IsZero() || !o.trainer.deletesJobSet {
		return nil
	}
	return deleteJobSet{jobSet: o.jobSet, foreground: true}.do(ctx, a, o)
}

func (s stop) do(ctx context.Context, a *actor, o *situation) error {
	if err := s.suspend.do(ctx, a, o); err != nil {
		return err
	}
	if s.event != nil {
		a.recorder.Send(o.job, *s.event)
	}
	return nil
}

func (s failStart) do(_ context.Context, a *actor, o *situation) error {
	entryConflicts.Inc()
	a.recorder.Send(o.job, s.event)
	return nil
}

func (s tell) do(_ context.Context, a *actor, o *situation) error {
	a.recorder.Send(o.job, s.event)
	return nil
}

func (s count) do(context.Context, *actor, *situation) error {
	s.counter.Inc()
	return nil
}

func (s remember) do(_ context.Context, a *actor, o *situation) error {
	a.memory.keep(o.key(), o.job.UID, func(r *record) {
		r.workload = cmp.Or(s.workload, r.workload)
		if !s.finished.IsZero() {
			r.finished = s.finished
		}
		if !s.reclaimed.IsZero() {
			r.reclaimed = s.reclaimed
		}
		if s.setback != nil {
			r.setback = *s.setback
		}
		if s.stops {
			r.stopRejected = rejection{}
		}
	})
	return nil
}

func (s writeStatus) do(ctx context.Context, a *actor, o *situation) error {
	for _, e := range s.events {
		a.recorder.Send(o.job, e)
	}
	return unlessGone(a.store.Writer.Status(ctx, o.job, s.status), "writing the conditions")
}

func (clearEntry) do(ctx context.Context, a *actor, o *situation) error {
	if err := a.store.Writer.Clear(ctx, o.trainer.Dialect, o.job); err != nil {
		a.startRejected(o, err)
		return fmt.Errorf("clearing the entry of the last admission: %w", err)
	}
	return nil
}

func (s migrate) do(ctx context.Context, a *actor, o *situation) error {
	from, to := s.record.Field, o.trainer.Field
	operations, err := o.trainer.Migrate(o.job, s.record, metav1.NewTime(o.now))
	if err != nil {
		return fmt.Errorf("migrating spec.%s to spec.%s: %w", from, to, err)
	}
	if err := a.store.Writer.Migrate(ctx, o.job, operations); err != nil {
		a.startRejected(o, err)
		return fmt.Errorf("migrating spec.%s to spec.%s: %w", from, to, err)
	}
	if len(s.record.Users) > 0 {
		a.recorder.Send(o.job, events.OverridesMigrated.Of(from, to, o.trainer.Name))
	}
	return nil
}

func (s heed) do(ctx context.Context, a *actor, o *situation) error {
	return unlessGone(a.store.Writer.Heed(ctx, o.job, s.verdict), "noting how those have ended that it runs after")
}

func (s deleteSnapshot) do(ctx context.Context, a *actor, o *situation) error {
	asRead := client.Preconditions{UID: &s.object.UID, ResourceVersion: &s.object.ResourceVersion}
	if err := a.client.Delete(ctx, s.object.DeepCopy(), asRead); err != nil {
		return client.IgnoreNotFound(fmt.Errorf("deleting the outdated runtime snapshot: %w", err))
	}
	snapshotsDropped.Inc()
	a.recorder.Send(o.job, events.RuntimeChanged.Of(store.Describe(o.job)))
	return nil
}

func (s deleteJobSet) do(ctx context.Context, a *actor, o *situation) error {
	propagation := client.PropagationPolicy(metav1.DeletePropagationBackground)
	if s.foreground {
		propagation = client.PropagationPolicy(metav1.DeletePropagationForeground)
	}
	err := a.client.Delete(ctx, s.jobSet.DeepCopy(), propagation, client.Preconditions{UID: &s.jobSet.UID})
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("deleting the JobSet of the earlier runtime: %w", err)
	}
	if s.rebuilt != "" {
		a.memory.keep(o.key(), o.job.UID, func(rec *record) { rec.rebuilt = s.rebuilt })
	}
	return nil
}

func (s deleteJob) do(ctx context.Context, a *actor, _ *situation) error {
	err := a.client.Delete(ctx, s.job.DeepCopy(), client.PropagationPolicy(metav1.DeletePropagationBackground),
		client.Preconditions{UID: &s.job.UID})
	return unlessGone(err, "deleting Job "+s.job.Name+" of the last admission")
}

// countStart counts the write of a start, and measures what it starts.
func (a *actor) countStart(o *situation, way string, wl *kueue.Workload, err error) {
	starts.WithLabelValues(way, o.trainer.Field, resultOf(err)).Inc()
	if err != nil {
		return
	}
	now := a.clock.Now()
	if apimeta.FindStatusCondition(wl.Status.Conditions, kueue.WorkloadAdmitted) != nil {
		admissionToStart.Observe(max(o.waited(wl)+now.Sub(o.now), 0).Seconds())
	}
	a.memory.keep(o.key(), o.job.UID, func(rec *record) { rec.started = now })
}

// countEviction counts a TrainJob that was stopped.
func (a *actor) countEviction(o *situation, reason string) {
	evictions.WithLabelValues(reason).Inc()
	a.memory.keep(o.key(), o.job.UID, func(rec *record) { rec.started = time.Time{} })
}

// startRejected remembers that the API server has rejected a start, or a write that the start waits for.
func (a *actor) startRejected(o *situation, err error) {
	if !store.Rejected(err) {
		return
	}
	inputs, says := inputsOf(o.observed), "the start is rejected: "+err.Error()
	a.memory.keep(o.key(), o.job.UID, func(m *record) {
		m.setback = m.setback.again(ReasonStartRejected, says, inputs, o.now)
	})
}
