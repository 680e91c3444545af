package integration

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	"github.com/signalbox-dev/signalbox/admission/usage"
	"github.com/signalbox-dev/signalbox/podsets"
)

// begun returns what to note of a started TrainJob whose pods run, and of which that isn't noted yet; nil for nothing.
func (r *observer) begun(ctx context.Context, o *situation) (*usage.Note, error) {
	holder := holderOf(o.workloads.own)
	if r.meter == nil || o.jobSet == nil || holder == nil || usage.Began(holder) || elsewhere(o.job) {
		return nil, nil
	}
	pods, err := r.store.Pods.Named(ctx, o.jobSet)
	if err != nil || !slices.ContainsFunc(pods, func(pod corev1.Pod) bool { return hasBegun(&pod) }) {
		return nil, err
	}
	note := r.meter.noteOf(o.job)
	note.Run, note.Running = usage.Reserved(holder), o.now
	return &note, nil
}

// hasBegun reports whether a pod runs, or has run.
func hasBegun(pod *corev1.Pod) bool {
	return pod.Status.Phase != corev1.PodPending && pod.Status.Phase != ""
}

// begins returns the step that notes when the pods of a TrainJob began to run.
func begins(o *situation) []step {
	if o.queue.begun == nil {
		return nil
	}
	return []step{noteBegin{holderOf(o.workloads.own), *o.queue.begun}}
}

// watchBegins has TrainJobs reconciled when the first of their pods begins to run, if that is noted.
func (r *observer) watchBegins(b *builder.Builder, pods func(handler.MapFunc) handler.EventHandler) *builder.Builder {
	if r.meter == nil {
		return b
	}
	return b.Watches(&corev1.Pod{}, pods(r.unnoted), builder.WithPredicates(podBegins()))
}

// podBegins passes a pod that begins to run.
func podBegins() predicate.Funcs {
	return predicate.Funcs{
		CreateFunc: func(e event.CreateEvent) bool { return hasBegun(e.Object.(*corev1.Pod)) },
		UpdateFunc: func(e event.UpdateEvent) bool {
			return hasBegun(e.ObjectNew.(*corev1.Pod)) && !hasBegun(e.ObjectOld.(*corev1.Pod))
		},
		DeleteFunc:  func(event.DeleteEvent) bool { return false },
		GenericFunc: func(event.GenericEvent) bool { return false },
	}
}

// unnoted returns the TrainJob of a pod if it isn't noted yet when its pods began to run.
func (r *observer) unnoted(ctx context.Context, pod client.Object) []reconcile.Request {
	key := types.NamespacedName{Namespace: pod.GetNamespace(), Name: pod.GetLabels()[jobset.JobSetNameKey]}
	workloads, err := r.workloadsOf(ctx, key)
	if err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Listing the Workloads of a pod's TrainJob", "trainJob", key)
		return nil
	}
	for _, wl := range workloads {
		if podsets.HoldsQuota(wl) && !usage.Began(wl) {
			return []reconcile.Request{{NamespacedName: key}}
		}
	}
	return nil
}
