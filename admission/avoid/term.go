package avoid

import (
	"slices"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/signalbox-dev/signalbox/overrides"
)

// The term is a requirement of each required nodeSelectorTerm, because a node has to match one of these. Trainer's
// merge replaces the list of terms.

// keepsOff is the requirement to keep off hosts.
func keepsOff(hosts []string) corev1.NodeSelectorRequirement {
	return corev1.NodeSelectorRequirement{
		Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpNotIn, Values: slices.Clone(hosts),
	}
}

// With returns an affinity, which may be nil, that also keeps off hosts, by the last requirement of each term.
func With(affinity *corev1.Affinity, hosts []string) *corev1.Affinity {
	if len(hosts) == 0 || ends(affinity, hosts) {
		return affinity
	}
	affinity = affinity.DeepCopy()
	if affinity == nil {
		affinity = &corev1.Affinity{}
	}
	if affinity.NodeAffinity == nil {
		affinity.NodeAffinity = &corev1.NodeAffinity{}
	}
	required := affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	if required == nil {
		required = &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{
			{MatchExpressions: []corev1.NodeSelectorRequirement{keepsOff(hosts)}},
		}}
		affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution = required
		return affinity
	}
	for i := range required.NodeSelectorTerms {
		if term := &required.NodeSelectorTerms[i]; !matchesNothing(term) && !slices.Equal(lastOf(term), hosts) {
			term.MatchExpressions = append(term.MatchExpressions, keepsOff(hosts))
		}
	}
	return affinity
}

// stripped returns an affinity without what With has added.
func stripped(affinity *corev1.Affinity, hosts []string) *corev1.Affinity {
	if requiredOf(affinity) == nil {
		return affinity
	}
	affinity = affinity.DeepCopy()
	terms := requiredOf(affinity).NodeSelectorTerms
	for i := range terms {
		if all := terms[i].MatchExpressions; slices.Equal(lastOf(&terms[i]), hosts) {
			terms[i].MatchExpressions = all[:len(all)-1]
		}
	}
	if len(terms) == 1 && matchesNothing(&terms[0]) {
		affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution = nil
	}
	return affinity
}

// Has reports whether an affinity keeps off hosts.
func Has(affinity *corev1.Affinity, hosts []string) bool {
	return everyTerm(affinity, func(term *corev1.NodeSelectorTerm) bool {
		return slices.ContainsFunc(term.MatchExpressions, func(r corev1.NodeSelectorRequirement) bool {
			return slices.Equal(hostsOf(r), hosts)
		})
	})
}

// ends reports whether With has nothing to add.
func ends(affinity *corev1.Affinity, hosts []string) bool {
	return everyTerm(affinity, func(term *corev1.NodeSelectorTerm) bool { return slices.Equal(lastOf(term), hosts) })
}

// everyTerm reports whether an affinity requires nodes, each by a term that is as asked.
func everyTerm(affinity *corev1.Affinity, is func(*corev1.NodeSelectorTerm) bool) bool {
	required := requiredOf(affinity)
	return required != nil && !slices.ContainsFunc(required.NodeSelectorTerms, func(term corev1.NodeSelectorTerm) bool {
		return !matchesNothing(&term) && !is(&term)
	})
}

func requiredOf(affinity *corev1.Affinity) *corev1.NodeSelector {
	if affinity == nil || affinity.NodeAffinity == nil {
		return nil
	}
	return affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
}

// matchesNothing reports whether a term is empty: no node matches it (k8s.io/api/core/v1).
func matchesNothing(term *corev1.NodeSelectorTerm) bool {
	return len(term.MatchExpressions)+len(term.MatchFields) == 0
}

// hostsOf returns the hosts that a requirement keeps off; nil for none.
func hostsOf(r corev1.NodeSelectorRequirement) []string {
	if r.Key != corev1.LabelHostname || r.Operator != corev1.NodeSelectorOpNotIn {
		return nil
	}
	return r.Values
}

// lastOf returns the hosts that the last requirement of a term keeps off; nil for none.
func lastOf(term *corev1.NodeSelectorTerm) []string {
	if n := len(term.MatchExpressions); n > 0 {
		return hostsOf(term.MatchExpressions[n-1])
	}
	return nil
}

// Apply returns what a TrainJob runs that keeps off hosts. What it is given is shared and isn't changed.
func Apply(e *overrides.Effective, hosts []string) *overrides.Effective {
	if len(hosts) == 0 {
		return e
	}
	applied := *e
	applied.ReplicatedJobs = slices.Clone(e.ReplicatedJobs)
	for i := range applied.ReplicatedJobs {
		pod := &applied.ReplicatedJobs[i].Template.Spec.Template.Spec
		pod.Affinity = With(pod.Affinity, hosts)
	}
	return &applied
}

// Kept returns the hosts that the PodSets of a Workload keep off beyond what the TrainJob does by itself; nil for none.
func Kept(e *overrides.Effective, podSets []kueue.PodSet) []string {
	return Beyond(e, Written(podSets))
}

// Beyond returns hosts, or nil if what a TrainJob runs keeps off these by itself.
func Beyond(e *overrides.Effective, hosts []string) []string {
	if !slices.ContainsFunc(e.ReplicatedJobs, func(rj jobset.ReplicatedJob) bool {
		return !ends(rj.Template.Spec.Template.Spec.Affinity, hosts)
	}) {
		return nil
	}
	return hosts
}

// Started returns the hosts that the pods of a started TrainJob keep off, as the integration's entry says, which may be
// nil; nil for none.
func Started(entry *trainerapi.RuntimePatch) []string {
	if entry == nil || entry.TrainingRuntimeSpec == nil || entry.TrainingRuntimeSpec.Template == nil ||
		entry.TrainingRuntimeSpec.Template.Spec == nil {
		return nil
	}
	var podSets []kueue.PodSet
	for i := range entry.TrainingRuntimeSpec.Template.Spec.ReplicatedJobs {
		podSet := kueue.PodSet{}
		if _, spec := overrides.PodPatchOf(&entry.TrainingRuntimeSpec.Template.Spec.ReplicatedJobs[i]); spec != nil {
			podSet.Template.Spec.Affinity = spec.Affinity
		}
		podSets = append(podSets, podSet)
	}
	return slices.Clone(Written(podSets))
}

// Written returns the hosts that all PodSets of a Workload keep off by the last requirement of each term, as Apply
// writes it; nil for none. They may be those of a runtime.
func Written(podSets []kueue.PodSet) (hosts []string) {
	for i := range podSets {
		required := requiredOf(podSets[i].Template.Spec.Affinity)
		if required == nil {
			return nil
		}
		for j := range required.NodeSelectorTerms {
			term := &required.NodeSelectorTerms[j]
			if matchesNothing(term) {
				continue
			}
			last := lastOf(term)
			if last == nil || hosts != nil && !slices.Equal(hosts, last) {
				return nil
			}
			hosts = last
		}
	}
	return hosts
}
