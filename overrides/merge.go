package overrides

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/apimachinery/pkg/util/validation/field"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
)

// merge returns the JobSet template with the entries applied in their order, as Trainer does.
func merge(template jobset.JobSetSpec, entries []Entry) (jobset.JobSetSpec, error) {
	order := make(map[string]int, len(template.ReplicatedJobs))
	for i, rj := range template.ReplicatedJobs {
		order[rj.Name] = i
	}
	for _, entry := range entries {
		if entry.Patch == nil || entry.Patch.Template == nil || entry.Patch.Template.Spec == nil {
			continue
		}
		patch := entry.Patch.Template.Spec
		for _, rj := range patch.ReplicatedJobs {
			if _, found := order[rj.Name]; !found {
				return template, field.NotSupported(entry.targetPath(rj.Name), rj.Name, names(template.ReplicatedJobs))
			}
		}
		if entry.Replaces {
			template = makeRoom(template, patch)
		}
		merged, err := mergeOne(template, patch)
		if err != nil {
			return template, fmt.Errorf("merging %s: %w", entry.Path, err)
		}
		template = merged
	}
	// A strategic merge may reorder the list; the order of ReplicatedJobs is the runtime's.
	slices.SortStableFunc(template.ReplicatedJobs, func(a, b jobset.ReplicatedJob) int {
		return order[a.Name] - order[b.Name]
	})
	return template, nil
}

// makeRoom returns the template without what the patch replaces. A strategic merge of the two then gives what the
// operator guide of podTemplateOverrides describes: maps and lists of names are replaced, as are volumes, environment
// and mounts of the same name.
func makeRoom(template jobset.JobSetSpec, patch *trainerapi.JobSetSpecPatch) jobset.JobSetSpec {
	template = *template.DeepCopy()
	for _, rj := range patch.ReplicatedJobs {
		_, over := podPatchOf(&rj)
		at := find(template.ReplicatedJobs, rj.Name)
		if over == nil || at == nil {
			continue
		}
		pod := &at.Template.Spec.Template.Spec
		if len(over.NodeSelector) > 0 {
			pod.NodeSelector = nil
		}
		if over.Affinity != nil {
			pod.Affinity = nil
		}
		if len(over.SchedulingGates) > 0 {
			pod.SchedulingGates = nil
		}
		if len(over.ImagePullSecrets) > 0 {
			pod.ImagePullSecrets = nil
		}
		for _, v := range over.Volumes {
			if have := first(pod.Volumes, func(have *corev1.Volume) bool { return have.Name == v.Name }); have != nil {
				*have = corev1.Volume{Name: v.Name}
			}
		}
		makeRoomInContainers(pod.InitContainers, over.InitContainers)
		makeRoomInContainers(pod.Containers, over.Containers)
	}
	return template
}

// makeRoomInContainers removes the environment and the mounts that the patches replace.
func makeRoomInContainers(have []corev1.Container, patches []trainerapi.ContainerPatch) {
	for _, patch := range patches {
		c := findContainer(have, patch.Name)
		if c == nil {
			continue
		}
		for _, env := range patch.Env {
			if have := first(c.Env, func(e *corev1.EnvVar) bool { return e.Name == env.Name }); have != nil {
				*have = corev1.EnvVar{Name: env.Name} // in its place: a later variable may refer to it
			}
		}
		for _, mount := range patch.VolumeMounts {
			samePath := func(m *corev1.VolumeMount) bool { return m.MountPath == mount.MountPath }
			if have := first(c.VolumeMounts, samePath); have != nil {
				*have = corev1.VolumeMount{Name: mount.Name, MountPath: mount.MountPath}
			}
		}
		c.VolumeMounts = slices.DeleteFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool {
			sameVolume := slices.ContainsFunc(patch.VolumeMounts, func(o corev1.VolumeMount) bool { return o.Name == m.Name })
			samePath := slices.ContainsFunc(patch.VolumeMounts, func(o corev1.VolumeMount) bool {
				return o.MountPath == m.MountPath
			})
			return sameVolume && !samePath
		})
	}
}

// mergeOne returns the strategic merge of a template and a patch.
func mergeOne(template jobset.JobSetSpec, patch *trainerapi.JobSetSpecPatch) (merged jobset.JobSetSpec, err error) {
	original, err := json.Marshal(template)
	if err != nil {
		return merged, err
	}
	change, err := json.Marshal(patch)
	if err != nil {
		return merged, err
	}
	result, err := strategicpatch.StrategicMergePatch(original, change, jobset.JobSetSpec{})
	if err != nil {
		return merged, err
	}
	return merged, json.Unmarshal(result, &merged)
}

// metadata returns the JobSet's labels and annotations: the runtime's, and over them the entries', in their order.
func metadata(runtime *trainerapi.TrainingRuntimeSpec, entries []Entry) (labels, annotations map[string]string) {
	labels, annotations = map[string]string{}, map[string]string{}
	maps.Copy(labels, runtime.Template.Labels)
	maps.Copy(annotations, runtime.Template.Annotations)
	for _, entry := range entries {
		if s := entry.Patch; s != nil && s.Template != nil && s.Template.Metadata != nil {
			maps.Copy(labels, s.Template.Metadata.Labels)
			maps.Copy(annotations, s.Template.Metadata.Annotations)
		}
	}
	return labels, annotations
}
