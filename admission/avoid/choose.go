package avoid

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides"
)

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
// are kept off, and none without which they have no room, alone or beside those of the others that run at a time.
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
		pod.Affinity = stripped(pod.Affinity, hosts)
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
