package trainer

import (
	"maps"
	"slices"
	"strings"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/utils/ptr"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	jobsetac "sigs.k8s.io/jobset/client-go/applyconfiguration/jobset/v1alpha2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// The claims of a runtime (JobSet: volumeClaimPolicies) are the TrainJob's. JobSet deletes a claim with the JobSet, and
// a stop deletes the JobSet: what was saved would be gone after an eviction. JobSet v0.12.0 doesn't take a JobSet
// either whose claim is there: its webhook compares the claim, which is bound, with the template.

// claimsOf returns the claims of a TrainJob on a runtime. They are deleted with the TrainJob, except those that the
// runtime retains: the next TrainJob of the name has them.
func claimsOf(job *api.TrainJob, spec *trainerapi.TrainingRuntimeSpec) []*corev1.PersistentVolumeClaim {
	var claims []*corev1.PersistentVolumeClaim
	for _, policy := range spec.Template.Spec.VolumeClaimPolicies {
		for i := range policy.Templates {
			template := &policy.Templates[i]
			claim := &corev1.PersistentVolumeClaim{
				ObjectMeta: metav1.ObjectMeta{
					Namespace: job.Namespace, Name: claimName(job.Name, template.Name), Labels: maps.Clone(template.Labels),
					Annotations: maps.Clone(template.Annotations),
				},
				Spec: *template.Spec.DeepCopy(),
			}
			claim.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("PersistentVolumeClaim"))
			metav1.SetMetaDataLabel(&claim.ObjectMeta, jobset.JobSetNameKey, job.Name)
			if p := policy.RetentionPolicy; p == nil ||
				ptr.Deref(p.WhenDeleted, jobset.RetentionPolicyDelete) == jobset.RetentionPolicyDelete {
				owner := metav1.NewControllerRef(job, trainerapi.GroupVersion.WithKind(trainerapi.TrainJobKind))
				owner.BlockOwnerDeletion = nil // a pod that runs keeps its claim, and would keep the TrainJob
				claim.OwnerReferences = []metav1.OwnerReference{*owner}
			}
			claims = append(claims, claim)
		}
	}
	return claims
}

// claimName is JobSet's (GeneratePVCName).
func claimName(job, template string) string { return template + "-" + job }

// templateOf returns the name of a claim's template.
func templateOf(job *api.TrainJob, claim *corev1.PersistentVolumeClaim) string {
	return strings.TrimSuffix(claim.Name, "-"+job.Name)
}

// mountClaims has the pods of a TrainJob's JobSet mount its claims as volumes.
func mountClaims(job string, spec *jobsetac.JobSetSpecApplyConfiguration) {
	for _, policy := range spec.VolumeClaimPolicies {
		for i := range policy.Templates {
			name := policy.Templates[i].Name
			for j := range spec.ReplicatedJobs {
				if pod := spec.ReplicatedJobs[j].Template.Spec.Template.Spec; mounts(pod, name) {
					pod.WithVolumes(corev1ac.Volume().WithName(name).WithPersistentVolumeClaim(
						corev1ac.PersistentVolumeClaimVolumeSource().WithClaimName(claimName(job, name))))
				}
			}
		}
	}
	spec.VolumeClaimPolicies = nil
}

func mounts(pod *corev1ac.PodSpecApplyConfiguration, volume string) bool {
	containers := slices.Concat(pod.InitContainers, pod.Containers)
	return slices.ContainsFunc(containers, func(c corev1ac.ContainerApplyConfiguration) bool {
		return slices.ContainsFunc(c.VolumeMounts, func(m corev1ac.VolumeMountApplyConfiguration) bool {
			return ptr.Deref(m.Name, "") == volume
		})
	})
}

// gone reports whether a claim isn't there, or is being deleted.
func gone(there *metav1.PartialObjectMetadata) bool {
	return there == nil || !there.DeletionTimestamp.IsZero()
}

// belongsTo reports whether a claim that is there is a TrainJob's: its own, or one that was retained of a TrainJob of
// its name.
func belongsTo(there *metav1.PartialObjectMetadata, job *api.TrainJob) bool {
	if metav1.GetControllerOf(there) == nil {
		return there.Labels[jobset.JobSetNameKey] == job.Name
	}
	return metav1.IsControlledBy(there, job)
}

// ofJobSet reports whether a claim is one that JobSet has made for the TrainJob, before this Trainer did. It is deleted
// with that JobSet.
func ofJobSet(there *metav1.PartialObjectMetadata, job *api.TrainJob) bool {
	owner := metav1.GetControllerOf(there)
	return owner != nil && owner.Kind == "JobSet" && owner.Name == job.Name
}
