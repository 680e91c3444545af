package overrides

import (
	"fmt"
	"slices"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
)

// CheckBuilt returns an error for each limit that the pods of a TrainJob on a runtime exceed. It also rejects what
// Kueue can't count, what could hold quota without end, and what would affect pods of other namespaces. entries are of
// every form. claimsCounted is set if Kueue counts resource claims or rejects them.
func (l Limits) CheckBuilt(
	namespace string, runtime *trainerapi.TrainingRuntimeSpec, entries []Entry, effective *Effective, claimsCounted bool,
) field.ErrorList {
	errs := checkMetadata(field.NewPath("template", "metadata"), &runtime.Template.ObjectMeta)
	for _, entry := range entries {
		if meta := jobSetMetadata(entry.Patch); meta != nil {
			errs = append(errs, checkMetadata(entry.contentPath().Child("template", "metadata"), meta)...)
		}
	}
	for i := range effective.ReplicatedJobs {
		rj := &effective.ReplicatedJobs[i]
		path := field.NewPath("replicatedJobs").Key(rj.Name)
		errs = append(errs, l.checkReplicatedJob(path, rj)...)
		errs = append(errs, checkExclusive(path.Child("template"), effective.Annotations, rj)...)
		pod := &rj.Template.Spec.Template.Spec
		path = path.Child("template", "spec", "template", "spec")
		errs = append(errs, l.checkPod(path, pod, claimsCounted)...)
		errs = append(errs, checkAntiAffinity(path.Child("affinity"), pod.Affinity, namespace)...)
	}
	return Few(append(errs, l.checkSums(effective.ReplicatedJobs)...))
}

// checkReplicatedJob returns an error for each limit that a ReplicatedJob exceeds apart from its pods' spec.
func (l Limits) checkReplicatedJob(path *field.Path, rj *jobset.ReplicatedJob) field.ErrorList {
	var errs field.ErrorList
	if rj.Replicas < 1 {
		errs = append(errs, field.Invalid(path.Child("replicas"), rj.Replicas, "must be 1 or more: JobSet takes 0 for its "+
			"default of 1, and the pods would run; remove the ReplicatedJob from the runtime"))
	}
	spec := path.Child("template", "spec")
	errs = append(errs, checkMetadata(path.Child("template", "metadata"), &rj.Template.ObjectMeta)...)
	errs = append(errs, checkMetadata(spec.Child("template", "metadata"), &rj.Template.Spec.Template.ObjectMeta)...)
	if l.PodsReplaced && replacesTerminating(&rj.Template.Spec) {
		errs = append(errs, checkTolerations(spec.Child("template", "spec"), &rj.Template.Spec.Template.Spec)...)
	}
	return errs
}

// checkMetadata returns an error for a finalizer or an owner in the metadata of a template. The Job controller copies
// finalizers into pods (k8s.io/kubernetes v1.36.3, pkg/controller, GetPodFromTemplate), which they keep when those are
// deleted.
func checkMetadata(path *field.Path, meta *metav1.ObjectMeta) field.ErrorList {
	var errs field.ErrorList
	if len(meta.Finalizers) > 0 {
		errs = append(errs, field.Invalid(path.Child("finalizers"), meta.Finalizers,
			"a template may not have finalizers: they would keep the pods of a deleted TrainJob, and with them its quota; "+
				"remove them"))
	}
	for i, owner := range meta.OwnerReferences {
		errs = append(errs, field.Invalid(path.Child("ownerReferences").Index(i), owner.Kind+" "+owner.Name,
			"a template may not have owners: whose quota a pod runs on is decided by its owners; remove it"))
	}
	return errs
}

// checkPod returns an error for each limit that the spec of a ReplicatedJob's pods exceeds.
func (l Limits) checkPod(path *field.Path, pod *corev1.PodSpec, claimsCounted bool) field.ErrorList {
	errs := l.checkGrace(path.Child("terminationGracePeriodSeconds"), pod.TerminationGracePeriodSeconds)
	if pod.TerminationGracePeriodSeconds == nil && l.GracePeriodSeconds < corev1.DefaultTerminationGracePeriodSeconds {
		errs = append(errs, field.Required(path.Child("terminationGracePeriodSeconds"), fmt.Sprintf(
			"without it a pod may take %d seconds to terminate, and at most %d are allowed "+
				"(limits.terminationGracePeriodSeconds of Signalbox's configuration); set it",
			corev1.DefaultTerminationGracePeriodSeconds, l.GracePeriodSeconds)))
	}
	errs = append(errs, l.checkContainers(path.Child("initContainers"), pod.InitContainers)...)
	errs = append(errs, l.checkContainers(path.Child("containers"), pod.Containers)...)
	errs = append(errs, checkPodQuantities(path, pod)...)
	if pod.Resources != nil {
		errs = append(errs, field.Forbidden(path.Child("resources"),
			"the resources of a pod as a whole aren't taken on quota; set those of its containers"))
	}
	if len(pod.ResourceClaims) > 0 && !claimsCounted {
		errs = append(errs, field.Forbidden(path.Child("resourceClaims"),
			"Kueue doesn't count resource claims without its feature gate KueueDRAIntegration; ask for the devices by "+
				"resources of the containers, or set the gate in Kueue's configuration and in kueue.featureGates of Signalbox's"))
	}
	if pod.NodeName != "" {
		errs = append(errs, field.Forbidden(path.Child("nodeName"),
			"a pod on quota is placed by the flavor that it is admitted on; use a nodeSelector"))
	}
	return errs
}

