package integration

import (
	"context"
	"math/bits"
	"sync"

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

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// Priorities in the controller's queue; what isn't named has 0. TrainJobs that hold quota come first, however many are
// submitted or wait: GPUs are idle only because of TrainJobs that start, stop or end. Newly admitted ones precede
// those: a start is one write, while JobSets, on which other controllers work longer, are created when none waits for
// its start. What nothing waits for comes last.
const (
	admittedPriority = 20
	holderPriority   = 10
	laterPriority    = -20
)

// holdersFirst passes events on, those of what holds quota with holderPriority, an admission with admittedPriority, and
// those of what waits by how many of its namespace wait.
type holdersFirst struct {
	handler.EventHandler
	crowds *crowds
}

// crowds lowers the priority of waiting TrainJobs by how many of their namespace are in the queue, so that a namespace
// with ten thousand doesn't delay another with one. Within a namespace the order stays first in, first out.
type crowds struct {
	mu     sync.Mutex
	queued map[string]*crowd // by namespace
}

// A crowd is the TrainJobs of one namespace in the queue.
type crowd struct {
	names map[string]struct{}
	level int // the highest since none was in the queue: a lower one would overtake
}

// The level is 0 up to crowdSize TrainJobs, and one higher each time that they double, up to maxLevel.
const (
	crowdSize = 32
	maxLevel  = 8 // statusPriority of the bundled Trainer is lower
)

func newCrowds() *crowds { return &crowds{queued: map[string]*crowd{}} }

// priority returns the priority of a waiting TrainJob that enters the queue.
func (c *crowds) priority(request reconcile.Request) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	of := c.queued[request.Namespace]
	if of == nil {
		of = &crowd{names: map[string]struct{}{}}
		c.queued[request.Namespace] = of
	}
	of.names[request.Name] = struct{}{}
	of.level = max(of.level, min(bits.Len(uint(len(of.names)-1)/crowdSize), maxLevel))
	return -of.level
}

// took records that a TrainJob has left the queue.
func (c *crowds) took(request reconcile.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if of := c.queued[request.Namespace]; of != nil {
		if delete(of.names, request.Name); len(of.names) == 0 {
			delete(c.queued, request.Namespace)
		}
	}
}

// inTurn is a queue into which everything without a priority gets that of its namespace.
type inTurn struct {
	priorityqueue.PriorityQueue[reconcile.Request]
	crowds *crowds
}

// Add implements workqueue.TypedRateLimitingInterface.
func (q inTurn) Add(item reconcile.Request) { q.AddWithOpts(priorityqueue.AddOpts{}, item) }

// AddWithOpts implements priorityqueue.PriorityQueue.
func (q inTurn) AddWithOpts(o priorityqueue.AddOpts, items ...reconcile.Request) {
	if ptr.Deref(o.Priority, 0) != 0 {
		q.PriorityQueue.AddWithOpts(o, items...)
		return
	}
	for _, item := range items {
		o.Priority = ptr.To(q.crowds.priority(item))
		q.PriorityQueue.AddWithOpts(o, item)
	}
}

// Create implements handler.EventHandler; after a restart, too, holders come first.
func (h holdersFirst) Create(ctx context.Context, e event.CreateEvent, q queue) {
	h.EventHandler.Create(ctx, e, h.queueFor(q, priorityOf(e.Object)))
}

// Update implements handler.EventHandler; what has ended in this update, or was stopped, is raised again.
func (h holdersFirst) Update(ctx context.Context, e event.UpdateEvent, q queue) {
	priority := max(priorityOf(e.ObjectOld), priorityOf(e.ObjectNew))
	before, ok := e.ObjectOld.(*kueue.Workload)
	if ok && !workload.IsAdmitted(before) && workload.IsAdmitted(e.ObjectNew.(*kueue.Workload)) {
		priority = admittedPriority
	}
	h.EventHandler.Update(ctx, e, h.queueFor(q, priority))
}

// Delete implements handler.EventHandler.
func (h holdersFirst) Delete(ctx context.Context, e event.DeleteEvent, q queue) {
	h.EventHandler.Delete(ctx, e, h.queueFor(q, priorityOf(e.Object)))
}

func (h holdersFirst) queueFor(q queue, priority int) queue {
	pq, ok := q.(priorityqueue.PriorityQueue[reconcile.Request])
	switch {
	case !ok:
		return q
	case priority > 0:
		return raised{pq, priority}
	}
	return inTurn{pq, h.crowds}
}

func priorityOf(o client.Object) int {
	if ofHolder(o) {
		return holderPriority
	}
	return 0
}

// ofHolder reports whether an object's TrainJob holds quota, as far as the object shows. A JobSet runs with quota; a
// pod is passed on only where it is what quota is still held for (jobOf).
func ofHolder(o client.Object) bool {
	switch o := o.(type) {
	case *api.TrainJob:
		return !ptr.Deref(o.Spec.Suspend, false) && !trainjobutil.IsTrainJobFinished(o.Upstream())
	case *kueue.Workload:
		return holdsQuota(o)
	case *jobset.JobSet:
		return !ptr.Deref(o.Spec.Suspend, false) && o.Status.TerminalState == ""
	case *corev1.Pod:
		return true
	}
	return false
}

// placed gives a TrainJob that is to be looked at again its place in the queue. After an error it keeps the one that it
// had: a start that has failed doesn't wait behind a status that was to be written. What waits for a time, and doesn't
// say that it comes last, is about to start or to stop.
func placed(result reconcile.Result, err error) reconcile.Result {
	if err != nil {
		return reconcile.Result{}
	}
	if result.RequeueAfter > 0 && result.Priority == nil {
		result.Priority = ptr.To(holderPriority)
	}
	return result
}

// queue is a controller's.
type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

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
