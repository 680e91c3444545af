package audit

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
)

// nodeLabels returns the node labels of all flavors that a PodSet was assigned, sorted by key. A flavor that doesn't
// exist any more requires nothing.
func (s *snapshot) nodeLabels(p podSetOf) []requiredLabel {
	if labels, known := s.required[p]; known {
		return labels
	}
	assigned := map[kueue.ResourceFlavorReference]bool{}
	if admission := p.workload.Status.Admission; admission != nil {
		for _, a := range admission.PodSetAssignments {
			if a.Name != p.podSet {
				continue
			}
			for _, flavor := range a.Flavors {
				assigned[flavor] = true
			}
		}
	}
	by := map[string][]flavorValue{}
	for _, flavor := range slices.Sorted(maps.Keys(assigned)) {
		if f := s.flavors[flavor]; f != nil {
			for key, value := range f.Spec.NodeLabels {
				by[key] = append(by[key], flavorValue{flavor, value})
			}
		}
	}
	var labels []requiredLabel
	for _, key := range slices.Sorted(maps.Keys(by)) {
		labels = append(labels, requiredLabel{key, by[key]})
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
	for _, label := range s.nodeLabels(p) {
		value, found := node.Labels[label.key]
		if !slices.ContainsFunc(label.by, func(f flavorValue) bool { return !found || f.value != value }) {
			continue
		}
		has := "missing"
		if found {
			has = fmt.Sprintf("%q", value)
		}
		var all []string
		for _, f := range label.by {
			all = append(all, fmt.Sprintf("ResourceFlavor %s requires %q", f.flavor, f.value))
		}
		differences = append(differences, fmt.Sprintf("label %s is %s, and %s", label.key, has, strings.Join(all, ", ")))
	}
	if len(differences) == 0 {
		return ""
	}
	return fmt.Sprintf("it runs on node %s, and PodSet %s was assigned other nodes: %s", node.Name, p.podSet,
		strings.Join(differences, "; "))
}
