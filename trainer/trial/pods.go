package trial

import (
	"context"
	"maps"
	"slices"
	"strings"

	resourcehelpers "k8s.io/component-helpers/resource"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// mostFlavors is with how many flavors a pod is tried.
const mostFlavors = 16

// tryPod creates a pod of a ReplicatedJob, and keeps nothing. A policy or a webhook may ask for what only the start
// adds: JobSet's labels, and the node labels and tolerations of a flavor. So what they refuse is tried with those too.
func (t *Trial) tryPod(ctx context.Context, job *api.TrainJob, rj *jobset.ReplicatedJob) (*corev1.Pod, error) {
	pod := podOf(job, rj)
	err := t.client.Create(ctx, pod, client.DryRunAll)
	if !byPolicy(err) {
		return pod, err
	}
	labeled := podOf(job, rj)
	maps.Copy(labeled.Labels, labelsOf(job, rj))
	candidates := []*corev1.Pod{labeled}
	var flavors kueue.ResourceFlavorList // none for a pod that requests nothing
	if requestsSomething(pod) {
		if listErr := t.client.List(ctx, &flavors); listErr != nil {
			return pod, listErr
		}
	}
	for i := range min(len(flavors.Items), mostFlavors) {
		candidates = append(candidates, placed(labeled, &flavors.Items[i].Spec))
	}
	for _, candidate := range candidates {
		if candidateErr := t.client.Create(ctx, candidate, client.DryRunAll); !byPolicy(candidateErr) {
			return candidate, candidateErr
		}
	}
	return pod, err
}

// placed returns a pod on the nodes of a flavor.
func placed(pod *corev1.Pod, flavor *kueue.ResourceFlavorSpec) *corev1.Pod {
	pod = pod.DeepCopy()
	if pod.Spec.NodeSelector == nil {
		pod.Spec.NodeSelector = map[string]string{}
	}
	maps.Copy(pod.Spec.NodeSelector, flavor.NodeLabels)
	pod.Spec.Tolerations = append(slices.Clone(pod.Spec.Tolerations), flavor.Tolerations...)
	return pod
}

// checkUID is the UID of the Job that a pod is tried for. There is none: it is created with the start.
const checkUID = "00000000-0000-0000-0000-000000000000"

// podOf returns a pod of a ReplicatedJob as the Job controller creates it, because there are policies against pods that
// nothing controls, or that aren't a Job's. It has nothing that JobSet and Kueue act on: their webhooks look for its
// JobSet. Its name is always the same, so that a message about it is; that there is such a pod is found after all else.
func podOf(job *api.TrainJob, rj *jobset.ReplicatedJob) *corev1.Pod {
	template := rj.Template.Spec.Template.DeepCopy()
	pod := &corev1.Pod{Spec: template.Spec}
	pod.Namespace, pod.Name = job.Namespace, "check"
	name := job.Name + "-" + rj.Name + "-0"
	pod.OwnerReferences = []metav1.OwnerReference{{
		APIVersion: batchv1.SchemeGroupVersion.String(), Kind: "Job", Name: name, UID: checkUID, Controller: ptr.To(true),
	}}
	pod.Labels, pod.Annotations = foreign(template.Labels), foreign(template.Annotations)
	if pod.Labels == nil {
		pod.Labels = map[string]string{}
	}
	if pod.Annotations == nil {
		pod.Annotations = map[string]string{}
	}
	maps.Copy(pod.Labels, map[string]string{
		batchv1.JobNameLabel: name, "job-name": name, batchv1.ControllerUidLabel: checkUID, "controller-uid": checkUID,
		batchv1.JobCompletionIndexAnnotation: "0",
	})
	pod.Annotations[batchv1.JobCompletionIndexAnnotation] = "0"
	if pod.Spec.RestartPolicy == "" {
		pod.Spec.RestartPolicy = corev1.RestartPolicyOnFailure // JobSet's default
	}
	return pod
}

// foreign returns the labels or annotations that are neither JobSet's nor Kueue's.
func foreign(all map[string]string) map[string]string {
	for key := range all {
		if strings.Contains(key, "jobset.sigs.k8s.io/") || strings.HasPrefix(key, kueue.SchemeGroupVersion.Group+"/") {
			delete(all, key)
		}
	}
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
