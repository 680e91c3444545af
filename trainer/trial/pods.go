package trial

import (
	"context"
	"maps"
	"slices"
	"strings"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	resourcehelpers "k8s.io/component-helpers/resource"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// mostFlavors is with how many flavors a pod is tried.
const mostFlavors = 16

// tryPod creates a pod of a ReplicatedJob, and keeps nothing. A policy or a webhook may ask for what only the start
// adds: the Job, JobSet's labels, and the node labels and tolerations of a flavor. So what they refuse is tried with
// those too. Where Kueue manages pods, its webhook looks for the Job, which there isn't yet: then nobody knows.
func (t *Trial) tryPod(ctx context.Context, job *api.TrainJob, rj *jobset.ReplicatedJob) (*corev1.Pod, error) {
	pod := podOf(job, rj)
	err := t.client.Create(ctx, pod, client.DryRunAll)
	if !byPolicy(err) || apierrors.IsNotFound(err) {
		return pod, err
	}
	candidates, listErr := t.candidates(ctx, job, rj)
	if listErr != nil {
		return pod, listErr
	}
	unknown := false
	for _, candidate := range candidates {
		candidateErr := t.client.Create(ctx, candidate, client.DryRunAll)
		if apierrors.IsNotFound(candidateErr) {
			unknown = true
		} else if !byPolicy(candidateErr) {
			return candidate, candidateErr
		}
	}
	if unknown {
		ctrl.LoggerFrom(ctx).Info("Queued, although a dry run of a pod is refused: it can't be tried as a Job's",
			"replicatedJob", rj.Name, "refusal", err.Error())
		return pod, nil
	}
	return pod, err
}

// candidates returns a pod of a ReplicatedJob as it may run: as the Job controller creates it, with the labels that
// JobSet adds, and on each flavor.
func (t *Trial) candidates(
	ctx context.Context, job *api.TrainJob, rj *jobset.ReplicatedJob,
) ([]*corev1.Pod, error) {
	pod := podOf(job, rj)
	labeled := ofJob(pod, job, rj)
	maps.Copy(labeled.Labels, labelsOf(job, rj))
	all := []*corev1.Pod{ofJob(pod, job, rj), labeled}
	if !requestsSomething(pod) {
		return all, nil // it gets no flavor
	}
	var flavors kueue.ResourceFlavorList
	if err := t.client.List(ctx, &flavors); err != nil {
		return nil, err
	}
	for i := range min(len(flavors.Items), mostFlavors) {
		all = append(all, placed(pod, &flavors.Items[i].Spec), placed(labeled, &flavors.Items[i].Spec))
	}
	return all, nil
}

// placed returns a pod on the nodes of a flavor.
func placed(pod *corev1.Pod, flavor *kueue.ResourceFlavorSpec) *corev1.Pod {
	pod = pod.DeepCopy()
	pod.Spec.NodeSelector = labels.Merge(pod.Spec.NodeSelector, flavor.NodeLabels)
	pod.Spec.Tolerations = append(slices.Clone(pod.Spec.Tolerations), flavor.Tolerations...)
	return pod
}

// checkUID is the UID of the Job that a pod is tried for. There is none: it is created with the start.
const checkUID = "00000000-0000-0000-0000-000000000000"

// ofTrainJob is the owner of what is tried before there is a JobSet.
func ofTrainJob(job *api.TrainJob) metav1.OwnerReference {
	owner := metav1.NewControllerRef(job, trainerapi.GroupVersion.WithKind(trainerapi.TrainJobKind))
	owner.BlockOwnerDeletion = nil // it would need the right to change finalizers
	return *owner
}

// tried returns the metadata of an object of a template, without what JobSet and Kueue act on: their webhooks look for
// its Job and its JobSet. Its name is always the same, so that a message about it is; that there is such an object is
// found after all else.
func tried(job *api.TrainJob, template metav1.ObjectMeta, owner metav1.OwnerReference) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: job.Namespace, Name: "check", Labels: foreign(template.Labels),
		Annotations: foreign(template.Annotations), OwnerReferences: []metav1.OwnerReference{owner},
	}
}

// podOf returns a pod of a ReplicatedJob. The TrainJob controls it, because there are policies against pods that
// nothing controls.
func podOf(job *api.TrainJob, rj *jobset.ReplicatedJob) *corev1.Pod {
	template := rj.Template.Spec.Template.DeepCopy()
	pod := &corev1.Pod{ObjectMeta: tried(job, template.ObjectMeta, ofTrainJob(job)), Spec: template.Spec}
	if pod.Spec.RestartPolicy == "" {
		pod.Spec.RestartPolicy = corev1.RestartPolicyOnFailure // JobSet's default
	}
	return pod
}

// ofJob returns a pod as the Job controller creates it.
func ofJob(pod *corev1.Pod, job *api.TrainJob, rj *jobset.ReplicatedJob) *corev1.Pod {
	pod = pod.DeepCopy()
	name := job.Name + "-" + rj.Name + "-0"
	pod.OwnerReferences = []metav1.OwnerReference{{
		APIVersion: batchv1.SchemeGroupVersion.String(), Kind: "Job", Name: name, UID: checkUID, Controller: ptr.To(true),
	}}
	pod.Labels = labels.Merge(pod.Labels, map[string]string{
		batchv1.JobNameLabel: name, "job-name": name, batchv1.ControllerUidLabel: checkUID, "controller-uid": checkUID,
		batchv1.JobCompletionIndexAnnotation: "0",
	})
	metav1.SetMetaDataAnnotation(&pod.ObjectMeta, batchv1.JobCompletionIndexAnnotation, "0")
	return pod
}

// foreign returns the labels or annotations that are neither JobSet's nor Kueue's.
func foreign(all map[string]string) map[string]string {
	maps.DeleteFunc(all, func(key, _ string) bool {
		return strings.Contains(key, "jobset.sigs.k8s.io/") || strings.HasPrefix(key, kueue.SchemeGroupVersion.Group+"/")
	})
	return all
}

// labelsOf are those that JobSet puts on the Jobs and the pods of a ReplicatedJob.
func labelsOf(job *api.TrainJob, rj *jobset.ReplicatedJob) map[string]string {
	return map[string]string{
		jobset.JobSetNameKey: job.Name, jobset.JobSetUIDKey: checkUID, jobset.ReplicatedJobNameKey: rj.Name,
		jobset.JobIndexKey: "0",
	}
}

// requestsSomething reports whether a pod has requests, or limits, which become requests.
func requestsSomething(pod *corev1.Pod) bool {
	o := resourcehelpers.PodResourcesOptions{}
	return len(resourcehelpers.PodRequests(pod, o)) > 0 || len(resourcehelpers.PodLimits(pod, o)) > 0
}
