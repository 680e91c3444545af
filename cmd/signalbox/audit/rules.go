package audit

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	resourcehelpers "k8s.io/component-helpers/resource"
	"k8s.io/utils/ptr"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/resources"
	utilresource "sigs.k8s.io/kueue/pkg/util/resource"

	"github.com/signalbox-dev/signalbox/overrides"
	"github.com/signalbox-dev/signalbox/podsets"
	"github.com/signalbox-dev/signalbox/store"
)

// usage is what the running pods of each PodSet request.
type usage map[podSetOf]corev1.ResourceList

// auditPods finds pods that run without quota or on nodes of another flavor, and PodSets that use more than their
// quota.
func (s *snapshot) auditPods() []Finding {
	var findings []Finding
	used := usage{}
	for i := range s.Pods {
		pod := &s.Pods[i]
		if !runs(pod) {
			continue
		}
		uid := s.trainJobOf(pod)
		if uid == "" {
			if s.abandoned(pod) && !s.hasQuotaByName(pod) {
				findings = append(findings, Finding{Unquoted, name("Pod", pod),
					"its owners are gone, and no Workload holds quota for it"})
			}
			continue
		}
		if !s.queued(uid) {
			continue
		}
		if len(s.quota[uid]) == 0 {
			findings = append(findings, Finding{Unquoted, name("Pod", pod),
				"it runs on node " + pod.Spec.NodeName + ", and no Workload of its TrainJob holds quota"})
			continue
		}
		podSet := podSetOf{s.quota[uid][0], kueue.NewPodSetReference(pod.Labels[jobset.ReplicatedJobNameKey])}
		requests := resourcehelpers.PodRequests(pod, resourcehelpers.PodResourcesOptions{})
		used[podSet] = utilresource.MergeResourceListKeepSum(used[podSet], requests)
		if differs := s.otherFlavor(pod, podSet); differs != "" {
			findings = append(findings, Finding{OtherFlavor, name("Pod", pod), differs})
		}
	}
	return append(findings, used.exceeding()...)
}

// exceeding finds the PodSets that use more of a resource than Kueue counted.
func (u usage) exceeding() []Finding {
	var findings []Finding
	for p, resources := range u {
		for resourceName, quantity := range resources {
			counted, found := counted(p, resourceName)
			if found && quantity.Cmp(counted) > 0 {
				findings = append(findings, Finding{Exceeds, name("Workload", p.workload), fmt.Sprintf(
					"the pods of PodSet %s use %s of %s, and %s was counted",
					p.podSet, quantity.String(), resourceName, counted.String())})
			}
		}
	}
	return findings
}

// counted returns the quantity of a resource that Kueue counts for a PodSet, without reclaimed pods. found is false if
// Kueue doesn't count the resource at all.
func counted(p podSetOf, name corev1.ResourceName) (_ resource.Quantity, found bool) {
	if p.workload.Status.Admission == nil {
		return resource.Quantity{}, false
	}
	for _, a := range p.workload.Status.Admission.PodSetAssignments {
		if a.Name != p.podSet {
			continue
		}
		quantity, found := a.ResourceUsage[name]
		if count := ptr.Deref(a.Count, 0); count > 0 {
			left := int64(max(count-reclaimed(p), 0))
			usage := resources.NewRequestsFromResourceList(corev1.ResourceList{name: quantity}).ScaledDown(int64(count))
			quantity = usage.ScaledUp(left).ToResourceList(nil)[name]
		}
		return quantity, found
	}
	return resource.Quantity{}, true // the Workload has no such PodSet
}

// reclaimed returns the number of reclaimed pods of a PodSet.
func reclaimed(p podSetOf) int32 {
	for _, r := range p.workload.Status.ReclaimablePods {
		if r.Name == p.podSet {
			return r.Count
		}
	}
	return 0
}

