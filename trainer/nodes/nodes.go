// Package nodes says of a node that TrainJobs of several namespaces avoid it: by a metric, by an event on the node and,
// if the admin wants that, by a taint.
package nodes

import (
	"context"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	kevents "k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/signalbox-dev/signalbox/admission/avoid"
	configapi "github.com/signalbox-dev/signalbox/api/config/v1alpha1"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/store/events"
)

// every is how often the nodes are looked at. It reads caches alone.
const every = time.Minute

// share bounds how many nodes have the taint: one of so many, and one at least. Who owns many namespaces takes no more.
const share = 10

var avoided = prometheus.NewGaugeVec(prometheus.GaugeOpts{
	Name: "signalbox_node_avoided_namespaces",
	Help: "Namespaces whose TrainJobs avoid a node, because pods were lost, rejected, not started or failed there; of " +
		"nodes that those of nodes.namespaces or more avoid.",
}, []string{"node"})

func init() { metrics.Registry.MustRegister(avoided) }

// Keeper looks at the nodes.
type Keeper struct {
	client   client.Client
	recorder *events.Recorder
	clock    clock.PassiveClock
	settings configapi.Nodes
	told     map[string]bool
}

// New returns a Keeper. The client's cache has the nodes and the TrainJobs.
func New(c client.Client, sink kevents.EventRecorder, clk clock.PassiveClock, settings configapi.Nodes) *Keeper {
	return &Keeper{client: c, recorder: events.NewRecorder(sink), clock: clk, settings: settings, told: map[string]bool{}}
}

// Start implements manager.Runnable. It runs while this process leads.
func (k *Keeper) Start(ctx context.Context) error {
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		if err := k.Keep(ctx); err != nil {
			ctrl.LoggerFrom(ctx).Info("What TrainJobs avoid isn't said of all nodes; trying again", "reason", err.Error())
		}
	}, every)
	avoided.Reset()
	return nil
}

// Keep looks at the nodes once.
func (k *Keeper) Keep(ctx context.Context) error {
	var nodes corev1.NodeList
	if err := k.client.List(ctx, &nodes, client.UnsafeDisableDeepCopy); err != nil {
		return err
	}
	var jobs api.TrainJobList
	if err := k.client.List(ctx, &jobs, client.UnsafeDisableDeepCopy); err != nil {
		return err
	}
	counts := avoid.PolicyOf(k.settings).Tally(jobs.Items, false, k.clock.Now())
	avoided.Reset()
	tainted := 0
	for i := range nodes.Items {
		if hasTaint(&nodes.Items[i]) {
			tainted++
		}
	}
	var failed error
	for i := range nodes.Items {
		node := &nodes.Items[i]
		count, shared := counts[node.Name]
		if shared = shared && count.Namespaces.Len() >= k.settings.Namespaces; shared {
			avoided.WithLabelValues(node.Name).Set(float64(count.Namespaces.Len()))
		}
		k.tell(node, count, shared)
		room := tainted < max(1, len(nodes.Items)/share)
		if !k.settings.Taint || shared == hasTaint(node) || shared && !room {
			continue
		}
		if err := client.IgnoreNotFound(k.taint(ctx, node, shared)); err != nil {
			failed = err
		} else if shared {
			tainted++
		}
	}
	return failed
}

// tell sends an event once for each time that a node is shared.
func (k *Keeper) tell(node *corev1.Node, count avoid.Count, shared bool) {
	switch {
	case !shared:
		delete(k.told, node.Name)
	case !k.told[node.Name]:
		k.told[node.Name] = true
		k.recorder.Send(node, events.NodeShared.Of(count.TrainJobs, count.Namespaces.Len(), avoid.Says(count.Last),
			count.Last.Message))
	}
}

func isOurs(t corev1.Taint) bool { return t.Key == api.AvoidedTaint }

func hasTaint(node *corev1.Node) bool { return slices.ContainsFunc(node.Spec.Taints, isOurs) }

// taint sets or removes the taint, if the node hasn't changed since it was read: the list of taints is written as a
// whole.
func (k *Keeper) taint(ctx context.Context, node *corev1.Node, set bool) error {
	after := node.DeepCopy()
	after.Spec.Taints = slices.DeleteFunc(after.Spec.Taints, isOurs)
	if set {
		after.Spec.Taints = append(after.Spec.Taints,
			corev1.Taint{Key: api.AvoidedTaint, Effect: corev1.TaintEffectNoSchedule})
	}
	return k.client.Patch(ctx, after, client.MergeFromWithOptions(node, client.MergeFromWithOptimisticLock{}))
}

// Retain returns what a cache keeps of a node: what decides whether pods fit, and its taints.
func Retain(object any) (any, error) {
	node, ok := object.(*corev1.Node)
	if !ok {
		return object, nil
	}
	kept := &corev1.Node{}
	kept.Name, kept.UID, kept.ResourceVersion, kept.Labels = node.Name, node.UID, node.ResourceVersion, node.Labels
	kept.CreationTimestamp = node.CreationTimestamp
	kept.Spec.Taints, kept.Spec.Unschedulable = node.Spec.Taints, node.Spec.Unschedulable
	kept.Status.Allocatable = node.Status.Allocatable
	return kept, nil
}
