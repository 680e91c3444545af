package admission

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/constants"
	"sigs.k8s.io/kueue/pkg/util/podset"

	"github.com/signalbox-dev/signalbox/overrides"
	"github.com/signalbox-dev/signalbox/podsets"
)

// needs is what admission asks of the pods of one ReplicatedJob, and where each value comes from.
type needs struct {
	labels, annotations, nodeSelector map[string]string
	tolerations                       []corev1.Toleration
	gates                             []corev1.PodSchedulingGate
	keepsOff                          []string
	// metadata names what can't do without the labels or annotations; "" where they only inform.
	metadata string
	// source names what asked for a key of nodeSelector: a flavor or an admission check.
	source map[string]string
	// nodes is the number of nodes of a partially admitted TrainJob, and pods that of the ReplicatedJob which has fewer
	// pods. Both are 0 for other ReplicatedJobs.
	nodes, pods int32
}

// flavor adds the node labels and tolerations of a flavor. Another flavor of the PodSet, for another resource, may have
// another value of a label: no node has both.
func (n *needs) flavor(name kueue.ResourceFlavorReference, spec kueue.ResourceFlavorSpec) error {
	source := fmt.Sprintf("ResourceFlavor %s", name)
	for _, key := range slices.Sorted(maps.Keys(spec.NodeLabels)) {
		if have, found := n.nodeSelector[key]; found && have != spec.NodeLabels[key] {
			return &ConflictError{
				Path: fmt.Sprintf("ResourceFlavor %s spec.nodeLabels[%s]", name, key), Says: spec.NodeLabels[key], Needs: have,
				Source: n.origin(key), WayOut: "change one of the flavors, or let the ClusterQueue assign flavors that agree, " +
					"with both resources in one group",
			}
		}
	}
	n.selector(spec.NodeLabels, source)
	n.tolerations = tolerate(n.tolerations, spec.Tolerations)
	return nil
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
	a.Operator = cmp.Or(a.Operator, corev1.TolerationOpEqual)
	b.Operator = cmp.Or(b.Operator, corev1.TolerationOpEqual)
	return equality.Semantic.DeepEqual(a, b)
}

// assigned collects what the admission of a Workload requires of each PodSet: the flavors' node labels and tolerations,
// the topology assignment's gate, Kueue's labels, and the admission checks' updates. Kueue v0.19.2 does the same for
// the jobs of its own integrations (jobframework, getPodSetsInfoFromStatus).
func assigned(in Input) (map[kueue.PodSetReference]*needs, error) {
	wl := in.Workload
	all := make(map[kueue.PodSetReference]*needs, len(wl.Status.Admission.PodSetAssignments))
	for _, assignment := range wl.Status.Admission.PodSetAssignments {
		podSet := podset.FindPodSetByName(wl.Spec.PodSets, assignment.Name)
		if podSet == nil {
			return nil, fmt.Errorf("Workload %s assigns PodSet %q, which it does not have", wl.Name, assignment.Name)
		}
		if n := ptr.Deref(assignment.Count, podSet.Count); n > podSet.Count {
			return nil, fmt.Errorf("Workload %s admits %d pods of PodSet %q, which has %d", wl.Name, n, assignment.Name,
				podSet.Count)
		}
		n, err := forPodSet(in, assignment, podSet)
		if err != nil {
			return nil, err
		}
		all[assignment.Name] = n
	}
	if in.Features.TopologyAware {
		rank(wl, all)
	}
	return all, partial(in, all)
}

// partial sets the nodes and pods of a partially admitted TrainJob. It is a *ConflictError if the Trainer can't run the
// TrainJob with them: the same admission would fail again, and hold its quota meanwhile.
func partial(in Input, all map[kueue.PodSetReference]*needs) error {
	podSet, fewer := podsets.PartiallyAdmitted(in.Workload)
	if podSet == nil {
		return nil
	}
	n := all[podSet.Name]
	n.pods, n.nodes = podSet.Count-fewer, overrides.Nodes(in.Job, in.Runtime)-fewer
	if n.pods < 1 || n.nodes < 1 || !in.Dialect.PartialAdmission {
		return fewerPods(podSet.Name, n.pods, podSet.Count, in.Dialect.Name)
	}
	return nil
}