// auditQuota finds TrainJobs with several Workloads that hold quota, and quota that no pod uses.
func (s *snapshot) auditQuota() []Finding {
	var findings []Finding
	schedulable := s.schedulablePods()
	for uid, workloads := range s.quota {
		if len(workloads) > 1 {
			findings = append(findings, Finding{Doubled, name("Workload", workloads[1]),
				"another Workload of the same TrainJob holds quota: " + workloads[0].Name})
		}
		wl := workloads[0]
		admitted := apimeta.IsStatusConditionTrue(wl.Status.Conditions, kueue.WorkloadAdmitted)
		// The garbage collector deletes the Workload of a TrainJob that is gone; what MultiKueue manages runs elsewhere.
		tj := s.trainJobs[uid]
		here := tj != nil && ptr.Deref(tj.Spec.ManagedBy, "") != kueue.MultiKueueControllerName
		if admitted && schedulable[uid] == 0 && here {
			findings = append(findings, Finding{Idle, name("Workload", wl),
				"it is admitted, and its TrainJob has no pod that runs or can be scheduled"})
		}
	}
	return findings
}

// schedulablePods returns the number of pods that run or can be scheduled, by TrainJob.
func (s *snapshot) schedulablePods() map[types.UID]int {
	counts := map[types.UID]int{}
	for i := range s.Pods {
		pod := &s.Pods[i]
		if store.PodEnded(pod) || gated(pod) {
			continue
		}
		counts[s.trainJobOf(pod)]++
		if !s.abandoned(pod) {
			continue
		}
		for uid, tj := range s.trainJobs {
			if tj.Namespace == pod.Namespace && tj.Name == pod.Labels[jobset.JobSetNameKey] {
				counts[uid]++
			}
		}
	}
	return counts
}

// auditJobSets finds TrainJobs with several JobSets.
func (s *snapshot) auditJobSets() []Finding {
	counts := map[types.UID]int{}
	for i := range s.JobSets {
		if s.JobSets[i].DeletionTimestamp.IsZero() {
			counts[controller(&s.JobSets[i], trainerapi.TrainJobKind)]++
		}
	}
	var findings []Finding
	for uid, n := range counts {
		if tj := s.trainJobs[uid]; tj != nil && n > 1 {
			findings = append(findings, Finding{Doubled, name("TrainJob", tj), fmt.Sprintf("it has %d JobSets", n)})
		}
	}
	return findings
}

// auditJobs finds Jobs that differ from their JobSet.
func (s *snapshot) auditJobs() []Finding {
	var findings []Finding
	for i := range s.Jobs {
		job := &s.Jobs[i]
		js := s.jobSets[controller(job, "JobSet")]
		if js == nil || controller(js, trainerapi.TrainJobKind) == "" || !job.DeletionTimestamp.IsZero() {
			continue
		}
		for _, difference := range differences(job, js) {
			findings = append(findings, Finding{Altered, name("Job", job), difference})
		}
	}
	return findings
}

// differences returns how a Job differs from its ReplicatedJob in what it requests.
func differences(job *batchv1.Job, js *jobset.JobSet) []string {
	replicatedJob := job.Labels[jobset.ReplicatedJobNameKey]
	rj := (&overrides.Effective{ReplicatedJobs: js.Spec.ReplicatedJobs}).ReplicatedJob(replicatedJob)
	if rj == nil {
		return []string{fmt.Sprintf("JobSet %s has no replicatedJob %q", js.Name, replicatedJob)}
	}
	var all []string
	counting := podsets.Counting{}
	have, want := counting.Pod(&job.Spec.Template.Spec), counting.Pod(&rj.Template.Spec.Template.Spec)
	if !equality.Semantic.DeepEqual(have, want) {
		all = append(all, fmt.Sprintf("its pods ask for %s, and those of its JobSet for %s", text(have), text(want)))
	}
	for _, f := range []struct {
		field      string
		have, want *int32
	}{
		{"parallelism", job.Spec.Parallelism, rj.Template.Spec.Parallelism},
		{"completions", job.Spec.Completions, rj.Template.Spec.Completions},
	} {
		if have, want := ptr.Deref(f.have, 1), ptr.Deref(f.want, 1); have != want {
			all = append(all, fmt.Sprintf("its %s is %d, and that of its JobSet %d", f.field, have, want))
		}
	}
	return all
}

// text formats resources in the order of their names.
func text(list corev1.ResourceList) string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(list)) {
		quantity := list[name]
		all = append(all, fmt.Sprintf("%s of %s", quantity.String(), name))
	}
	return cmp.Or(strings.Join(all, ", "), "nothing")
}
