package integration

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	"github.com/signalbox-dev/signalbox/admission/checkpoint"
	"github.com/signalbox-dev/signalbox/admission/usage"
	"github.com/signalbox-dev/signalbox/integration/managed"
	"github.com/signalbox-dev/signalbox/podsets"
)

// begun returns what to note of a started TrainJob: that its pods run, or that they were made again since. It is nil if
// that is noted. What one that names no metric of its checkpoints has lost by a restart isn't known.
func (r *observer) begun(ctx context.Context, o *situation) (*usage.Note, error) {
	holder := holderOf(o.workloads.own)
	if r.meter == nil || o.jobSet == nil || holder == nil || managed.Elsewhere(o.job) {
		return nil, nil
	}
	note := r.meter.noteOf(o.job)
	note.Run, note.Running, note.Attempt = usage.Reserved(holder), o.now, attemptOf(o.jobSet)
	if usage.Began(holder) {
		if slices.ContainsFunc(o.workloads.aside, podsets.Replaced) {
			return nil, nil // what that has held is recorded first
		}
		noted := usage.NoteOf(holder)
		if noted.Attempt == note.Attempt || checkpoint.Metric(o.job, o.jobSet) == "" {
			return nil, nil
		}
		note.Running = noted.Running
		return &note, nil
	}
	pods, err := r.store.Pods.Named(ctx, o.jobSet)
	if err != nil || !slices.ContainsFunc(pods, func(pod corev1.Pod) bool { return hasBegun(&pod) }) {
		return nil, err
	}
	return &note, nil
}

// attemptOf returns what is another for other pods of a TrainJob: its JobSet, and how often that has restarted.
func attemptOf(js *jobset.JobSet) string {
	return fmt.Sprintf("%s/%d", js.UID, js.Status.Restarts+ptr.Deref(js.Status.CurrentInPlaceRestartAttempt, 0))
}

// hasBegun reports whether a pod runs, or has run.
func hasBegun(pod *corev1.Pod) bool {
	return pod.Status.Phase != corev1.PodPending && pod.Status.Phase != ""
}

// begins adds the step that notes when the pods of a TrainJob began to run.
func (p *plan) begins(o *situation) {
	if o.queue.begun != nil {
		p.Do(noteBegin{holderOf(o.workloads.own), *o.queue.begun})
	}
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
