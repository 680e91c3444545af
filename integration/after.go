package integration

import (
	"context"
	"errors"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/workload"

	"github.com/signalbox-dev/signalbox/admission/after"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/podsets"
)

// A TrainJob that runs after others has a gate, which the webhook adds when it is created, so that Kueue keeps it in
// its queue without considering it. Here the gate is opened when the others have ended as they had to. How they have
// ended is noted before they are deleted by their TTL.

// observeDependencies finds out what follows from those that a suspended TrainJob waits for. One that isn't there may
// be created a moment later.
func (r *observer) observeDependencies(ctx context.Context, o *situation) (err error) {
	if o.stage != stageSuspended || !after.Waits(o.job) {
		return nil
	}
	lookup := r.siblings(ctx, o.job.Namespace)
	v, err := after.Decide(o.job, lookup)
	if err != nil {
		return err
	}
	if left := pendingFor - o.now.Sub(o.job.CreationTimestamp.Time); v.Missing && left > 0 {
		v.Never = nil
		o.queue.later(left)
	}
	if !v.Open {
		if err := r.observeCircle(ctx, o, &v, lookup); err != nil {
			return err
		}
	}
	if !v.Open && v.Never == nil && (!r.policy.features.gatedAdmission || ignoresGates(o.observed)) {
		v.Never = errNoGates
	}
	o.queue.after = v
	return nil
}

// observeCircle finds out whether a TrainJob waits for itself: one that nobody waits for doesn't.
func (r *observer) observeCircle(ctx context.Context, o *situation, v *after.Verdict, lookup after.Lookup) error {
	waiting, err := r.waitFor(ctx, o.key(), client.Limit(1))
	if err != nil || len(waiting) == 0 {
		return err
	}
	circle, err := after.Circle(o.job, lookup)
	if circle != nil {
		v.Never = circle
	}
	return err
}

// errNoGates is why a TrainJob doesn't wait without being blocked: Kueue would admit it at once.
var errNoGates = errors.New("it runs after others by Kueue's feature gate AdmissionGatedBy, which is off in this " +
	"cluster; have your batch admin turn it on")

// ignoresGates reports whether Kueue has given quota to a TrainJob that waits for others. That it has is said until
// they have ended: it would again.
func ignoresGates(o *observed) bool {
	told := blockedCondition(o.job)
	return told != nil && told.Message == errNoGates.Error() ||
		slices.ContainsFunc(o.workloads.own, func(wl *kueue.Workload) bool {
			return podsets.HoldsQuota(wl) && workload.HasAdmissionGate(wl)
		})
}

// siblings looks TrainJobs of a namespace up. They are the cache's own: they must not be changed.
func (r reads) siblings(ctx context.Context, namespace string) after.Lookup {
	return func(name string) (*api.TrainJob, error) {
		job := &api.TrainJob{}
		err := r.client.Get(ctx, types.NamespacedName{Namespace: namespace, Name: name}, job, client.UnsafeDisableDeepCopy)
		if apierrors.IsNotFound(err) {
			return nil, nil
		}
		return job, err
	}
}

// waitFor returns the TrainJobs that wait for one. They are the cache's own.
func (r reads) waitFor(
	ctx context.Context, key types.NamespacedName, options ...client.ListOption,
) ([]api.TrainJob, error) {
	var waiting api.TrainJobList
	options = append(options, client.InNamespace(key.Namespace), client.MatchingFields{after.Index: key.Name},
		client.UnsafeDisableDeepCopy)
	err := r.client.List(ctx, &waiting, options...)
	return waiting.Items, err
}

// heeds reports whether what follows from others is to be written to a TrainJob.
func heeds(v after.Verdict) bool { return v.Open || v.Note != nil }

// dependents returns the TrainJobs that wait for one.
func (r *observer) dependents(ctx context.Context, job client.Object) []reconcile.Request {
	waiting, err := r.waitFor(ctx, client.ObjectKeyFromObject(job))
	if err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Listing the TrainJobs that wait for one", "trainJob", job.GetName())
	}
	var requests []reconcile.Request
	for i := range waiting {
		requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&waiting[i])})
	}
	return requests
}

// decidesOthers passes what decides about those that wait for a TrainJob; that it is there, and gone, too.
func decidesOthers() predicate.Funcs {
	return predicate.Funcs{
		UpdateFunc: func(e event.UpdateEvent) bool {
			return after.Changed(e.ObjectOld.(*api.TrainJob), e.ObjectNew.(*api.TrainJob))
		},
		GenericFunc: func(event.GenericEvent) bool { return false },
	}
}
