package admission

import (
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/constants"
)

// needs is what admission asks of the pods of one ReplicatedJob, and where each value comes from.
type needs struct {
	labels, annotations, nodeSelector map[string]string
	tolerations                       []corev1.Toleration
	gates                             []corev1.PodSchedulingGate
	// metadata names what can't do without the labels or annotations; "" where they only inform.
	metadata string
	// source names what asked for a key of nodeSelector: a flavor or an admission check.
	source map[string]string
}

func (n *needs) selector(values map[string]string, source string) {
	for key, value := range values {
		n.nodeSelector[key] = value
		n.source[key] = source
	}
}

// tolerate adds tolerations that are not there yet.
func tolerate(list, more []corev1.Toleration) []corev1.Toleration {
	for _, t := range more {
		if !slices.ContainsFunc(list, func(have corev1.Toleration) bool { return sameToleration(have, t) }) {
			list = append(list, t)
		}
	}
	return list
}

// sameToleration compares what two tolerations mean: an empty operator is Equal.
func sameToleration(a, b corev1.Toleration) bool {
	operator := func(t corev1.Toleration) corev1.TolerationOperator {
		if t.Operator == "" {
			return corev1.TolerationOpEqual
		}
		return t.Operator
	}
	seconds := a.TolerationSeconds == b.TolerationSeconds ||
		a.TolerationSeconds != nil && b.TolerationSeconds != nil && *a.TolerationSeconds == *b.TolerationSeconds
	return a.Key == b.Key && operator(a) == operator(b) && a.Value == b.Value && a.Effect == b.Effect && seconds
}

// assigned collects what the admission of a Workload asks of each PodSet, as Kueue v0.19.2 does for the jobs that it
// runs itself (jobframework's getPodSetsInfoFromStatus): the flavors' node labels and tolerations, the topology
// assignment's gate, Kueue's labels, and the admission checks' updates.
func assigned(in Input) (map[kueue.PodSetReference]*needs, error) {
	wl := in.Workload
	all := make(map[kueue.PodSetReference]*needs, len(wl.Status.Admission.PodSetAssignments))
	for _, assignment := range wl.Status.Admission.PodSetAssignments {
		podSet := findPodSet(wl.Spec.PodSets, assignment.Name)
		if podSet == nil {
			return nil, fmt.Errorf("Workload %s assigns PodSet %q, which it does not have", wl.Name, assignment.Name)
		}
		// Kueue assigns fewer pods where some have been reclaimed, an initializer's that has succeeded; only with a minimum
		// count are fewer a smaller job.
		if n := ptr.Deref(assignment.Count, podSet.Count); n > podSet.Count || n < podSet.Count && podSet.MinCount != nil {
			return nil, fmt.Errorf("Workload %s admits %d of the %d pods of PodSet %q; a TrainJob can't be admitted in part",
				wl.Name, n, podSet.Count, assignment.Name)
		}
		n, err := forPodSet(in, assignment, podSet)
		if err != nil {
			return nil, err
		}
		all[assignment.Name] = n
	}
	return all, nil
}

func forPodSet(in Input, assignment kueue.PodSetAssignment, podSet *kueue.PodSet) (*needs, error) {
	wl := in.Workload
	n := &needs{
		labels:       map[string]string{constants.PodSetLabel: string(assignment.Name)},
		annotations:  map[string]string{},
		nodeSelector: map[string]string{},
		source:       map[string]string{},
	}
	// Flavors are taken in the order of their names: a map's order must not show in what is written.
	for _, name := range slices.Sorted(maps.Values(assignment.Flavors)) {
		flavor, known := in.Flavors[name]
		if !known {
			return nil, fmt.Errorf("ResourceFlavor %q, which Workload %s was admitted on, is not known", name, wl.Name)
		}
		n.selector(flavor.NodeLabels, fmt.Sprintf("ResourceFlavor %s", name))
		n.tolerations = tolerate(n.tolerations, flavor.Tolerations)
	}
	n.topology(in, assignment, podSet)
	n.queues(in)
	for _, check := range wl.Status.AdmissionChecks {
		for _, update := range check.PodSetUpdates {
			if update.Name != assignment.Name {
				continue
			}
			if err := n.update(string(check.Name), update); err != nil {
				return nil, err
			}
		}
	}
	return n, nil
}

// topology adds what a topology assignment needs.
func (n *needs) topology(in Input, assignment kueue.PodSetAssignment, podSet *kueue.PodSet) {
	if !in.Features.TopologyAware {
		return
	}
	n.annotations[kueue.WorkloadAnnotation] = in.Workload.Name
	if assignment.TopologyAssignment == nil {
		return
	}
	n.metadata = "the topology assignment"
	n.gates = append(n.gates, corev1.PodSchedulingGate{Name: kueue.TopologySchedulingGate})
	if r := podSet.TopologyRequest; r == nil || r.Required == nil && r.Preferred == nil && r.Unconstrained == nil {
		n.annotations[kueue.PodSetUnconstrainedTopologyAnnotation] = "true"
	}
}

// queues adds the labels that name the queues, and the one of MultiKueue.
func (n *needs) queues(in Input) {
	wl := in.Workload
	if _, remote := wl.Labels[kueue.MultiKueueOriginLabel]; remote {
		n.metadata = "MultiKueue"
		n.labels[kueue.MultiKueueWorkerWorkloadPodLabel] = kueue.MultiKueueWorkerWorkloadPodValue
	}
	if !in.Features.QueueLabels {
		return
	}
	n.labels[constants.LocalQueueLabel] = string(wl.Spec.QueueName)
	if name := string(wl.Status.Admission.ClusterQueue); len(validation.IsDNS1123Label(name)) == 0 {
		n.labels[constants.ClusterQueueLabel] = name
	}
}

// update adds what an admission check asks for; a value that contradicts a flavor or another check is an error.
func (n *needs) update(check string, update kueue.PodSetUpdate) error {
	source := "AdmissionCheck " + check
	for _, m := range []struct {
		field      string
		have, want map[string]string
	}{
		{"labels", n.labels, update.Labels},
		{"annotations", n.annotations, update.Annotations},
		{"nodeSelector", n.nodeSelector, update.NodeSelector},
	} {
		for _, key := range slices.Sorted(maps.Keys(m.want)) {
			if have, found := m.have[key]; found && have != m.want[key] {
				return &ConflictError{
					Path: fmt.Sprintf("status.admissionChecks[%s].podSetUpdates[%s].%s[%s]", check, update.Name, m.field, key),
					Says: m.want[key], Needs: have, Source: n.origin(key),
					WayOut: "change the admission check's configuration or the flavor so that they agree",
				}
			}
		}
	}
	if len(update.Labels)+len(update.Annotations) > 0 {
		n.metadata = source
	}
	maps.Copy(n.labels, update.Labels)
	maps.Copy(n.annotations, update.Annotations)
	n.selector(update.NodeSelector, source)
	n.tolerations = tolerate(n.tolerations, update.Tolerations)
	return nil
}

// origin says what asked for a key.
func (n *needs) origin(key string) string {
	if source, found := n.source[key]; found {
		return source
	}
	return "Kueue"
}

func findPodSet(podSets []kueue.PodSet, name kueue.PodSetReference) *kueue.PodSet {
	if i := slices.IndexFunc(podSets, func(p kueue.PodSet) bool { return p.Name == name }); i >= 0 {
		return &podSets[i]
	}
	return nil
}
