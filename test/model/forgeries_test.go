package model

import (
	"slices"
	"strings"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
)

func (v victim) childActions() []action {
	var all []action
	if v.jobSet != nil {
		all = append(all, v.kept(v.jobSet, "JobSet")...)
	}
	if v.child != nil {
		all = append(all, v.kept(v.child, "Job")...)
	}
	if v.pod != nil {
		all = append(all, v.kept(v.pod, "Pod")...)
	}
	return all
}

// forgeries are objects that look as if they were of the TrainJob.
func (v victim) forgeries(w *world) []action {
	labels := map[string]string{jobset.JobSetNameKey: names[0], jobset.JobSetUIDKey: "never-was",
		jobset.ReplicatedJobNameKey: "node", mine: ""}
	if v.jobSet != nil {
		labels[jobset.JobSetUIDKey] = string(v.jobSet.UID)
	}
	meta := func(name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: labels}
	}
	neverWas := func(kind, version, name string) []metav1.OwnerReference {
		return []metav1.OwnerReference{{APIVersion: version, Kind: kind, Name: name, UID: "never-was",
			Controller: ptr.To(true)}}
	}
	pod := func(name string) *corev1.Pod {
		pod := &corev1.Pod{ObjectMeta: meta(name), Spec: corev1.PodSpec{NodeName: "a",
			TerminationGracePeriodSeconds: ptr.To[int64](100_000_000),
			Containers:                    []corev1.Container{{Name: "c", Image: "example.com/none:1"}}},
			Status: corev1.PodStatus{Phase: corev1.PodRunning}}
		return pod
	}
	owned, unbound := pod("forged-owned"), pod("forged-unbound")
	owned.OwnerReferences = neverWas("Job", "batch/v1", names[0]+"-node-0")
	unbound.Spec.NodeName = ""
	job, kept := &batchv1.Job{ObjectMeta: meta("forged-job")}, &batchv1.Job{ObjectMeta: meta("forged-kept")}
	job.OwnerReferences = neverWas("JobSet", jobset.SchemeGroupVersion.String(), names[0])
	job.OwnerReferences[0].Controller = nil // a policy rejects a controller
	kept.OwnerReferences = job.OwnerReferences
	kept.Finalizers = []string{foreign}
	taken := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: names[0] + "-node-0",
		Labels: map[string]string{mine: ""}}, Spec: batchv1.JobSpec{Suspend: ptr.To(true)}}
	set := &jobset.JobSet{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: names[0],
		Labels: map[string]string{mine: ""}}, Spec: jobset.JobSetSpec{Suspend: ptr.To(true)}}
	var all []action
	for name, o := range map[string]client.Object{
		"a pod with the labels of its pods": pod("forged"), "a pod of a Job that never was": owned,
		"a pod of no node": unbound, "a Job of a JobSet that never was": job,
		"such a Job, with a finalizer": kept, "a Job of the name of its Job": taken, "a JobSet of its name": set,
	} {
		kind := ""
		switch o.(type) {
		case *corev1.Pod:
			kind = "Pod"
		case *batchv1.Job:
			kind = "Job"
		default:
			kind = "JobSet"
		}
		if slices.ContainsFunc(w.all(kind), func(there client.Object) bool { return there.GetName() == o.GetName() }) {
			continue
		}
		all = append(all, action{"a user creates " + name, maybe, func(w *world) {
			must(w.api().Create(background, o.DeepCopyObject().(client.Object)))
		}})
	}
	slices.SortFunc(all, func(a, b action) int { return strings.Compare(a.name, b.name) })
	return all
}
