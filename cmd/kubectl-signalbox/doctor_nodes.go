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
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
)

// checkNodes compares flavors and quota with the nodes.
func checkNodes(ctx context.Context, s *session) ([]finding, error) {
	q, err := s.queues(ctx, s.namespace)
	if err != nil || !q.clusterQueues {
		return nil, err
	}
	var nodes corev1.NodeList
	if read, err := s.list(ctx, &nodes, "nodes"); err != nil || !read {
		return nil, err
	}
	var found []finding
	quota := nominal(q.ClusterQueues)
	for i := range q.Flavors {
		flavor := &q.Flavors[i]
		if len(quota[flavor.Name]) == 0 {
			continue // nobody has quota of it
		}
		has, n := allocatable(nodes.Items, flavor.Spec.NodeLabels)
		if n == 0 {
			found = append(
				found,
				finding{poor, "ResourceFlavor " + flavor.Name, fmt.Sprintf("no node has its labels %s: what is "+
					"admitted on it has no node, unless nodes are added then", labelsText(flavor.Spec.NodeLabels)),
					"kubectl get nodes --show-labels"},
			)
			continue
		}
		for _, name := range slices.Sorted(maps.Keys(quota[flavor.Name])) {
			given, there := quota[flavor.Name][name], has[name]
			if given.Cmp(there) > 0 {
				found = append(
					found,
					finding{poor, "ResourceFlavor " + flavor.Name, fmt.Sprintf("the quota of all ClusterQueues for "+
						"%s is %s, and its %d nodes have %s: what is admitted above that waits for nodes while it holds quota", name,
						given.String(), n, there.String()), "kubectl edit clusterqueue"},
				)
			}
		}
	}
	return found, nil
}

// nominal returns the nominal quota of all ClusterQueues by flavor and resource.
func nominal(queues []kueue.ClusterQueue) map[string]map[corev1.ResourceName]resource.Quantity {
	total := map[string]map[corev1.ResourceName]resource.Quantity{}
	for i := range queues {
		for _, group := range queues[i].Spec.ResourceGroups {
			for _, fq := range group.Flavors {
				for _, rq := range fq.Resources {
					of := total[string(fq.Name)]
					if of == nil {
						of = map[corev1.ResourceName]resource.Quantity{}
						total[string(fq.Name)] = of
					}
					sum := of[rq.Name]
					sum.Add(rq.NominalQuota)
					of[rq.Name] = sum
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
		fits := true
		for key, value := range labels {
			fits = fits && node.Labels[key] == value
		}
		if !fits || node.Spec.Unschedulable {
			continue
		}
		n++
		for name, amount := range node.Status.Allocatable {
			sum := total[name]
			sum.Add(amount)
			total[name] = sum
		}
	}
	return total, n
}

func labelsText(labels map[string]string) string {
	var parts []string
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		parts = append(parts, key+"="+labels[key])
	}
	return cmp.Or(strings.Join(parts, ","), "(none)")
}
