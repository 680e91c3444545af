// Package cleanup deletes TrainJobs that have ended when the time is over for which they stay (admission/ttl), as
// Kubernetes' TTL controller deletes Jobs.
package cleanup

import (
	"context"
	"fmt"
	"slices"
	"time"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kevents "k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	kueueindexer "sigs.k8s.io/kueue/pkg/controller/core/indexer"

	"github.com/signalbox-dev/signalbox/admission/after"
	"github.com/signalbox-dev/signalbox/admission/ttl"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/podsets"
	"github.com/signalbox-dev/signalbox/store"
	"github.com/signalbox-dev/signalbox/store/events"
)

// Reconciler deletes TrainJobs.
type Reconciler struct {
	client   client.Client
	recorder *events.Recorder
	clock    clock.PassiveClock
}

// New returns a Reconciler. The client's cache has the TrainJobs and their JobSets.
func New(c client.Client, sink kevents.EventRecorder, clk clock.PassiveClock) *Reconciler {
	return &Reconciler{client: c, recorder: events.NewRecorder(sink), clock: clk}
}

// SetupWithManager registers the controller. It watches nothing that the integration doesn't, and looks at TrainJobs
// that have ended alone.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(mgr).Named("cleanup").
		WithOptions(controller.Options{MaxConcurrentReconciles: workers}).
		For(&api.TrainJob{}, builder.WithPredicates(predicate.NewPredicateFuncs(hasEnded))).Complete(r)
}

// workers is how many TrainJobs are deleted at a time: many may end at once.
const workers = 4

func hasEnded(o client.Object) bool {
	_, ended := ttl.Ended(o.(*api.TrainJob))
	return ended
}

// Reconcile deletes a TrainJob whose time is over.
func (r *Reconciler) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	job := &api.TrainJob{}
	if err := r.client.Get(ctx, request.NamespacedName, job); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if !job.DeletionTimestamp.IsZero() || job.Labels[kueue.MultiKueueOriginLabel] != "" {
		return reconcile.Result{}, nil // the cluster that it was submitted to deletes it here, too
	}
	runtime, err := r.ofRuntime(ctx, job)
	if err != nil {
		return reconcile.Result{}, err
	}
	left, set, err := ttl.Left(job, runtime, r.clock.Now())
	if err != nil { // no webhook has seen it
		r.recorder.Send(job, events.ExpiryIgnored.Of(err.Error()))
		return reconcile.Result{}, nil
	}
	if !set || left > 0 {
		return reconcile.Result{RequeueAfter: left}, nil
	}
	for _, awaited := range []func(context.Context, *api.TrainJob) (bool, error){r.holdsQuota, r.unheeded} {
		if awaits, err := awaited(ctx, job); err != nil || awaits {
			return reconcile.Result{RequeueAfter: recheck}, err
		}
	}
	return reconcile.Result{}, r.delete(ctx, job)
}

// ofRuntime returns the annotations that a TrainJob's runtime gives to its JobSet; nil if the TrainJob has its own. A
// JobSet that is gone, after its own time say, had those of the runtime that the TrainJob is pinned to.
func (r *Reconciler) ofRuntime(ctx context.Context, job *api.TrainJob) (map[string]string, error) {
	if ttl.Own(job) {
		return nil, nil
	}
	js, err := store.JobSetNamed(ctx, r.client, client.ObjectKeyFromObject(job))
	if err != nil {
		return nil, err
	}
	if js != nil && metav1.IsControlledBy(js, job) { // else it is of an earlier one of the name
		return js.Annotations, nil
	}
	pinned, err := store.Pinned(job)
	if err != nil { // another try reads the same
		ctrl.LoggerFrom(ctx).Info("A TrainJob stays after its end, whatever its runtime says", "reason", err.Error())
	}
	if pinned == nil {
		return nil, nil
	}
	return pinned.Template.Annotations, nil
}

// recheck is how often a TrainJob is looked at whose time is over, and whose pods still end, or whose end others have
// not noted.
const recheck = 5 * time.Second

// holdsQuota reports whether a TrainJob's quota isn't released yet. What it has used is recorded before that, and how
// it has ended is a part of the record.
func (r *Reconciler) holdsQuota(ctx context.Context, job *api.TrainJob) (bool, error) {
	var workloads kueue.WorkloadList
	err := r.client.List(ctx, &workloads, client.InNamespace(job.Namespace), client.UnsafeDisableDeepCopy,
		kueueindexer.OwnerReferenceIndexFieldMatcher(trainerapi.GroupVersion.WithKind(trainerapi.TrainJobKind), job.Name))
	if err != nil {
		return false, fmt.Errorf("listing the TrainJob's Workloads: %w", err)
	}
	return slices.ContainsFunc(workloads.Items, func(wl kueue.Workload) bool {
		return metav1.IsControlledBy(&wl, job) && podsets.HoldsQuota(&wl)
	}), nil
}

// unheeded reports whether TrainJobs that wait for one have not noted yet how it has ended.
func (r *Reconciler) unheeded(ctx context.Context, job *api.TrainJob) (bool, error) {
	var waiting api.TrainJobList
	err := r.client.List(ctx, &waiting, client.InNamespace(job.Namespace), client.UnsafeDisableDeepCopy,
		client.MatchingFields{after.Index: job.Name})
	if err != nil {
		return false, fmt.Errorf("listing the TrainJobs that wait for it: %w", err)
	}
	return slices.ContainsFunc(waiting.Items, func(w api.TrainJob) bool {
		return w.DeletionTimestamp.IsZero() && !after.Heeded(&w, job)
	}), nil
}

// delete deletes a TrainJob as it was looked at: one that was changed since, or created again, is looked at once more.
func (r *Reconciler) delete(ctx context.Context, job *api.TrainJob) error {
	err := r.client.Delete(ctx, job, client.Preconditions{UID: &job.UID, ResourceVersion: &job.ResourceVersion})
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("deleting the TrainJob, whose time after its end is over: %w", err)
	}
	if err == nil {
		at, _ := ttl.Ended(job)
		whose := "its runtime"
		if ttl.Own(job) {
			whose = "it"
		}
		r.recorder.Send(job, events.Expired.Of(at.UTC().Format(time.RFC3339), api.TTLAnnotation, whose))
	}
	return nil
}
