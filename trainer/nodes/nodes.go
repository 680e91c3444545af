// Package nodes says of a node that TrainJobs of several namespaces avoid it: by a metric, by an event on the node and,
// if the admin wants that, by a taint.
package nodes

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"
	kevents "k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/signalbox-dev/signalbox/admission/avoid"
	configapi "github.com/signalbox-dev/signalbox/api/config/v1alpha1"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/store/events"
)

// every is how often the nodes are looked at. It reads caches alone.
const every = 15 * time.Second

// share bounds how many nodes have the taint: one of so many, or one of fewer. Who owns many namespaces takes no more.
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
	// told are the nodes that were avoided by several namespaces when they were last looked at.
	told map[string]types.UID
}

// New returns a Keeper. The client's cache has the nodes, the TrainJobs and the ResourceFlavors.
func New(c client.Client, sink kevents.EventRecorder, clk clock.PassiveClock, settings configapi.Nodes) *Keeper {
	return &Keeper{client: c, recorder: events.NewRecorder(sink), clock: clk, settings: settings}
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
	counts := avoid.PolicyOf(k.settings).Tally(jobs.Items, avoid.Present(nodes.Items), k.clock.Now())
	told := map[string]types.UID{}
	var shared, others []*corev1.Node
	for i := range nodes.Items {
		node := &nodes.Items[i]
		if count, found := counts[node.Name]; found && count.Namespaces.Len() >= k.settings.Namespaces {
			k.tell(node, count)
			told[node.Name], shared = node.UID, append(shared, node)
		} else {
			others = append(others, node)
		}
	}
	for name := range k.told {
		if _, again := told[name]; !again {
			avoided.DeleteLabelValues(name)
		}
	}
	k.told = told
	if !k.settings.Taint {
		return nil
	}
	return errors.Join(k.remove(ctx, others), k.add(ctx, shared, nodes.Items))
}

// tell sends an event once for each time that a node is shared, and sets the metric.
func (k *Keeper) tell(node *corev1.Node, count avoid.Count) {
	avoided.WithLabelValues(node.Name).Set(float64(count.Namespaces.Len()))
	if uid, told := k.told[node.Name]; !told || uid != node.UID {
		k.recorder.Send(node, events.NodeShared.Of(count.TrainJobs, count.Namespaces.Len(), avoid.Says(count.Last),
			count.Last.Message))
	}
}

// remove takes the taint from nodes.
func (k *Keeper) remove(ctx context.Context, nodes []*corev1.Node) (failed error) {
	for _, node := range nodes {
		if hasTaint(node) {
			failed = errors.Join(failed, client.IgnoreNotFound(k.taint(ctx, node, false)))
		}
	}
	return failed
}

// add sets the taint of nodes, of a share of all at most, and of half of a flavor.
func (k *Keeper) add(ctx context.Context, nodes []*corev1.Node, all []corev1.Node) (failed error) {
	var flavors kueue.ResourceFlavorList
	if err := k.client.List(ctx, &flavors, client.UnsafeDisableDeepCopy); err != nil {
		return err
	}
	tainted := sets.New[string]()
	for i := range all {
		if hasTaint(&all[i]) {
			tainted.Insert(all[i].Name)
		}
	}
	for _, node := range nodes {
		if tainted.Has(node.Name) || tainted.Len() >= max(1, len(all)/share) || !spared(node, all, flavors.Items, tainted) {
			continue
		}
		err := k.taint(ctx, node, true)
		if failed = errors.Join(failed, client.IgnoreNotFound(err)); err == nil {
			tainted.Insert(node.Name)
		}
	}
	return failed
}

// spared reports whether at least half of the nodes of each flavor take pods without a node: it may be all that others
// have. A flavor without labels has all nodes, and so has the cluster.
func spared(node *corev1.Node, all []corev1.Node, flavors []kueue.ResourceFlavor, tainted sets.Set[string]) bool {
	takes := func(n *corev1.Node) bool {
		return avoid.Ready(n) && !n.Spec.Unschedulable && !tainted.Has(n.Name) && n.Name != node.Name
	}
	for _, flavor := range append(slices.Clone(flavors), kueue.ResourceFlavor{}) {
		selector := labels.SelectorFromSet(flavor.Spec.NodeLabels)
		if !selector.Matches(labels.Set(node.Labels)) {
			continue
		}
		of, left := 0, 0
		for i := range all {
			if !selector.Matches(labels.Set(all[i].Labels)) {
				continue
			}
			if of++; takes(&all[i]) {
				left++
			}
		}
		if 2*left < of {
			return false
		}
	}
	return true
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
