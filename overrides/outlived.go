package overrides

import (
	"slices"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
)

// Outlived returns the initializers (the ReplicatedJobs that others wait to complete) whose work is done and outlives
// the JobSet, by name: all their Jobs have succeeded, and every volume that they can write to lasts. They need not run
// again when the TrainJob does.
//
// Where the rest could not stand without them, all are run again: a success policy that names only them would name all.
func Outlived(spec *jobset.JobSetSpec, statuses []trainerapi.JobStatus) map[string]bool {
	awaited := awaited(spec)
	done := map[string]bool{}
	for i := range spec.ReplicatedJobs {
		rj := &spec.ReplicatedJobs[i]
		for _, status := range statuses {
			succeeded := status.Name == rj.Name && ptr.Deref(status.Succeeded, 0) >= max(rj.Replicas, 1)
			if succeeded && awaited[rj.Name] && lasting(rj, spec.VolumeClaimPolicies) {
				done[rj.Name] = true
			}
		}
	}
	if !standsWithout(spec, done) {
		return nil
	}
	return done
}

func standsWithout(spec *jobset.JobSetSpec, done map[string]bool) bool {
	if len(done) == len(spec.ReplicatedJobs) {
		return false
	}
	undone := func(name string) bool { return !done[name] }
	p := spec.SuccessPolicy
	return p == nil || len(p.TargetReplicatedJobs) == 0 || slices.ContainsFunc(p.TargetReplicatedJobs, undone)
}

// lasting reports whether a ReplicatedJob writes to volumes at all, and all of them outlive its JobSet.
func lasting(rj *jobset.ReplicatedJob, claims []jobset.VolumeClaimPolicy) bool {
	pod := &rj.Template.Spec.Template.Spec
	lasts := volumesOf(pod, claims)
	writes := false
	for _, c := range pod.Containers {
		for _, mount := range c.VolumeMounts {
			if mount.ReadOnly {
				continue
			}
			switch lasts[mount.Name] {
			case volumeLost:
				return false
			case volumeKept:
				writes = true
			case volumeFixed: // nobody writes to it
			}
		}
	}
	return writes
}

// fate is what becomes of what a pod writes to a volume.
type fate int

const (
	volumeLost  fate = iota // it is deleted with the pod or the JobSet
	volumeKept              // it outlives the JobSet
	volumeFixed             // it can't be written to
)

// volumesOf returns the fates of a pod's volumes by their names. The runtime's claims are the TrainJob's, and outlive
// its JobSets.
func volumesOf(pod *corev1.PodSpec, claims []jobset.VolumeClaimPolicy) map[string]fate {
	fates := map[string]fate{}
	for _, v := range pod.Volumes {
		switch {
		case v.PersistentVolumeClaim != nil || v.NFS != nil:
			fates[v.Name] = volumeKept
		case v.ConfigMap != nil || v.Secret != nil || v.DownwardAPI != nil || v.Projected != nil:
			fates[v.Name] = volumeFixed
		default:
			fates[v.Name] = volumeLost
		}
	}
	for _, policy := range claims {
		for _, template := range policy.Templates {
			fates[template.Name] = volumeKept
		}
	}
	return fates
}

// awaited returns the names of the initializers: of the ReplicatedJobs that others wait to complete.
func awaited(spec *jobset.JobSetSpec) map[string]bool {
	names := map[string]bool{}
	for _, rj := range spec.ReplicatedJobs {
		for _, d := range rj.DependsOn {
			if d.Status == jobset.DependencyComplete {
				names[d.Name] = true
			}
		}
	}
	return names
}
