// Package cleanup deletes TrainJobs that have ended when the time is over for which they stay (admission/ttl), as
// Kubernetes' TTL controller deletes Jobs.
package cleanup

import (
	"context"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kevents "k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/signalbox-dev/signalbox/admission/ttl"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
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
		For(&api.TrainJob{}, builder.WithPredicates(predicate.NewPredicateFuncs(hasEnded))).Complete(r)
}

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
	var js *jobset.JobSet
	if !ttl.Own(job) {
		var err error
		if js, err = store.JobSetNamed(ctx, r.client, request.NamespacedName); err != nil {
			return reconcile.Result{}, err
		}
		if js != nil && !metav1.IsControlledBy(js, job) {
			js = nil // of an earlier one of the name
		}
	}
	left, set, err := ttl.Left(job, js, r.clock.Now())
	if err != nil { // the webhook was off when it was written
		ctrl.LoggerFrom(ctx).Info("A TrainJob isn't deleted after its end", "reason", err.Error())
		return reconcile.Result{}, nil
	}
	if !set || left > 0 {
		return reconcile.Result{RequeueAfter: left}, nil
	}
	return reconcile.Result{}, r.delete(ctx, job)
}

// delete deletes a TrainJob as it was looked at: one that was changed since, or created again, is looked at once more.
func (r *Reconciler) delete(ctx context.Context, job *api.TrainJob) error {
	err := r.client.Delete(ctx, job, client.Preconditions{UID: &job.UID, ResourceVersion: &job.ResourceVersion})
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("deleting the TrainJob, whose time after its end is over: %w", err)
	}
	if err == nil {
		at, _ := ttl.Ended(job)
		r.recorder.Send(job, events.Expired.Of(at.UTC().Format(time.RFC3339), api.TTLAnnotation))
	}
	return nil
}
