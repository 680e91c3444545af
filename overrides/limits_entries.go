package overrides

import (
	"fmt"
	"slices"
	"strings"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// checkFields returns an error for each field of a TrainJob's spec that reaches the files of a node or names a Secret,
// if that isn't allowed, and for each quantity with too many digits. Of a TrainJob's fields, only its entries can reach
// a node.
func (l Limits) checkFields(path *field.Path, spec *api.TrainJobSpec) field.ErrorList {
	errs := checkMagnitudes(path, spec)
	walk(path, spec, func(at *field.Path, name string, value any) bool {
		switch {
		case !l.HostPaths && reachesNode(name, value):
			errs = append(errs, field.Invalid(at, AsJSON(value), "an entry may not reach the files of a node "+
				"(limits.hostPaths of Signalbox's configuration); leave it out, or use a runtime that has it"))
			return false
		case l.NoSecrets && strings.Contains(strings.ToLower(name), "secret"):
			errs = append(errs, field.Invalid(at, AsJSON(value), "a TrainJob may not name a Secret (limits.secrets of "+
				"Signalbox's configuration); leave it out, or use a runtime that has it"))
			return false
		}
		return true
	})
	return errs
}

// reachesNode reports whether a field of a pod, by its name in JSON, gives a container the files of its node. The
// kubelet makes some volumes by programs of the node with a user's options, or reads a key from a file of the node. A
// privileged container has all devices.
func reachesNode(name string, value any) bool {
	switch name {
	case "hostPath", "flexVolume", "gitRepo", "keyring", "secretFile":
		return true
	case "privileged", "hostProcess":
		set, ok := value.(*bool)
		return ok && *set
	}
	return false
}

func volumeReachesNode(volume *corev1.Volume) (reaches bool) {
	walk(nil, volume, func(_ *field.Path, name string, value any) bool {
		reaches = reaches || reachesNode(name, value)
		return !reaches
	})
	return reaches
}

// checkMounts returns an error for each mount by which an entry gives a container more of a node's files than the
// runtime gives.
func (l Limits) checkMounts(runtime *trainerapi.TrainingRuntimeSpec, entries []Entry) field.ErrorList {
	if l.HostPaths {
		return nil
	}
	var errs field.ErrorList
	for i := range runtime.Template.Spec.ReplicatedJobs {
		rj := &runtime.Template.Spec.ReplicatedJobs[i]
		pod := &rj.Template.Spec.Template.Spec
		reaching := reachingVolumes(pod, rj.Name, entries)
		if len(reaching) == 0 {
			continue
		}
		for _, entry := range entries {
			if _, patch := PodPatch(entry.Patch, rj.Name); patch != nil {
				path := entry.specPath(rj.Name)
				errs = append(errs, checkMountsOf(path.Child("initContainers"), patch.InitContainers, pod, reaching)...)
				errs = append(errs, checkMountsOf(path.Child("containers"), patch.Containers, pod, reaching)...)
			}
		}
	}
	return errs
}

// reachingVolumes returns the names of a ReplicatedJob's volumes that give a container the files of its node. One that
// an entry gives another source isn't among them: either it is replaced, or the API server rejects a volume of two.
func reachingVolumes(pod *corev1.PodSpec, replicatedJob string, entries []Entry) map[string]bool {
	reaching := map[string]bool{}
	for i := range pod.Volumes {
		if volumeReachesNode(&pod.Volumes[i]) {
			reaching[pod.Volumes[i].Name] = true
		}
	}
	for _, entry := range entries {
		if _, patch := PodPatch(entry.Patch, replicatedJob); patch != nil {
			for _, v := range patch.Volumes {
				if v.VolumeSource != (corev1.VolumeSource{}) {
					delete(reaching, v.Name)
				}
			}
		}
	}
	return reaching
}

func checkMountsOf(
	path *field.Path, patches []trainerapi.ContainerPatch, pod *corev1.PodSpec, reaching map[string]bool,
) field.ErrorList {
	var errs field.ErrorList
	for _, patch := range patches {
		for i, mount := range patch.VolumeMounts {
			if !reaching[mount.Name] || mountedAlike(pod, &mount) {
				continue
			}
			errs = append(errs, field.Invalid(path.Key(patch.Name).Child("volumeMounts").Index(i), AsJSON(mount), fmt.Sprintf(
				"volume %q of the runtime has files of a node, and the runtime doesn't mount as much of it (limits.hostPaths of "+
					"Signalbox's configuration); leave the mount out, or mount it as the runtime does", mount.Name)))
		}
	}
	return errs
}

// mountedAlike reports whether a pod mounts at least as much of a volume as a mount does.
func mountedAlike(pod *corev1.PodSpec, mount *corev1.VolumeMount) bool {
	return slices.ContainsFunc(slices.Concat(pod.InitContainers, pod.Containers), func(c corev1.Container) bool {
		return slices.ContainsFunc(c.VolumeMounts, func(have corev1.VolumeMount) bool {
			return have.Name == mount.Name && have.SubPath == mount.SubPath && have.SubPathExpr == mount.SubPathExpr &&
				(!have.ReadOnly || mount.ReadOnly)
		})
	})
}
