package main

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	utilresource "sigs.k8s.io/kueue/pkg/util/resource"
	utiltas "sigs.k8s.io/kueue/pkg/util/tas"
)

// checkNodes compares flavors and quota with the nodes.
func checkNodes(ctx context.Context, s *session, r *report) error {
	q, err := s.queues(ctx, s.namespace)
	if err != nil || !q.clusterQueues {
		return err
	}
	var nodes corev1.NodeList
	if read, err := s.list(ctx, &nodes, "nodes"); err != nil || !read {
		return err
	}
	quota := nominal(q.ClusterQueues)
	for i := range q.Flavors {
		flavor := &q.Flavors[i]
		if len(quota[flavor.Name]) == 0 {
			continue // nobody has quota of it
		}
		about := "ResourceFlavor " + flavor.Name
		has, n := allocatable(nodes.Items, flavor.Spec.NodeLabels)
		if n == 0 {
			r.add(poor, about, fmt.Sprintf("no node has its labels %s: what is admitted on it has no node, unless nodes are "+
				"added then", cmp.Or(labels.Set(flavor.Spec.NodeLabels).String(), "(none)")), "kubectl get nodes --show-labels")
			continue
		}
		for _, name := range slices.Sorted(maps.Keys(quota[flavor.Name])) {
			given, there := quota[flavor.Name][name], has[name]
			if given.Cmp(there) > 0 {
				r.add(poor, about, fmt.Sprintf("the quota of all ClusterQueues for %s is %s, and its %d nodes have %s: what is "+
					"admitted above that waits for nodes while it holds quota", name, given.String(), n, there.String()),
					"kubectl edit clusterqueue")
			}
		}
	}
	return nil
}

// nominal returns the nominal quota of all ClusterQueues by flavor and resource.
func nominal(queues []kueue.ClusterQueue) map[string]corev1.ResourceList {
	total := map[string]corev1.ResourceList{}
	for i := range queues {
		for _, group := range queues[i].Spec.ResourceGroups {
			for _, fq := range group.Flavors {
				for _, rq := range fq.Resources {
					total[string(fq.Name)] = utilresource.MergeResourceListKeepSum(total[string(fq.Name)],
						corev1.ResourceList{rq.Name: rq.NominalQuota})
				}
			}
		}
	}
	return total
}

// allocatable returns what the nodes with some labels have, and how many they are.
func allocatable(nodes []corev1.Node, labels map[string]string) (corev1.ResourceList, int) {
	total, n := corev1.ResourceList{}, 0
	for i := range nodes {
		node := &nodes[i]
		if utiltas.NodeMatchesFlavor(node.Labels, labels, nil) && !node.Spec.Unschedulable {
			total = utilresource.MergeResourceListKeepSum(total, node.Status.Allocatable)
			n++
		}
	}
	return total, n
}
