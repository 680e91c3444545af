package integration

import (
	"context"
	"errors"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/signalbox-dev/signalbox/admission"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides"
	"github.com/signalbox-dev/signalbox/store"
	"github.com/signalbox-dev/signalbox/store/events"
)

// step is one thing that a reconcile does. Steps are values, so that decisions can be compared in tests; they are
// carried out in one place, carryOut.
type step interface {
	do(ctx context.Context, r *Reconciler, o *observed) error
}

// carryOut carries steps out in their order. None depends on another: one that fails doesn't keep what stops or frees
// something from being done. A conflict is returned only if nothing worse has happened.
func (r *Reconciler) carryOut(ctx context.Context, o *observed, steps []step) error {
	var conflict error
	var failures []error
	for _, s := range steps {
		switch err := s.do(ctx, r, o); {
		case apierrors.IsConflict(err):
			conflict = err
		case err != nil:
			failures = append(failures, err)
		}
	}
	if len(failures) > 0 {
		return errors.Join(failures...)
	}
	return conflict
}

// start starts the TrainJob on what its Workload was admitted for.
type start struct {
	start    *admission.Start
	workload *kueue.Workload
	message  string // jobframework's, about the admission
	events   []events.Event
}

func (s start) do(ctx context.Context, r *Reconciler, o *observed) error {
	way, err := o.trainer.write(ctx, r.store.Writer, s.start)
	r.countStart(o, way, s.workload, err)
	if err != nil {
		r.startRejected(o, err)
		return fmt.Errorf("starting: %w", err)
	}
	r.memory.keep(o.key(), o.job.UID, func(m *record) { m.setback = setback{} })
	for _, e := range s.events {
		r.recorder.Send(o.job, e)
	}
	r.recorder.Send(o.job, events.Started.Of(s.message, wayNames[way], o.trainer.Field()))
	return nil
}

// wayNames are the ways of a start, in words.
var wayNames = map[string]string{oneWrite: "one write", twoWrites: "two writes"}

// suspend stops the TrainJob, and changes nothing else.
type suspend struct {
	reason   string // for the log
	eviction string // for the metric of evictions; "" if it isn't one
}

func (s suspend) do(ctx context.Context, r *Reconciler, o *observed) error {
	if err := client.IgnoreNotFound(r.store.Writer.Suspend(ctx, o.job)); err != nil {
		if store.Rejected(err) {
			r.memory.keep(o.key(), o.job.UID, func(m *record) { m.stopRejected = m.stopRejected.again(err, o.now) })
		}
		return errors.Join(fmt.Errorf("suspending: %w", err), r.stopJobSet(ctx, o))
	}
	if !o.memory.stopRejected.since.IsZero() {
		r.memory.keep(o.key(), o.job.UID, func(m *record) { m.stopRejected = rejection{} })
	}
	if s.eviction != "" {
		r.countEviction(o, s.eviction)
	}
	ctrl.LoggerFrom(ctx).V(1).Info("Suspended the TrainJob", "reason", s.reason)
	return nil
}

// stopJobSet deletes the JobSet of a TrainJob that can't be suspended. The bundled Trainer creates none for one that
// has lost its quota.
func (r *Reconciler) stopJobSet(ctx context.Context, o *observed) error {
	if o.jobSet == nil || !o.jobSet.DeletionTimestamp.IsZero() || !o.trainer.deletesJobSet() {
		return nil
	}
	return deleteJobSet{jobSet: o.jobSet, foreground: true}.do(ctx, r, o)
}

// stop is a suspend that jobframework has asked for.
type stop struct {
	suspend
	event *events.Event // nil for none
}

func (s stop) do(ctx context.Context, r *Reconciler, o *observed) error {
	if err := s.suspend.do(ctx, r, o); err != nil {
		return err
	}
	if s.event != nil {
		r.recorder.Send(o.job, *s.event)
	}
	return nil
}

// failStart reports a start that has failed for good.
type failStart struct{ event events.Event }

func (s failStart) do(_ context.Context, r *Reconciler, o *observed) error {
	entryConflicts.Inc()
	r.recorder.Send(o.job, s.event)
	return nil
}

// tell sends an event.
type tell struct{ event events.Event }

func (s tell) do(_ context.Context, r *Reconciler, o *observed) error {
	r.recorder.Send(o.job, s.event)
	return nil
}

// count adds one to a counter.
type count struct{ counter prometheus.Counter }

