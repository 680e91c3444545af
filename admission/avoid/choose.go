package avoid

import (
	"maps"
	"math"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	resourcehelper "k8s.io/component-helpers/resource"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/workload"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides"
	"github.com/signalbox-dev/signalbox/podsets"
)

// Cluster is what a choice depends on: the nodes, and the flavors that the TrainJob's ClusterQueue may assign. Without
// flavors, the TrainJob's own pods say which nodes fit.
type Cluster struct {
	Nodes   []corev1.Node
	Flavors []kueue.ResourceFlavorSpec
	// Fewer are the pods of ReplicatedJobs, by their names, that run with fewer than they say: those of a partial
	// admission, or of its minimum.
	Fewer map[string]int64
}

// Choice is which of the nodes that are remembered a TrainJob keeps off.
type Choice struct {
	// Hosts are the values of label kubernetes.io/hostname of the nodes that are kept off, in order.
	Hosts []string
	// Avoided are these nodes. Tolerated are those that are not kept off, because half of those that fit are, because the
	// others can't hold all pods, or because they have no label kubernetes.io/hostname. One that is a new node, or can't
	// be named, is neither.
	Avoided, Tolerated []api.AvoidedNode
}

// Choose returns which of the nodes that count a TrainJob keeps off; the first have precedence. kept are hosts that it
// keeps off whatever the nodes are. Of the nodes that fit the pods of a ReplicatedJob on a flavor, no more than half
// are kept off. Nor are those that its pods need, or those of all that run at a time: the others couldn't hold all.
func (c Cluster) Choose(e *overrides.Effective, counted []api.AvoidedNode, kept []string) Choice {
	choice := Choice{Hosts: kept}
	if len(counted) == 0 {
		return choice
	}
	off, fitting := sets.New(kept...), c.fitting(e)
	beside := c.beside(e, fitting)
	for _, n := range counted {
		host, found := c.hostOf(n)
		if !found {
			continue
		}
		next := off.Clone().Insert(host)
		needed := host == "" || slices.ContainsFunc(fitting, func(f fits) bool { return f.needs(host, next) }) ||
			slices.ContainsFunc(beside, func(g group) bool { return g.on(host) && !c.holds(g, next) })
		if needed && !off.Has(host) {
			choice.Tolerated = append(choice.Tolerated, n)
			continue
		}
		off = next
		choice.Avoided = append(choice.Avoided, n)
	}
	if off.Len() > len(kept) {
		choice.Hosts = sets.List(off)
	}
	return choice
}

// Freed returns which of the hosts that started pods keep off don't count any more, and have room for one of these.
// counted are all nodes that count. The ReplicatedJobs are those of the JobSet: flavors have their part in them.
func (c Cluster) Freed(jobs []jobset.ReplicatedJob, hosts []string, counted []api.AvoidedNode) (freed []string) {
	open := &overrides.Effective{ReplicatedJobs: slices.Clone(jobs)}
	for i := range open.ReplicatedJobs {
		pod := &open.ReplicatedJobs[i].Template.Spec.Template.Spec
		pod.Affinity = within(pod.Affinity, hosts)
	}
	fitting := Cluster{Nodes: c.Nodes}.fitting(open)
	for _, host := range hosts {
		counts := slices.ContainsFunc(counted, func(n api.AvoidedNode) bool {
			of, found := c.hostOf(n)
			return found && of == host
		})
		if !counts && slices.ContainsFunc(fitting, func(f fits) bool { return f.hosts[host].nodes > 0 }) {
			freed = append(freed, host)
		}
	}
	return freed
}

// hostOf returns the hostname of a node that is remembered; "" if it has no label for it, which NotIn doesn't exclude.
// One that is gone may come back, with its name for a hostname; the API server rejects pods with a hostname that no
// label can have. A node that was created later than what is remembered is another one.
func (c Cluster) hostOf(n api.AvoidedNode) (host string, found bool) {
	if i := slices.IndexFunc(c.Nodes, func(node corev1.Node) bool { return node.Name == n.Name }); i >= 0 {
		return c.Nodes[i].Labels[corev1.LabelHostname], !Replaced(n, &c.Nodes[i])
	}
	return n.Name, len(validation.IsValidLabelValue(n.Name)) == 0
}

// Replaced reports whether a node was created later than what is remembered of one of its name.
func Replaced(n api.AvoidedNode, node *corev1.Node) bool {
	return n.Time.Before(&node.CreationTimestamp)
}

// fits are the nodes that the pods of a ReplicatedJob fit on a flavor.
type fits struct {
	step, flavor int
	pods         int64
	requests     corev1.ResourceList
	// hosts are the nodes by their hostnames: several may have the same, and some have none.
	hosts map[string]room
	// at has a true for each of the cluster's nodes that is one.
	at []bool
}

