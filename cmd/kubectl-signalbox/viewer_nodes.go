package main

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/sets"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	"sigs.k8s.io/kueue/pkg/resources"
	utilpod "sigs.k8s.io/kueue/pkg/util/pod"
	utilslices "sigs.k8s.io/kueue/pkg/util/slices"
	utiltas "sigs.k8s.io/kueue/pkg/util/tas"

	"github.com/signalbox-dev/signalbox/cmd/kubectl-signalbox/page"
	"github.com/signalbox-dev/signalbox/cmd/kubectl-signalbox/serve"
)

// rackLabels are looked for where no topology says what a rack is.
var rackLabels = []string{"topology.kubernetes.io/rack", "cloud.provider.com/topology-rack", corev1.LabelTopologyZone}

// rackOf returns the rack of each node, or else its zone.
func rackOf(nodes []corev1.Node) map[string]string {
	racks := map[string]string{}
	for i := range nodes {
		for _, label := range rackLabels {
			racks[nodes[i].Name] = cmp.Or(racks[nodes[i].Name], nodes[i].Labels[label])
		}
	}
	return racks
}

// accelerator reports whether a resource is what nodes are shown by: a device, such as nvidia.com/gpu.
func accelerator(name corev1.ResourceName) bool {
	return strings.Contains(string(name), "/") && !isHuge(name)
}

func isHuge(name corev1.ResourceName) bool {
	return strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix) ||
		strings.HasPrefix(string(name), "kubernetes.io/") || strings.HasPrefix(string(name), "attachable-volumes-")
}

// nodes shows the nodes by topology, with what is on their GPUs.
func (v *viewer) nodes(ctx context.Context, k *known, _ serve.Request) (serve.Answer, error) {
	s := v.session("")
	var nodes corev1.NodeList
	var pods corev1.PodList
	if _, err := s.list(ctx, &nodes, "nodes"); err != nil {
		return serve.Answer{}, err
	}
	if _, err := s.listWide(ctx, &pods, "pods", s.namespace); err != nil {
		return serve.Answer{}, err
	}
	on := map[string][]*corev1.Pod{}
	for i := range pods.Items {
		if p := &pods.Items[i]; p.Spec.NodeName != "" && !utilpod.IsTerminated(p) {
			on[p.Spec.NodeName] = append(on[p.Spec.NodeName], p)
		}
	}
	rows, err := avoidedRows(ctx, s, lately, true)
	if err != nil {
		return serve.Answer{}, err
	}
	view := page.Nodes{Avoided: utilslices.Map(rows, func(r *avoidedRow) page.Avoided {
		return page.Avoided{Node: r.Node, Reason: r.Reason, Message: r.Message, Pod: r.Pod, Namespaces: len(r.Namespaces),
			TrainJobs: r.TrainJobs, Time: r.Time, Tainted: r.Tainted}
	})}
	avoided := utilslices.ToMap(rows, func(i int) (string, bool) { return rows[i].Node, true })
	devices := sets.New[corev1.ResourceName]()
	for _, quota := range nominal(k.ClusterQueues) {
		for name := range quota {
			if accelerator(name) {
				devices.Insert(name)
			}
		}
	}
	view.Groups = groupsOf(k, nodes.Items, func(n *corev1.Node) (page.Node, resource.Quantity, resource.Quantity) {
		return nodeOf(n, on[n.Name], devices, avoided[n.Name])
	})
	return shows("Nodes", append(s.missing, k.missing...), view), nil
}

// groupsOf returns the nodes with devices by flavor, and by the levels of its topology above the host.
func groupsOf(
	k *known, nodes []corev1.Node, of func(*corev1.Node) (page.Node, resource.Quantity, resource.Quantity),
) []page.Group {
	type group struct {
		page.Group
		total, free resource.Quantity
	}
	groups := map[string]*group{}
	for i := range nodes {
		n := &nodes[i]
		shown, total, free := of(n)
		if total.IsZero() {
			continue
		}
		path := placeOf(k, n)
		name := strings.Join(path, ", ")
		g := groups[name]
		if g == nil {
			g = &group{Group: page.Group{Name: name, Depth: min(len(path)-1, 3)}}
			groups[name] = g
		}
		g.Nodes = append(g.Nodes, shown)
		g.total.Add(total)
		g.free.Add(free)
	}
	var all []page.Group
	for _, name := range slices.Sorted(maps.Keys(groups)) {
		g := groups[name]
		g.Total, g.Free = g.total.String(), g.free.String()
		slices.SortFunc(g.Nodes, func(a, b page.Node) int { return cmp.Compare(a.Name, b.Name) })
		all = append(all, g.Group)
	}
	return all
}