func (s count) do(context.Context, *Reconciler, *observed) error {
	s.counter.Inc()
	return nil
}

// remember changes what this process remembers of the TrainJob.
type remember struct{ change func(*record) }

func (s remember) do(_ context.Context, r *Reconciler, o *observed) error {
	r.memory.keep(o.key(), o.job.UID, s.change)
	return nil
}

// writeStatus writes the conditions Blocked and StopOverdue, and sends the events of those that are new.
type writeStatus struct {
	status *api.TrainJobStatus
	events []events.Event
}

func (s writeStatus) do(ctx context.Context, r *Reconciler, o *observed) error {
	for _, e := range s.events {
		r.recorder.Send(o.job, e)
	}
	if err := r.store.Writer.Status(ctx, o.job, s.status); err != nil {
		return client.IgnoreNotFound(fmt.Errorf("writing the conditions: %w", err))
	}
	return nil
}

// clearEntry empties the entry of the last admission.
type clearEntry struct{}

func (clearEntry) do(ctx context.Context, r *Reconciler, o *observed) error {
	if err := r.store.Writer.Clear(ctx, o.trainer, o.job); err != nil {
		r.startRejected(o, err)
		return fmt.Errorf("clearing the entry of the last admission: %w", err)
	}
	return nil
}

// migrate moves what the TrainJob said to a previous Trainer into the present one's fields.
type migrate struct{ record *overrides.Record }

func (s migrate) do(ctx context.Context, r *Reconciler, o *observed) error {
	from, to := s.record.Field, o.trainer.Field()
	m, err := o.trainer.Migrate(o.job, s.record, metav1.NewTime(o.now))
	if err != nil {
		return fmt.Errorf("migrating spec.%s to spec.%s: %w", from, to, err)
	}
	operations, err := m.Operations(o.job)
	if err == nil {
		err = r.store.Writer.Migrate(ctx, o.job, operations)
	}
	if err != nil {
		r.startRejected(o, err)
		return fmt.Errorf("migrating spec.%s to spec.%s: %w", from, to, err)
	}
	if len(s.record.Users) > 0 {
		r.recorder.Send(o.job, events.OverridesMigrated.Of(from, to, o.trainer.Name()))
	}
	return nil
}

// deleteSnapshot deletes Kubeflow Trainer's snapshot of a runtime that was edited.
type deleteSnapshot struct{ object *corev1.ConfigMap }

func (s deleteSnapshot) do(ctx context.Context, r *Reconciler, o *observed) error {
	asRead := client.Preconditions{UID: &s.object.UID, ResourceVersion: &s.object.ResourceVersion}
	if err := r.client.Delete(ctx, s.object.DeepCopy(), asRead); err != nil {
		return client.IgnoreNotFound(fmt.Errorf("deleting the outdated runtime snapshot: %w", err))
	}
	snapshotsDropped.Inc()
	r.recorder.Send(o.job, events.RuntimeChanged.Of(store.Describe(o.job)))
	return nil
}

// deleteJobSet deletes a JobSet that Kubeflow Trainer creates again.
type deleteJobSet struct {
	jobSet     *jobset.JobSet
	foreground bool
	// rebuilt is the state of runtime and entries for which it is deleted; "" if that is not to be remembered.
	rebuilt string
}

func (s deleteJobSet) do(ctx context.Context, r *Reconciler, o *observed) error {
	propagation := client.PropagationPolicy(metav1.DeletePropagationBackground)
	if s.foreground {
		propagation = client.PropagationPolicy(metav1.DeletePropagationForeground)
	}
	err := r.client.Delete(ctx, s.jobSet.DeepCopy(), propagation, client.Preconditions{UID: &s.jobSet.UID})
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("deleting the JobSet of the earlier runtime: %w", err)
	}
	if s.rebuilt != "" {
		r.memory.keep(o.key(), o.job.UID, func(rec *record) { rec.rebuilt = s.rebuilt })
	}
	return nil
}

// deleteJob deletes a suspended Job of the last admission; JobSet creates it again from its template.
type deleteJob struct{ job *batchv1.Job }

func (s deleteJob) do(ctx context.Context, r *Reconciler, _ *observed) error {
	err := r.client.Delete(ctx, s.job.DeepCopy(), client.PropagationPolicy(metav1.DeletePropagationBackground),
		client.Preconditions{UID: &s.job.UID})
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("deleting Job %s of the last admission: %w", s.job.Name, err)
	}
	return nil
}
