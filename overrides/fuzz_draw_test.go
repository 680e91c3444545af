package overrides_test

import (
	"time"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides"
)

// draw makes choices from the fuzzer's bytes; without bytes left, always the first.
type draw struct{ data []byte }

func (d *draw) of(n int) int {
	if len(d.data) == 0 {
		return 0
	}
	c := int(d.data[0]) % n
	d.data = d.data[1:]
	return c
}

func pick[T any](d *draw, from ...T) T { return from[d.of(len(from))] }

func (d *draw) pairs() map[string]string {
	n := d.of(4)
	if n == 0 {
		return nil
	}
	m := map[string]string{}
	for range n {
		m[pick(d, "gpu", "zone", "team", "", "$patch", "kueue.x-k8s.io/podset")] = pick(d, "", "a", "b", "delete", "replace")
	}
	return m
}

// entries draws a TrainJob's entries, of fields that can meet each other.
func (d *draw) entries() []trainerapi.RuntimePatch {
	var entries []trainerapi.RuntimePatch
	for range d.of(5) {
		entry := trainerapi.RuntimePatch{Manager: pick(d, "a.com/a", "b.com/b", "c.com/c", overrides.Manager, "", "nobody")}
		if d.of(8) > 0 {
			entry.TrainingRuntimeSpec = &trainerapi.TrainingRuntimeSpecPatch{}
			if d.of(8) > 0 {
				entry.TrainingRuntimeSpec.Template = &trainerapi.JobSetTemplatePatch{Spec: &trainerapi.JobSetSpecPatch{}}
				if d.of(3) == 0 {
					entry.TrainingRuntimeSpec.Template.Metadata = &metav1.ObjectMeta{Labels: d.pairs(), Annotations: d.pairs()}
				}
				for range d.of(4) {
					entry.TrainingRuntimeSpec.Template.Spec.ReplicatedJobs = append(
						entry.TrainingRuntimeSpec.Template.Spec.ReplicatedJobs, d.replicatedJob())
				}
			}
		}
		entries = append(entries, entry)
	}
	return entries
}

func (d *draw) replicatedJob() trainerapi.ReplicatedJobPatch {
	rj := trainerapi.ReplicatedJobPatch{Name: pick(d, "node", "launcher", "dataset-initializer", "nodes")}
	if d.of(8) == 0 {
		return rj
	}
	rj.Template = &trainerapi.JobTemplatePatch{Spec: &trainerapi.JobSpecPatch{Template: &trainerapi.PodTemplatePatch{}}}
	if d.of(3) == 0 {
		rj.Template.Metadata = &metav1.ObjectMeta{Labels: d.pairs()}
	}
	pod := rj.Template.Spec.Template
	if d.of(2) == 0 {
		pod.Metadata = &metav1.ObjectMeta{Labels: d.pairs(), Annotations: d.pairs()}
	}
	if d.of(6) == 0 {
		return rj
	}
	pod.Spec = &trainerapi.PodSpecPatch{NodeSelector: d.pairs()}
	for range d.of(3) {
		pod.Spec.Tolerations = append(pod.Spec.Tolerations, corev1.Toleration{Key: pick(d, "", "spot", "gpu"),
			Operator: pick(d, corev1.TolerationOpExists, corev1.TolerationOpEqual, "")})
	}
	for range d.of(3) {
		pod.Spec.SchedulingGates = append(pod.Spec.SchedulingGates, corev1.PodSchedulingGate{Name: pick(d, "a", "b", "")})
	}
	for range d.of(3) {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: pick(d, "data", "initializer", "")})
	}
	for range d.of(3) {
		c := trainerapi.ContainerPatch{Name: pick(d, "node", "sidecar", "dataset-initializer", "")}
		for range d.of(3) {
			c.Env = append(c.Env, corev1.EnvVar{Name: pick(d, "A", "B", ""), Value: pick(d, "", "x")})
		}
		for range d.of(3) {
			c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: pick(d, "data", "initializer"),
				MountPath: pick(d, "/a", "/b", "")})
		}
		pod.Spec.Containers = append(pod.Spec.Containers, c)
	}
	if d.of(4) == 0 {
		pod.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{}}
	}
	if d.of(4) == 0 {
		pod.Spec.TerminationGracePeriodSeconds = ptr.To(int64(d.of(3)))
	}
	return rj
}

func (d *draw) spec() api.TrainJobSpec {
	spec := api.TrainJobSpec{TrainJobSpec: trainerapi.TrainJobSpec{RuntimePatches: d.entries()}}
	if d.of(3) == 0 {
		spec.Trainer = &trainerapi.Trainer{NumNodes: ptr.To(int32(d.of(5) - 1)),
			Env: []corev1.EnvVar{{Name: pick(d, "A", "")}}, Command: pick(d, nil, []string{"tune", "run"})}
	}
	if d.of(4) == 0 {
		spec.Initializer = &trainerapi.Initializer{Dataset: &trainerapi.DatasetInitializer{StorageUri: ptr.To("hf://a")}}
	}
	if d.of(4) == 0 {
		spec.Initializer = &trainerapi.Initializer{Model: &trainerapi.ModelInitializer{}}
	}
	for range d.of(3) {
		o := api.PodTemplateOverride{TargetJobs: []api.TargetJob{{Name: pick(d, "node", "launcher", "dataset-initializer",
			"nodes")}}, Metadata: &metav1.ObjectMeta{Labels: d.pairs()}}
		if d.of(4) > 0 {
			o.Spec = &api.PodTemplateSpecOverride{NodeSelector: d.pairs()}
			for range d.of(3) {
				o.Spec.SchedulingGates = append(o.Spec.SchedulingGates, corev1.PodSchedulingGate{Name: pick(d, "a", "b", "")})
			}
			for range d.of(3) {
				o.Spec.Tolerations = append(o.Spec.Tolerations, corev1.Toleration{Key: pick(d, "", "spot", "gpu"),
					Operator: corev1.TolerationOpExists})
			}
			for range d.of(3) {
				o.Spec.Volumes = append(o.Spec.Volumes, corev1.Volume{Name: pick(d, "data", "initializer", "")})
				o.Spec.Containers = append(o.Spec.Containers,
					api.ContainerOverride{Name: pick(d, "node", "sidecar", "dataset-initializer", ""),
						Env: []corev1.EnvVar{{Name: pick(d, "A", ""), Value: "x"}}, VolumeMounts: []corev1.VolumeMount{
							{Name: pick(d, "data", ""), MountPath: pick(d, "/a", "/b", "")}}})
			}
		}
		if d.of(3) > 0 {
			spec.PodTemplateOverrides = append(spec.PodTemplateOverrides, o)
			continue
		}
		h := api.TemplateOverride{Manager: pick(d, "a.com/a", "b.com/b", overrides.Manager)}
		h.Job = append(h.Job, api.JobTemplateHistoryEntry{TargetJobs: o.TargetJobs[:d.of(2)], Metadata: o.Metadata})
		if o.Spec != nil {
			h.Pod = append(h.Pod, api.PodTemplateHistoryEntry{Time: pick(d, nil, &metav1.Time{Time: time.Unix(int64(d.of(3)),
				0)}), TargetJobs: o.TargetJobs, Metadata: o.Metadata, Spec: &api.PodSpecOverlay{PodTemplateSpecOverride: *o.Spec}})
		}
		spec.TemplateOverrides = append(spec.TemplateOverrides, h)
	}
	return spec
}
