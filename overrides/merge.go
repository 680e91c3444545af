package overrides

import (
	"encoding/json"
	"fmt"
	"slices"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/apimachinery/pkg/util/validation/field"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	"github.com/signalbox-dev/signalbox/overrides/pipeline"
)

// Merge returns the runtime with the entries merged into its template, in their order, as Trainer does.
func Merge(runtime *trainerapi.TrainingRuntimeSpec, entries []Entry) (*trainerapi.TrainingRuntimeSpec, error) {
	merged := runtime.DeepCopy()
	template := &merged.Template
	order := make(map[string]int, len(template.Spec.ReplicatedJobs))
	for i, rj := range template.Spec.ReplicatedJobs {
		order[rj.Name] = i
	}
	for _, entry := range entries {
		if meta := jobSetMetadata(entry.Patch); meta != nil {
			template.Labels = labels.Merge(template.Labels, meta.Labels)
			template.Annotations = labels.Merge(template.Annotations, meta.Annotations)
		}
		patches := ReplicatedJobsOf(entry.Patch)
		if len(patches) == 0 {
			continue
		}
		for _, rj := range patches {
			if _, found := order[rj.Name]; !found {
				return nil, field.NotSupported(entry.targetPath(rj.Name), rj.Name, names(template.Spec.ReplicatedJobs))
			}
		}
		if entry.Replaces {
			makeRoom(template.Spec.ReplicatedJobs, patches)
		}
		spec, err := mergeOne(template.Spec, entry.Patch.Template.Spec)
		if err != nil {
			return nil, fmt.Errorf("merging %s: %w", entry.Path, err)
		}
		template.Spec = spec
	}
	// A strategic merge may reorder the list; the order of ReplicatedJobs is the runtime's.
	slices.SortStableFunc(template.Spec.ReplicatedJobs, func(a, b jobset.ReplicatedJob) int {
		return order[a.Name] - order[b.Name]
	})
	return merged, nil
}

// makeRoom removes what the patches replace. A strategic merge then gives what the operator guide of
// podTemplateOverrides describes: maps and lists of names are replaced, as are volumes, environment and mounts of the
// same name.
func makeRoom(replicatedJobs []jobset.ReplicatedJob, patches []trainerapi.ReplicatedJobPatch) {
	for _, rj := range patches {
		_, over := PodPatchOf(&rj)
		if over == nil {
			continue
		}
		pod := &find(replicatedJobs, rj.Name).Template.Spec.Template.Spec
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
			if have := pipeline.Find(pod.Volumes, func(have *corev1.Volume) bool { return have.Name == v.Name }); have != nil {
				*have = corev1.Volume{Name: v.Name}
			}
		}
		makeRoomInContainers(pod.InitContainers, over.InitContainers)
		makeRoomInContainers(pod.Containers, over.Containers)
	}
}

// makeRoomInContainers removes the environment and the mounts that the patches replace.
func makeRoomInContainers(have []corev1.Container, patches []trainerapi.ContainerPatch) {
	for _, patch := range patches {
		c := findContainer(have, patch.Name)
		if c == nil {
			continue
		}
		for _, env := range patch.Env {
			if have := pipeline.Find(c.Env, func(e *corev1.EnvVar) bool { return e.Name == env.Name }); have != nil {
				*have = corev1.EnvVar{Name: env.Name} // in its place: a later variable may refer to it
			}
		}
		for _, mount := range patch.VolumeMounts {
			samePath := func(m *corev1.VolumeMount) bool { return m.MountPath == mount.MountPath }
			if have := pipeline.Find(c.VolumeMounts, samePath); have != nil {
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

// Fold joins entries into one patch that does what they do one after the other. A patch is a part of what it is merged
// into, so that fold merges them into an empty runtime.
func Fold(entries []Entry) (*trainerapi.TrainingRuntimeSpecPatch, error) {
	merged, err := Merge(emptyRuntime(entries), entries)
	if err != nil {
		return nil, err
	}
	data, err := json.Marshal(merged.Template.Spec)
	if err != nil {
		return nil, err
	}
	spec := &trainerapi.JobSetSpecPatch{}
	if err := json.Unmarshal(data, spec); err != nil {
		return nil, err
	}
	spec.ReplicatedJobs = slices.DeleteFunc(spec.ReplicatedJobs, prune)
	template := &trainerapi.JobSetTemplatePatch{Spec: spec}
	if meta := MetadataPatch(&merged.Template.ObjectMeta); hasMetadata(meta) {
		template.Metadata = meta
	}
	return &trainerapi.TrainingRuntimeSpecPatch{Template: template}, nil
}

// emptyRuntime returns a runtime with nothing but the names of the entries' ReplicatedJobs.
func emptyRuntime(entries []Entry) *trainerapi.TrainingRuntimeSpec {
	runtime := &trainerapi.TrainingRuntimeSpec{}
	spec := &runtime.Template.Spec
	for _, entry := range entries {
		for _, rj := range ReplicatedJobsOf(entry.Patch) {
			if find(spec.ReplicatedJobs, rj.Name) == nil {
				spec.ReplicatedJobs = append(spec.ReplicatedJobs, jobset.ReplicatedJob{Name: rj.Name})
			}
		}
	}
	return runtime
}

// prune removes the empty fields that a JobSet's types always write, and reports whether nothing is left of a patch.
func prune(rj trainerapi.ReplicatedJobPatch) (empty bool) {
	template := rj.Template
	if !hasMetadata(template.Metadata) {
		template.Metadata = nil
	}
	pod := template.Spec.Template
	if !hasMetadata(pod.Metadata) {
		pod.Metadata = nil
	}
	if equality.Semantic.DeepEqual(pod.Spec, &trainerapi.PodSpecPatch{}) {
		pod.Spec = nil
	}
	if pod.Metadata == nil && pod.Spec == nil {
		template.Spec = nil
	}
	return template.Metadata == nil && template.Spec == nil
}
