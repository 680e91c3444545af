// Package workqueue orders the TrainJobs that wait to be reconciled: by what they hold, and then by how many of their
// namespace wait.
package workqueue

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
	"github.com/signalbox-dev/signalbox/podsets"
)

// Priorities in the queue, of both reconcilers; what isn't named has 0. TrainJobs that hold quota come first, however
// many are submitted or wait: GPUs are idle only because of TrainJobs that start, stop or end. Newly admitted ones
// precede those: a start is one write, while JobSets, on which other controllers work longer, are created when none
// waits for its start. What nothing waits for comes last.
const (
	admitted = 20
	holder   = 10
	// Status is the priority of a TrainJob of which only the status is to be written: lower than that of any that waits.
	Status = -10
	// Later is the priority of a TrainJob for which nothing waits.
	Later = -20
)

// Order passes events on: those of what holds quota before others, admissions before these, and those of what waits by
// how many of its namespace wait.
type Order struct {
	handler.EventHandler
	Namespaces *Namespaces
}

// Namespaces lowers the priority of waiting TrainJobs by how many of their namespace are in the queue, so that a
// namespace with ten thousand doesn't delay another with one. Within a namespace the order stays first in, first out.
type Namespaces struct {
	mu     sync.Mutex
	queued map[string]*namespace
}

// namespace is its TrainJobs in the queue.
type namespace struct {
	names map[string]struct{}
	level int // the highest since none was in the queue: a lower one would overtake
}

// The level is 0 up to levelSize TrainJobs, and one higher each time that they double, up to maxLevel.
const (
	levelSize = 32
	maxLevel  = 8 // Status is lower
)

// NewNamespaces returns those of an empty queue.
func NewNamespaces() *Namespaces { return &Namespaces{queued: map[string]*namespace{}} }

// priority returns the priority of a waiting TrainJob that enters the queue.
func (c *Namespaces) priority(request reconcile.Request) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	of := c.queued[request.Namespace]
	if of == nil {
		of = &namespace{names: map[string]struct{}{}}
		c.queued[request.Namespace] = of
	}
	of.names[request.Name] = struct{}{}
	of.level = max(of.level, min(bits.Len(uint(len(of.names)-1)/levelSize), maxLevel))
	return -of.level
}

// Took records that a TrainJob has left the queue.
func (c *Namespaces) Took(request reconcile.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if of := c.queued[request.Namespace]; of != nil {
		if delete(of.names, request.Name); len(of.names) == 0 {
			delete(c.queued, request.Namespace)
		}
	}
}

// Create implements handler.EventHandler; after a restart, too, holders come first.
func (h Order) Create(ctx context.Context, e event.CreateEvent, q Queue) {
	h.EventHandler.Create(ctx, e, h.queueFor(q, priorityOf(e.Object)))
}

// Update implements handler.EventHandler; what has ended in this update, or was stopped, is raised again.
func (h Order) Update(ctx context.Context, e event.UpdateEvent, q Queue) {
	priority := max(priorityOf(e.ObjectOld), priorityOf(e.ObjectNew))
	before, ok := e.ObjectOld.(*kueue.Workload)
	if ok && !workload.IsAdmitted(before) && workload.IsAdmitted(e.ObjectNew.(*kueue.Workload)) {
		priority = admitted
	}
	h.EventHandler.Update(ctx, e, h.queueFor(q, priority))
}

// Delete implements handler.EventHandler.
func (h Order) Delete(ctx context.Context, e event.DeleteEvent, q Queue) {
	h.EventHandler.Delete(ctx, e, h.queueFor(q, priorityOf(e.Object)))
}

func (h Order) queueFor(q Queue, priority int) Queue {
	if pq, ok := q.(priorityqueue.PriorityQueue[reconcile.Request]); ok {
		return ordered{pq, h.Namespaces, priority}
	}
	return q
}

// ordered is a queue into which everything comes with a priority: one that is given, or that of its namespace.
type ordered struct {
	priorityqueue.PriorityQueue[reconcile.Request]
	namespaces *Namespaces
	priority   int // 0 for that of the namespace
}

// Add implements workqueue.TypedRateLimitingInterface.
func (q ordered) Add(item reconcile.Request) { q.AddWithOpts(priorityqueue.AddOpts{}, item) }

// AddWithOpts implements priorityqueue.PriorityQueue.
func (q ordered) AddWithOpts(o priorityqueue.AddOpts, items ...reconcile.Request) {
	if q.priority > 0 {
		o.Priority = &q.priority
	}
	if ptr.Deref(o.Priority, 0) != 0 {
		q.PriorityQueue.AddWithOpts(o, items...)
		return
	}
	for _, item := range items {
		o.Priority = ptr.To(q.namespaces.priority(item))
		q.PriorityQueue.AddWithOpts(o, item)
	}
}

func priorityOf(o client.Object) int {
	if ofHolder(o) {
		return holder
	}
	return 0
}

// ofHolder reports whether an object's TrainJob holds quota, as far as the object shows. A JobSet runs with quota; a
// pod is passed on only where it is what quota is still held for .
func ofHolder(o client.Object) bool {
	switch o := o.(type) {
	case *api.TrainJob:
		return !ptr.Deref(o.Spec.Suspend, false) && !trainjobutil.IsTrainJobFinished(o.Upstream())
	case *kueue.Workload:
		return podsets.HoldsQuota(o)
	case *jobset.JobSet:
		return !ptr.Deref(o.Spec.Suspend, false) && o.Status.TerminalState == ""
	case *corev1.Pod:
		return true
	}
	return false
}

// Placed gives a TrainJob that is to be looked at again its place in the queue. After an error it keeps the one that it
// had: a start that has failed doesn't wait behind a status that was to be written. What waits for a time, and doesn't
// say that it comes last, is about to start or to stop.
func Placed(result reconcile.Result, err error) reconcile.Result {
	if err != nil {
		return reconcile.Result{}
	}
	if result.RequeueAfter > 0 && result.Priority == nil {
		result.Priority = ptr.To(holder)
	}
	return result
}

// Queue is a controller's.
type Queue = workqueue.TypedRateLimitingInterface[reconcile.Request]
