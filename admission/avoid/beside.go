package avoid

import (
	"cmp"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/sets"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	"github.com/signalbox-dev/signalbox/overrides"
)

// group are ReplicatedJobs that run at a time on a flavor, and the nodes that one of them fits, in the order in which
// they are filled.
type group struct {
	steps []fits
	nodes []int
}

// on reports whether a step fits a node with a hostname.
func (g group) on(host string) bool {
	return slices.ContainsFunc(g.steps, func(f fits) bool { return f.hosts[host].nodes > 0 })
}

// beside returns the groups of several steps for all of which their flavor has room.
func (c Cluster) beside(e *overrides.Effective, fitting []fits) (all []group) {
	for _, steps := range together(e.ReplicatedJobs) {
		byFlavor := map[int][]fits{}
		for _, f := range fitting {
			if slices.Contains(steps, f.step) && len(f.hosts) > 0 {
				byFlavor[f.flavor] = append(byFlavor[f.flavor], f)
			}
		}
		for _, fitting := range byFlavor {
			if g := c.groupOf(fitting); len(fitting) > 1 && c.holds(g, nil) {
				all = append(all, g)
			}
		}
	}
	return all
}

// together returns the indexes of ReplicatedJobs that may run at a time, several of them: one that waits for the end of
// another doesn't run beside that.
func together(jobs []jobset.ReplicatedJob) (all [][]int) {
	ended, at := make([]sets.Set[int], len(jobs)), map[string]int{} // ended: before each begins
	for i := range jobs {
		ended[i] = sets.New[int]()
		for _, d := range jobs[i].DependsOn {
			on, known := at[d.Name]
			if !known {
				continue // JobSet takes dependencies on earlier ones alone
			}
			ended[i] = ended[i].Union(ended[on])
			if d.Status == jobset.DependencyComplete {
				ended[i].Insert(on)
			}
		}
		at[jobs[i].Name] = i
	}
	apart := func(i, j int) bool { return ended[i].Has(j) || ended[j].Has(i) }
	for i := range jobs {
		var group []int
		for j := range jobs {
			if !apart(i, j) {
				group = append(group, j)
			}
		}
		never := slices.ContainsFunc(group, func(j int) bool { // other groups have what runs beside each of them
			return slices.ContainsFunc(group, func(k int) bool { return apart(j, k) })
		})
		same := func(other []int) bool { return slices.Equal(other, group) }
		if len(group) > 1 && !never && !slices.ContainsFunc(all, same) {
			all = append(all, group)
		}
	}
	return all
}

// groupOf puts first what has the least choice: steps that fit few nodes, and nodes that few steps fit. The order
// doesn't depend on that of the cluster's nodes, which is a map's.
func (c Cluster) groupOf(steps []fits) group {
	g := group{steps: slices.Clone(steps)}
	fit := make([]int, len(c.Nodes))
	for _, f := range steps {
		for i, is := range f.at {
			if is {
				fit[i]++
			}
		}
	}
	for i, n := range fit {
		if n > 0 {
			g.nodes = append(g.nodes, i)
		}
	}
	slices.SortFunc(g.nodes, func(a, b int) int {
		return cmp.Or(cmp.Compare(fit[a], fit[b]), cmp.Compare(c.Nodes[a].Name, c.Nodes[b].Name))
	})
	slices.SortStableFunc(g.steps, func(a, b fits) int { return cmp.Compare(a.of(nil).pods, b.of(nil).pods) })
	return g
}

// holds reports whether the nodes hold the pods of a group beside each other, if some hosts are kept off and nothing
// else runs there. There may be a way that this doesn't find.
func (c Cluster) holds(g group, off sets.Set[string]) bool {
	taken := map[int]corev1.ResourceList{}
	for _, step := range g.steps {
		left := step.pods
		for _, i := range g.nodes {
			if left <= 0 {
				break
			}
			if !step.at[i] || off.Has(c.Nodes[i].Labels[corev1.LabelHostname]) {
				continue
			}
			free, some := taken[i]
			if !some {
				free = c.Nodes[i].Status.Allocatable
			}
			if n := min(left, holds(free, step.requests)); n > 0 {
				taken[i] = without(free, step.requests, n)
				left -= n
			}
		}
		if left > 0 {
			return false
		}
	}
	return true
}

// without returns what a node has beside so many pods, of what these request.
func without(free, requests corev1.ResourceList, pods int64) corev1.ResourceList {
	left := maps.Clone(free)
	take := func(name corev1.ResourceName, q resource.Quantity) {
		has := left[name].DeepCopy()
		q.Mul(pods)
		has.Sub(q)
		left[name] = has
	}
	for name, need := range requests {
		if need.Sign() > 0 { // so that the node has it
			take(name, need.DeepCopy())
		}
	}
	if _, bounded := free[corev1.ResourcePods]; bounded {
		take(corev1.ResourcePods, *resource.NewQuantity(1, resource.DecimalSI))
	}
	return left
}
