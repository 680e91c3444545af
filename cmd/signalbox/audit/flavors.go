package audit

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/ptr"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
)

// nodeLabels returns the flavors that a PodSet was assigned by the node labels that they require, sorted by name.
// Flavors of different resources may require different values; then no node is of all of them. A flavor that doesn't
// exist any more requires nothing.
func (s *snapshot) nodeLabels(p podSetOf) map[string][]*kueue.ResourceFlavor {
	if labels, known := s.required[p]; known {
		return labels
	}
	assigned := sets.New[string]()
	for _, a := range ptr.Deref(p.workload.Status.Admission, kueue.Admission{}).PodSetAssignments {
		if a.Name == p.podSet {
			for _, flavor := range a.Flavors {
				assigned.Insert(string(flavor))
			}
		}
	}
	labels := map[string][]*kueue.ResourceFlavor{}
	for _, name := range sets.List(assigned) {
		if flavor := s.flavors[name]; flavor != nil {
			for key := range flavor.Spec.NodeLabels {
				labels[key] = append(labels[key], flavor)
			}
		}
	}
	s.required[p] = labels
	return labels
}

// otherFlavor returns how the labels of a pod's node differ from those of the flavors that its PodSet was assigned; ""
// if they don't, or the node doesn't exist any more.
func (s *snapshot) otherFlavor(pod *corev1.Pod, p podSetOf) string {
	node := s.nodes[pod.Spec.NodeName]
	if node == nil {
		return ""
	}
	var differences []string
	required := s.nodeLabels(p)
	for _, key := range slices.Sorted(maps.Keys(required)) {
		value, found := node.Labels[key]
		differs := func(f *kueue.ResourceFlavor) bool { return !found || f.Spec.NodeLabels[key] != value }
		if !slices.ContainsFunc(required[key], differs) {
			continue
		}
		has := "missing"
		if found {
			has = fmt.Sprintf("%q", value)
		}
		var all []string
		for _, flavor := range required[key] {
			all = append(all, fmt.Sprintf("ResourceFlavor %s requires %q", flavor.Name, flavor.Spec.NodeLabels[key]))
		}
		differences = append(differences, fmt.Sprintf("label %s is %s, and %s", key, has, strings.Join(all, ", ")))
	}
	if len(differences) == 0 {
		return ""
	}
	return fmt.Sprintf("it runs on node %s, and PodSet %s was assigned other nodes: %s", node.Name, p.podSet,
		strings.Join(differences, "; "))
}
