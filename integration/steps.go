package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	clientutil "sigs.k8s.io/kueue/pkg/util/client"
	"sigs.k8s.io/kueue/pkg/workload"
	workloadfinish "sigs.k8s.io/kueue/pkg/workload/finish"

	"github.com/signalbox-dev/signalbox/admission"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/events"
	"github.com/signalbox-dev/signalbox/overrides"
	"github.com/signalbox-dev/signalbox/store"
)

// step is one thing that a reconcile does. Steps are values, so that decisions can be compared in tests; they are
// carried out in one place, carryOut.
type step interface {
	do(ctx context.Context, r *Reconciler, o *observed) error
}

// carryOut carries steps out in their order, until one fails.
func (r *Reconciler) carryOut(ctx context.Context, o *observed, steps []step) error {
	for _, s := range steps {
		if err := s.do(ctx, r, o); err != nil {
			return err
		}
	}
	return nil
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
		return fmt.Errorf("starting: %w", err)
	}
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
	if err := r.store.Writer.Suspend(ctx, o.job); err != nil {
		return client.IgnoreNotFound(fmt.Errorf("suspending: %w", err))
	}
	if s.eviction != "" {
		r.countEviction(o, s.eviction)
	}
	ctrl.LoggerFrom(ctx).V(1).Info("Suspended the TrainJob", "reason", s.reason)
	return nil
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

// finishWorkload ends the Workload of a TrainJob that can't be started.
type finishWorkload struct {
	workload        *kueue.Workload
	reason, message string
}

func (s finishWorkload) do(ctx context.Context, r *Reconciler, _ *observed) error {
	err := workloadfinish.Finish(ctx, r.client, s.workload.DeepCopy(), s.reason, s.message, r.clock)
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("finishing Workload %s: %w", s.workload.Name, err)
	}
	return nil
}

// lookAgain changes a Workload so that Kueue reconciles it.
type lookAgain struct{ workload *kueue.Workload }

func (s lookAgain) do(ctx context.Context, r *Reconciler, o *observed) error {
	after := s.workload.DeepCopy()
	metav1.SetMetaDataAnnotation(&after.ObjectMeta, DispatchAnnotation, o.now.UTC().Format(time.RFC3339))
	if err := r.client.Patch(ctx, after, client.MergeFrom(s.workload)); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("making Kueue look at Workload %s again: %w", s.workload.Name, err)
	}
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
		return fmt.Errorf("bringing spec.%s to spec.%s: %w", from, to, err)
	}
	operations, err := m.Operations(o.job)
	if err == nil {
		err = r.store.Writer.Migrate(ctx, o.job, operations)
	}
	if err != nil {
		return fmt.Errorf("bringing spec.%s to spec.%s: %w", from, to, err)
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

// deleteWorkload deletes a Workload that was admitted for something else; the next is for what is to run.
type deleteWorkload struct {
	workload *kueue.Workload
	event    events.Event
}

func (s deleteWorkload) do(ctx context.Context, r *Reconciler, o *observed) error {
	wl := s.workload
	asRead := client.Preconditions{UID: &wl.UID, ResourceVersion: &wl.ResourceVersion}
	if err := r.client.Delete(ctx, wl.DeepCopy(), asRead); err != nil {
		return client.IgnoreNotFound(fmt.Errorf("deleting Workload %s: %w", wl.Name, err))
	}
	r.recorder.Send(o.job, s.event)
	return nil
}

// releaseWorkload removes the finalizer that keeps a Workload, and its quota if it isn't finished.
type releaseWorkload struct{ workload *kueue.Workload }

func (s releaseWorkload) do(ctx context.Context, r *Reconciler, _ *observed) error {
	after := s.workload.DeepCopy()
	controllerutil.RemoveFinalizer(after, kueue.ResourceInUseFinalizerName)
	// The list may have finalizers of others.
	asRead := client.MergeFromWithOptions(s.workload, client.MergeFromWithOptimisticLock{})
	if err := r.client.Patch(ctx, after, asRead); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("releasing Workload %s: %w", workload.Key(s.workload), err)
	}
	return nil
}

// deactivate deactivates a Workload whose pods have ended.
type deactivate struct {
	workload *kueue.Workload
	// byUser is set if the TrainJob's user alone has asked for it, who may activate the Workload again by taking
	// StopAnnotation off the TrainJob.
	byUser bool
}

func (s deactivate) do(ctx context.Context, r *Reconciler, _ *observed) error {
	wl := s.workload
	annotations := map[string]any{DeactivateAnnotation: nil}
	if s.byUser {
		annotations[api.StopAnnotation] = "true"
	}
	if err := r.setActive(ctx, wl, false, annotations); err != nil {
		return client.IgnoreNotFound(fmt.Errorf("deactivating Workload %s: %w", wl.Name, err))
	}
	ctrl.LoggerFrom(ctx).Info("Deactivated a Workload whose pods have ended",
		"workload", wl.Name, "for", wl.Annotations[DeactivateAnnotation])
	return nil
}

// activate activates the Workload of a TrainJob that its user had stopped.
type activate struct{ workload *kueue.Workload }

func (s activate) do(ctx context.Context, r *Reconciler, _ *observed) error {
	if err := r.setActive(ctx, s.workload, true, map[string]any{api.StopAnnotation: nil}); err != nil {
		return client.IgnoreNotFound(fmt.Errorf("activating Workload %s: %w", s.workload.Name, err))
	}
	return nil
}

// setActive writes spec.active and annotations of a Workload, in the version that was read.
func (r *Reconciler) setActive(
	ctx context.Context, wl *kueue.Workload, active bool, annotations map[string]any,
) error {
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": wl.UID, "resourceVersion": wl.ResourceVersion, "annotations": annotations},
		"spec":     map[string]any{"active": active},
	})
	if err != nil {
		return err
	}
	return r.client.Patch(ctx, wl.DeepCopy(), client.RawPatch(types.MergePatchType, patch))
}

// unhold queues a Workload again that was put on hold while its TrainJob was blocked.
type unhold struct{ workload *kueue.Workload }

func (s unhold) do(ctx context.Context, r *Reconciler, _ *observed) error {
	wl := s.workload.DeepCopy()
	return client.IgnoreNotFound(clientutil.PatchStatus(ctx, r.client, wl, func() (bool, error) {
		reason := workload.UnadmittedWorkloadReasonWithFallback(
			kueue.WorkloadQuotaReservedReasonPendingEvaluation, "Pending")
		return workload.UnsetQuotaReservationWithCondition(
			wl, reason, "The TrainJob is no longer blocked", r.clock.Now()), nil
	}))
}
