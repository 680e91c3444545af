package admission

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/signalbox-dev/signalbox/admission/avoid"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides"
)

// placing is what decides where the pods of one ReplicatedJob run.
type placing struct {
	job           *api.TrainJob
	entries       []overrides.Entry
	replicatedJob string
	needs         *needs
}

// complete adds what is needed to what the pod template has, and returns the whole.
func (p placing) complete(pod *corev1.PodTemplateSpec) (patch trainerapi.ReplicatedJobPatch, err error) {
	n := p.needs
	labels, err1 := p.union(overrides.Labels, pod.Labels, n.labels)
	annotations, err2 := p.union(overrides.Annotations, pod.Annotations, n.annotations)
	selector, err3 := p.union(overrides.NodeSelector, pod.Spec.NodeSelector, n.nodeSelector)
	if err := errors.Join(err1, err2, err3); err != nil {
		return patch, err
	}
	spec := &trainerapi.PodSpecPatch{NodeSelector: selector}
	if len(n.keepsOff) > 0 {
		spec.Affinity = avoid.With(pod.Spec.Affinity, n.keepsOff)
	}
	if len(n.tolerations) > 0 {
		spec.Tolerations = tolerate(slices.Clone(pod.Spec.Tolerations), n.tolerations)
	}
	if len(n.gates) > 0 {
		spec.SchedulingGates = slices.Clone(pod.Spec.SchedulingGates)
		for _, g := range n.gates {
			if !slices.Contains(spec.SchedulingGates, g) {
				spec.SchedulingGates = append(spec.SchedulingGates, g)
			}
		}
	}
	tolerations, gates := len(spec.Tolerations), len(spec.SchedulingGates)
	if tolerations > maxTolerations || gates > maxGates {
		return patch, &ConflictError{
			Path:   fmt.Sprintf("the entry of %s for replicatedJob %s", overrides.Manager, p.replicatedJob),
			Source: "a complete entry",
			Says:   fmt.Sprintf("%d tolerations and %d scheduling gates", tolerations, gates),
			Needs:  fmt.Sprintf("at most %d and %d", maxTolerations, maxGates),
			WayOut: "give the runtime or the other entries fewer",
		}
	}
	patch = podPatch(p.replicatedJob, &metav1.ObjectMeta{Labels: labels, Annotations: annotations}, spec)
	if n.nodes > 0 {
		patch.Template.Metadata = &metav1.ObjectMeta{
			Annotations: map[string]string{overrides.NodesAnnotation: strconv.Itoa(int(n.nodes))},
		}
	}
	return patch, nil
}

// union merges what is needed into what the field has; another value for a key is a conflict with whoever set it. If
// nothing is needed it returns nil, so that the field stays out of the entry.
func (p placing) union(field overrides.Field, have, need map[string]string) (map[string]string, error) {
	if len(need) == 0 {
		return nil, nil
	}
	for _, key := range slices.Sorted(maps.Keys(need)) {
		if value, found := have[key]; found && value != need[key] {
			return nil, p.conflict(field, key, value, ConflictError{Needs: need[key], Source: p.needs.origin(key)})
		}
	}
	whole := maps.Clone(need)
	maps.Copy(whole, have)
	return whole, nil
}

// conflict returns e with who set the value: the last entry that does, or the runtime.
func (p placing) conflict(field overrides.Field, key, value string, e ConflictError) *ConflictError {
	e.Says = value
	keyed := string(field)
	if key != "" {
		keyed += "[" + key + "]"
	}
	setter := overrides.Setter(p.entries, p.replicatedJob, field, key)
	switch {
	case setter == nil:
		e.Path = fmt.Sprintf("runtime %s: replicatedJobs[%s].template.spec.template.%s",
			p.job.Spec.RuntimeRef.Name, p.replicatedJob, keyed)
		e.WayOut = "change the runtime, or queue the TrainJob where the two agree"
	case setter.Manager == "":
		e.Path = setter.PodPath(p.replicatedJob).String() + "." + keyed
		e.WayOut = "take it out there, or queue the TrainJob where the two agree"
	default:
		e.Path = setter.PodPath(p.replicatedJob).String() + "." + keyed
		e.WayOut = fmt.Sprintf("take it out of the entry of %s, or queue the TrainJob where the two agree", setter.Manager)
	}
	return &e
}

// verify computes what the TrainJob would run with the entry among the others, where a later one takes precedence, and
// checks that every pod gets what admission needs.
func verify(in Input, all map[kueue.PodSetReference]*needs, own trainerapi.RuntimePatch) error {
	entries := in.Dialect.With(in.Job, own)
	// It isn't kept: the entry has the Workload's name, so that no other TrainJob runs the same.
	result, err := in.Dialect.Compute(in.Job, in.Runtime, entries)
	if err != nil {
		return err
	}
	for i := range result.ReplicatedJobs {
		rj := &result.ReplicatedJobs[i]
		p := placing{in.Job, entries, rj.Name, all[kueue.NewPodSetReference(rj.Name)]}
		if err := p.verify(&rj.Template.Spec.Template); err != nil {
			return err
		}
		if pods := rj.Replicas * overrides.PodsPerJob(rj); p.needs.pods > 0 && p.needs.pods != pods {
			return fewerPods(kueue.NewPodSetReference(rj.Name), p.needs.pods, pods,
				fmt.Sprintf("a TrainJob of %d nodes", p.needs.nodes))
		}
	}
	return nil
}

// verify checks that a pod template has what is needed.
func (p placing) verify(pod *corev1.PodTemplateSpec) error {
	n := p.needs
	for _, m := range []struct {
		field      overrides.Field
		have, want map[string]string
	}{
		{overrides.Labels, pod.Labels, n.labels},
		{overrides.Annotations, pod.Annotations, n.annotations},
		{overrides.NodeSelector, pod.Spec.NodeSelector, n.nodeSelector},
	} {
		for _, key := range slices.Sorted(maps.Keys(m.want)) {
			if m.have[key] != m.want[key] {
				return p.conflict(m.field, key, m.have[key], ConflictError{Needs: m.want[key], Source: n.origin(key)})
			}
		}
	}
	if len(n.keepsOff) > 0 && !avoid.Has(pod.Spec.Affinity, n.keepsOff) {
		return p.conflict(overrides.Affinity, "", "another",
			ConflictError{Needs: "NotIn " + strings.Join(n.keepsOff, ", "), Source: "what its pods showed of nodes"})
	}
	have := pod.Spec.Tolerations
	if len(tolerate(slices.Clone(have), n.tolerations)) != len(have) {
		return p.conflict(overrides.Tolerations, "", fmt.Sprint(have),
			ConflictError{Needs: fmt.Sprint(n.tolerations), Source: "the admission"})
	}
	for _, g := range n.gates {
		if !slices.Contains(pod.Spec.SchedulingGates, g) {
			return p.conflict(overrides.SchedulingGates, g.Name, fmt.Sprint(pod.Spec.SchedulingGates),
				ConflictError{Needs: g.Name, Source: "the topology assignment"})
		}
	}
	return nil
}