// fewerPods is about an admission of fewer pods of a PodSet than what source needs.
func fewerPods(name kueue.PodSetReference, admitted, needed int32, source string) error {
	return &ConflictError{
		Path: fmt.Sprintf("%s[%s].count", assignments, name), Says: fmt.Sprint(admitted),
		Needs: fmt.Sprint(needed), Source: source,
		WayOut: "remove annotation " + overrides.MinParallelismAnnotation + " from the TrainJob and its runtime",
	}
}

func forPodSet(in Input, assignment kueue.PodSetAssignment, podSet *kueue.PodSet) (*needs, error) {
	wl := in.Workload
	n := &needs{
		labels:       map[string]string{constants.PodSetLabel: string(assignment.Name)},
		annotations:  map[string]string{},
		nodeSelector: map[string]string{},
		source:       map[string]string{},
		keepsOff:     in.KeepsOff,
	}
	// Flavors are taken in the order of their names: a map's order must not show in what is written.
	for _, name := range slices.Sorted(maps.Values(assignment.Flavors)) {
		flavor, known := in.Flavors[name]
		if !known {
			return nil, fmt.Errorf("ResourceFlavor %q, which Workload %s was admitted on, is not known", name, wl.Name)
		}
		if err := n.flavor(name, flavor); err != nil {
			return nil, err
		}
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
	key, level := topologyOf(podSet)
	if _, has := podSet.Template.Annotations[key]; !has {
		n.annotations[key] = level
	}
}

// topologyOf returns the annotation by which Kueue recognizes the pods of a PodSet as topology-aware. A PodSet
// without an annotation of its own has the request of its group (podsets), or none.
func topologyOf(podSet *kueue.PodSet) (key, level string) {
	switch r := podSet.TopologyRequest; {
	case r != nil && r.Required != nil:
		return kueue.PodSetRequiredTopologyAnnotation, *r.Required
	case r != nil && r.Preferred != nil:
		return kueue.PodSetPreferredTopologyAnnotation, *r.Preferred
	case r != nil && r.Unconstrained != nil:
		return kueue.PodSetUnconstrainedTopologyAnnotation, strconv.FormatBool(*r.Unconstrained)
	}
	return kueue.PodSetUnconstrainedTopologyAnnotation, "true"
}

// rank corrects the ranks of the pods of PodSet groups. Kueue v0.19.2 (pkg/controller/tas, topologyUngater) expects the
// indexes of the larger PodSet's pods to start after those of the smaller one, as LeaderWorkerSet counts them. JobSet
// starts at 0 in each ReplicatedJob, so that Kueue would reject the ranks and assign the pods in any order.
func rank(wl *kueue.Workload, all map[kueue.PodSetReference]*needs) {
	groups := map[string][]kueue.PodSetAssignment{}
	for _, assignment := range wl.Status.Admission.PodSetAssignments {
		podSet := podset.FindPodSetByName(wl.Spec.PodSets, assignment.Name)
		if r := podSet.TopologyRequest; r != nil && r.PodSetGroupName != nil && assignment.TopologyAssignment != nil {
			groups[*r.PodSetGroupName] = append(groups[*r.PodSetGroupName], assignment)
		}
	}
	for _, group := range groups {
		if len(group) != 2 {
			continue
		}
		smaller, larger := group[0], group[1]
		if ptr.Deref(smaller.Count, 0) > ptr.Deref(larger.Count, 0) {
			smaller, larger = larger, smaller
		}
		podSet := podset.FindPodSetByName(wl.Spec.PodSets, larger.Name)
		if _, has := podSet.Template.Annotations[kueue.PodIndexOffsetAnnotation]; !has {
			all[larger.Name].annotations[kueue.PodIndexOffsetAnnotation] = strconv.Itoa(-int(ptr.Deref(smaller.Count, 0)))
		}
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

func (n *needs) origin(key string) string {
	if source, found := n.source[key]; found {
		return source
	}
	return "Kueue"
}
