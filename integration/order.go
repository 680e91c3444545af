package integration

import (
	"context"

	trainjobutil "github.com/kubeflow/trainer/v2/pkg/util/trainjob"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/workload"
	workloadfinish "sigs.k8s.io/kueue/pkg/workload/finish"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// Priorities in the controller's queue; what isn't named has 0. TrainJobs that hold quota come first: however many are
// submitted or wait, GPUs stand idle only for those that are to start, stop or end. Among them come first those that have just
// been admitted: a start is one write, and a JobSet, for which others than we work the longer, is made when none waits for
// its start. What nobody waits for comes last.
const (
	admittedPriority = 20
	holderPriority   = 10
	laterPriority    = -20
)

// holdersFirst passes events on, those of what holds quota with holderPriority, an admission with admittedPriority.
type holdersFirst struct{ handler.EventHandler }

// Create implements handler.EventHandler; after a restart, too, holders come first.
func (h holdersFirst) Create(ctx context.Context, e event.CreateEvent, q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
	h.EventHandler.Create(ctx, e, queueFor(q, priorityOf(e.Object)))
}

// Update implements handler.EventHandler; what has just come to its end, or was stopped, is raised once more.
func (h holdersFirst) Update(ctx context.Context, e event.UpdateEvent, q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
	priority := max(priorityOf(e.ObjectOld), priorityOf(e.ObjectNew))
	if before, ok := e.ObjectOld.(*kueue.Workload); ok && !workload.IsAdmitted(before) && workload.IsAdmitted(e.ObjectNew.(*kueue.Workload)) {
		priority = admittedPriority
	}
	h.EventHandler.Update(ctx, e, queueFor(q, priority))
}

// Delete implements handler.EventHandler.
func (h holdersFirst) Delete(ctx context.Context, e event.DeleteEvent, q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
	h.EventHandler.Delete(ctx, e, queueFor(q, priorityOf(e.Object)))
}

func queueFor(q workqueue.TypedRateLimitingInterface[reconcile.Request], priority int) workqueue.TypedRateLimitingInterface[reconcile.Request] {
	if pq, ok := q.(priorityqueue.PriorityQueue[reconcile.Request]); ok && priority > 0 {
		return raised{pq, priority}
	}
	return q
}

func priorityOf(o client.Object) int {
	if holdsQuota(o) {
		return holderPriority
	}
	return 0
}

// holdsQuota tells whether an object's TrainJob holds quota, as far as the object tells. A JobSet runs with quota; a pod is
// passed on only where it is what quota is still held for (jobOf).
func holdsQuota(o client.Object) bool {
	switch o := o.(type) {
	case *api.TrainJob:
		return !ptr.Deref(o.Spec.Suspend, false) && !trainjobutil.IsTrainJobFinished(o.Upstream())
	case *kueue.Workload:
		return workload.HasQuotaReservation(o) && !workloadfinish.IsFinished(o)
	case *jobset.JobSet:
		return !ptr.Deref(o.Spec.Suspend, false) && o.Status.TerminalState == ""
	case *corev1.Pod:
		return true
	}
	return false
}

// placed gives a TrainJob that is to be looked at again its place in the queue. After an error it keeps the one that it had: a
// start that has failed doesn't wait behind a status that was to be written. What waits for a time, and doesn't say that it
// comes last, is about to start or to stop.
func placed(result reconcile.Result, err error) reconcile.Result {
	if err != nil {
		return reconcile.Result{}
	}
	if result.RequeueAfter > 0 && result.Priority == nil {
		result.Priority = ptr.To(holderPriority)
	}
	return result
}

// raised is a queue into which everything comes with a priority.
type raised struct {
	priorityqueue.PriorityQueue[reconcile.Request]
	priority int
}

// Add implements workqueue.TypedRateLimitingInterface.
func (r raised) Add(item reconcile.Request) { r.AddWithOpts(priorityqueue.AddOpts{}, item) }

// AddWithOpts implements priorityqueue.PriorityQueue.
func (r raised) AddWithOpts(o priorityqueue.AddOpts, items ...reconcile.Request) {
	o.Priority = &r.priority
	r.PriorityQueue.AddWithOpts(o, items...)
}