// checkContainers returns an error for each invalid quantity of a container, and for each grace period of a probe,
// which replaces the pod's.
func (l Limits) checkContainers(path *field.Path, containers []corev1.Container) field.ErrorList {
	errs := checkContainerQuantities(path, containers)
	for _, c := range containers {
		for _, p := range []struct {
			name  string
			probe *corev1.Probe
		}{{"livenessProbe", c.LivenessProbe}, {"startupProbe", c.StartupProbe}} {
			if p.probe != nil {
				errs = append(errs, l.checkGrace(path.Key(c.Name).Child(p.name, "terminationGracePeriodSeconds"),
					p.probe.TerminationGracePeriodSeconds)...)
			}
		}
	}
	return errs
}

// replacesTerminating reports whether the Job controller replaces pods of a Job that still terminate
// (k8s.io/kubernetes v1.36.3, pkg/controller/job, onlyReplaceFailedPods).
func replacesTerminating(job *batchv1.JobSpec) bool {
	policy := ptr.Deref(job.PodReplacementPolicy, batchv1.TerminatingOrFailed)
	return policy != batchv1.Failed && job.PodFailurePolicy == nil
}

// lostNodeTaints are the taints of a node that has failed. No pod is placed there, so that pods are evicted once.
var lostNodeTaints = []string{corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable}

// checkTolerations returns an error for each toleration that has pods placed on a node and evicted from it again: as
// many pods would run at a time as fit into a grace period.
func checkTolerations(path *field.Path, pod *corev1.PodSpec) field.ErrorList {
	grace := ptr.Deref(pod.TerminationGracePeriodSeconds, corev1.DefaultTerminationGracePeriodSeconds)
	var errs field.ErrorList
	for i, t := range pod.Tolerations {
		if t.TolerationSeconds == nil || slices.Contains(lostNodeTaints, t.Key) && *t.TolerationSeconds >= grace {
			continue
		}
		errs = append(errs, field.Invalid(path.Child("tolerations").Index(i).Child("tolerationSeconds"),
			*t.TolerationSeconds, "a pod that is evicted after that time is replaced while it terminates, and the TrainJob "+
				"would use more than it was admitted for; set podReplacementPolicy: Failed in the runtime's "+
				"replicatedJobs[].template.spec, or leave tolerationSeconds out"))
	}
	return errs
}

// checkAntiAffinity returns an error for each term of required anti-affinity that reaches other namespaces. The
// scheduler applies the terms of running pods to each new pod (k8s.io/kubernetes v1.36.3,
// pkg/scheduler/framework/plugins/interpodaffinity, getExistingAntiAffinityCounts): one pod would keep those of other
// namespaces Pending. Of all terms, only these are required of other pods; the rest decides how nodes are ranked.
func checkAntiAffinity(path *field.Path, affinity *corev1.Affinity, namespace string) field.ErrorList {
	if affinity == nil || affinity.PodAntiAffinity == nil {
		return nil
	}
	const hint = "required anti-affinity may not reach other namespaces, whose pods it would keep from their nodes; " +
		"leave this out, or use preferredDuringSchedulingIgnoredDuringExecution"
	var errs field.ErrorList
	path = path.Child("podAntiAffinity", "requiredDuringSchedulingIgnoredDuringExecution")
	for i, term := range affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution {
		if slices.ContainsFunc(term.Namespaces, func(n string) bool { return n != namespace }) {
			errs = append(errs, field.Invalid(path.Index(i).Child("namespaces"), term.Namespaces, hint))
		}
		if term.NamespaceSelector != nil {
			errs = append(errs, field.Invalid(path.Index(i).Child("namespaceSelector"),
				metav1.FormatLabelSelector(term.NamespaceSelector), hint))
		}
	}
	return errs
}

// checkExclusive returns an error for exclusive placement, by an annotation of the JobSet, the Job or the pod. JobSet
// v0.12.0 adds anti-affinity to all other JobSets' pods, in every namespace (pkg/webhooks, setExclusiveAffinities).
func checkExclusive(path *field.Path, ofJobSet map[string]string, rj *jobset.ReplicatedJob) field.ErrorList {
	ofPod := rj.Template.Spec.Template.Annotations
	topology, exclusive := ofPod[jobset.ExclusiveKey]
	_, bySelector := ofPod[jobset.NodeSelectorStrategyKey]
	for _, has := range []map[string]string{ofJobSet, rj.Template.Annotations} {
		if t, found := has[jobset.ExclusiveKey]; found { // JobSet copies both to the pod, or none
			_, also := has[jobset.NodeSelectorStrategyKey]
			topology, exclusive, bySelector = t, true, bySelector || also
		}
	}
	if !exclusive || bySelector {
		return nil
	}
	return field.ErrorList{field.Invalid(path.Child("metadata", "annotations").Key(jobset.ExclusiveKey), topology,
		fmt.Sprintf("JobSet would keep the pods of all other JobSets from the same %q, those of other namespaces too; use "+
			"annotation kueue.x-k8s.io/podset-required-topology, or add %s, which places by labels of nodes", topology,
			jobset.NodeSelectorStrategyKey))}
}