// placeOf returns a node's flavor, and its values of the levels of the flavor's topology above the host.
func placeOf(k *known, n *corev1.Node) []string {
	for i := range k.Flavors {
		flavor := &k.Flavors[i]
		if len(flavor.Spec.NodeLabels) == 0 || !utiltas.NodeMatchesFlavor(n.Labels, flavor.Spec.NodeLabels, nil) {
			continue
		}
		path := []string{"Flavor " + flavor.Name}
		for j := range k.Topologies {
			if flavor.Spec.TopologyName == nil || string(*flavor.Spec.TopologyName) != k.Topologies[j].Name {
				continue
			}
			for _, level := range k.Topologies[j].Spec.Levels {
				if value := n.Labels[level.NodeLabel]; value != "" && level.NodeLabel != corev1.LabelHostname {
					path = append(path, level.NodeLabel[strings.LastIndex(level.NodeLabel, "/")+1:]+" "+value)
				}
			}
		}
		return path
	}
	return []string{"No flavor"}
}

// nodeOf returns a node with what is on its devices, of those that there is quota for.
func nodeOf(
	n *corev1.Node, pods []*corev1.Pod, devices sets.Set[corev1.ResourceName], avoided bool,
) (shown page.Node, total, free resource.Quantity) {
	for name, amount := range n.Status.Allocatable {
		if devices.Has(name) {
			total.Add(amount)
		}
	}
	free = total.DeepCopy()
	by, order, jobs := map[string]*resource.Quantity{}, []string{}, sets.New[string]()
	for _, p := range pods {
		job := p.Labels[jobset.JobSetNameKey]
		name := p.Namespace + "/" + cmp.Or(job, p.Name)
		if job != "" {
			jobs.Insert(name)
		}
		resources.NewRequestsFromPodSpec(&p.Spec).ForEach(func(of corev1.ResourceName, amount int64) {
			if !devices.Has(of) || amount == 0 {
				return
			}
			if by[name] == nil {
				by[name] = &resource.Quantity{}
				order = append(order, name)
			}
			by[name].Add(*resource.NewQuantity(amount, resource.DecimalSI))
			free.Sub(*resource.NewQuantity(amount, resource.DecimalSI))
		})
	}
	slices.Sort(order)
	var parts []page.Part
	for _, name := range order {
		part := page.Part{Amount: by[name].AsApproximateFloat64(), Class: page.Tint(name),
			Title: fmt.Sprintf("%s: %s", name, by[name])}
		if namespace, job, _ := strings.Cut(name, "/"); jobs.Has(name) {
			part.Href = page.JobPath(namespace, job)
		} else {
			part.Class = "other"
		}
		parts = append(parts, part)
	}
	shown = page.Node{Name: n.Name, State: stateOf(n, avoided),
		Total: fmt.Sprintf("%s of %s free", free.String(), total.String())}
	if free.Sign() > 0 {
		parts = append(parts,
			page.Part{Amount: free.AsApproximateFloat64(), Class: "free", Title: free.String() + " free"})
	}
	shown.Bar = page.NewBar(shown.Name+": "+shown.Total, total.AsApproximateFloat64(), 0, parts)
	return shown, total, free
}

// stateOf says what is wrong with a node; "" for nothing.
func stateOf(n *corev1.Node, avoided bool) string {
	var all []string
	ready := false
	for _, c := range n.Status.Conditions {
		ready = ready || c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	}
	if !ready {
		all = append(all, "not ready")
	}
	if n.Spec.Unschedulable {
		all = append(all, "cordoned")
	}
	if avoided {
		all = append(all, "avoided")
	}
	return strings.Join(all, ", ")
}
