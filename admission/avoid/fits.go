package avoid

import (
	"maps"
	"math"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	resourcehelper "k8s.io/component-helpers/resource"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/workload"

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
