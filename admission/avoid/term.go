package avoid

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
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

// With returns an affinity, which may be nil, that also keeps off hosts.
func With(affinity *corev1.Affinity, hosts []string) *corev1.Affinity {
	if len(hosts) == 0 || Has(affinity, hosts) {
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
		if term := &required.NodeSelectorTerms[i]; !matchesNothing(term) && !keeps(term, hosts) {
			term.MatchExpressions = append(term.MatchExpressions, keepsOff(hosts))
		}
	}
	return affinity
}

// Has reports whether an affinity keeps off hosts.
func Has(affinity *corev1.Affinity, hosts []string) bool {
	terms := termsOf(affinity)
	return len(terms) > 0 && !slices.ContainsFunc(terms, func(term corev1.NodeSelectorTerm) bool {
		return !matchesNothing(&term) && !keeps(&term, hosts)
	})
}

func termsOf(affinity *corev1.Affinity) []corev1.NodeSelectorTerm {
	if affinity == nil || affinity.NodeAffinity == nil ||
		affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return nil
	}
	return affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
}

// matchesNothing reports whether a term is empty: no node matches it (k8s.io/api/core/v1).
func matchesNothing(term *corev1.NodeSelectorTerm) bool {
	return len(term.MatchExpressions)+len(term.MatchFields) == 0
}

func keeps(term *corev1.NodeSelectorTerm, hosts []string) bool {
	return slices.ContainsFunc(term.MatchExpressions, func(r corev1.NodeSelectorRequirement) bool {
		return r.Key == corev1.LabelHostname && r.Operator == corev1.NodeSelectorOpNotIn && slices.Equal(r.Values, hosts)
	})
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

// Written returns the hosts that all PodSets of a Workload keep off by the requirement that Apply adds last; nil for
// none. They may be those of a runtime, which Apply then doesn't add again.
func Written(podSets []kueue.PodSet) (hosts []string) {
	for i := range podSets {
		terms := termsOf(podSets[i].Template.Spec.Affinity)
		if len(terms) == 0 {
			return nil
		}
		for j := range terms {
			expressions := terms[j].MatchExpressions
			if matchesNothing(&terms[j]) {
				continue
			}
			if len(expressions) == 0 {
				return nil
			}
			last := expressions[len(expressions)-1]
			if last.Key != corev1.LabelHostname || last.Operator != corev1.NodeSelectorOpNotIn ||
				hosts != nil && !slices.Equal(hosts, last.Values) {
				return nil
			}
			hosts = last.Values
		}
	}
	return hosts
}