// room is a number of nodes, and how many pods fit these when nothing else runs there.
type room struct{ nodes, pods int64 }

// of returns the room of some hostnames; nil are all.
func (f fits) of(hosts sets.Set[string]) (all room) {
	for host, r := range f.hosts {
		if hosts == nil || hosts.Has(host) {
			all.nodes, all.pods = all.nodes+r.nodes, all.pods+r.pods
		}
	}
	return all
}

// needs reports whether the pods need a host, if off are kept off, it among them. Pods for which there is no room at
// all need none.
func (f fits) needs(host string, off sets.Set[string]) bool {
	all, taken := f.of(nil), f.of(off)
	return f.hosts[host].nodes > 0 && (2*taken.nodes > all.nodes || all.pods >= f.pods && all.pods-taken.pods < f.pods)
}

// fitting returns, for each ReplicatedJob and each flavor, the nodes that its pods fit.
func (c Cluster) fitting(e *overrides.Effective) (all []fits) {
	flavors := c.Flavors
	if len(flavors) == 0 {
		flavors = []kueue.ResourceFlavorSpec{{}}
	}
	for i := range e.ReplicatedJobs {
		rj := &e.ReplicatedJobs[i]
		for j, flavor := range flavors {
			pod := podOn(&rj.Template.Spec.Template.Spec, flavor)
			f := fits{step: i, flavor: j, pods: c.podsOf(rj), hosts: map[string]room{}, at: make([]bool, len(c.Nodes)),
				requests: resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{})}
			affinity := nodeaffinity.GetRequiredNodeAffinity(pod)
			for k := range c.Nodes {
				node := &c.Nodes[k]
				if matches, err := affinity.Match(node); err == nil && matches && takes(node, pod) {
					if n := holds(node.Status.Allocatable, f.requests); n > 0 {
						host := node.Labels[corev1.LabelHostname]
						f.hosts[host] = room{f.hosts[host].nodes + 1, f.hosts[host].pods + n}
						f.at[k] = true
					}
				}
			}
			all = append(all, f)
		}
	}
	return all
}

// podsOf returns how many pods of a ReplicatedJob run.
func (c Cluster) podsOf(rj *jobset.ReplicatedJob) int64 {
	all := int64(overrides.PodsPerJob(rj)) * int64(rj.Replicas)
	if fewer, some := c.Fewer[rj.Name]; some {
		return min(fewer, all)
	}
	return all
}

// podOn returns a pod as a flavor places it.
func podOn(spec *corev1.PodSpec, flavor kueue.ResourceFlavorSpec) *corev1.Pod {
	pod := &corev1.Pod{Spec: *spec.DeepCopy()}
	selector := maps.Clone(flavor.NodeLabels)
	if selector == nil {
		selector = map[string]string{}
	}
	maps.Copy(selector, pod.Spec.NodeSelector)
	pod.Spec.NodeSelector = selector
	pod.Spec.Tolerations = append(pod.Spec.Tolerations, flavor.Tolerations...)
	workload.UseLimitsAsMissingRequestsInPod(&pod.Spec) // as the API server does
	return pod
}

// holds returns how many pods with some requests fit in what a node has.
func holds(free, requests corev1.ResourceList) int64 {
	most := int64(math.MaxInt32)
	if pods, bounded := free[corev1.ResourcePods]; bounded {
		most = min(most, max(pods.Value(), 0))
	}
	for name, need := range requests {
		if need.Sign() > 0 {
			most = min(most, podsets.Times(need, free[name]))
		}
	}
	return most
}

// takes reports whether a node takes a pod as to its taints. One that isn't ready, which a taint shows,
// takes none, whatever the pod tolerates: nothing would start there.
func takes(node *corev1.Node, pod *corev1.Pod) bool {
	taints := node.Spec.Taints
	if node.Spec.Unschedulable { // as the scheduler does, also before the node has this taint
		taints = append(slices.Clone(taints),
			corev1.Taint{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule})
	}
	_, tainted := corev1helpers.FindMatchingUntoleratedTaint(klog.Background(), taints, pod.Spec.Tolerations,
		func(t *corev1.Taint) bool { return t.Effect != corev1.TaintEffectPreferNoSchedule }, false)
	return !tainted && Ready(node)
}

// Ready reports whether a node has no taint of one that isn't.
func Ready(node *corev1.Node) bool {
	return !slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool {
		return t.Key == corev1.TaintNodeNotReady || t.Key == corev1.TaintNodeUnreachable
	})
}
