package audit

import (
	"cmp"
	"slices"
	"strings"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/constants"
	controllerconstants "sigs.k8s.io/kueue/pkg/controller/constants"
	utilslices "sigs.k8s.io/kueue/pkg/util/slices"
	"sigs.k8s.io/kueue/pkg/workload"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/podsets"
	"github.com/signalbox-dev/signalbox/store"
)

// snapshot indexes the objects by their UIDs.
type snapshot struct {
	Objects
	jobSets   map[types.UID]*jobset.JobSet
	jobs      map[types.UID]*batchv1.Job
	trainJobs map[types.UID]*api.TrainJob
	// quota has the Workloads that hold quota by the UID of their TrainJob: the one that stands for it, and others.
	quota map[types.UID][]*kueue.Workload
	// everQueued has the TrainJobs that have a Workload, even if the TrainJob was deleted.
	everQueued map[types.UID]bool
	flavors    map[string]*kueue.ResourceFlavor
	nodes      map[string]*metav1.PartialObjectMetadata
	// required caches what nodeLabels returns.
	required map[podSetOf]map[string][]*kueue.ResourceFlavor
}

func newSnapshot(o Objects) *snapshot {
	s := &snapshot{
		Objects:   o,
		jobSets:   utilslices.ToRefMap(o.JobSets, func(js *jobset.JobSet) types.UID { return js.UID }),
		jobs:      utilslices.ToRefMap(o.Jobs, func(job *batchv1.Job) types.UID { return job.UID }),
		trainJobs: utilslices.ToRefMap(o.TrainJobs, func(tj *api.TrainJob) types.UID { return tj.UID }),
		flavors:   utilslices.ToRefMap(o.Flavors, func(f *kueue.ResourceFlavor) string { return f.Name }),
		nodes:     utilslices.ToRefMap(o.Nodes, func(n *metav1.PartialObjectMetadata) string { return n.Name }),
		quota:     map[types.UID][]*kueue.Workload{}, everQueued: map[types.UID]bool{},
		required: map[podSetOf]map[string][]*kueue.ResourceFlavor{},
	}
	for i := range o.Workloads {
		wl := &o.Workloads[i]
		owner := controller(wl, trainerapi.TrainJobKind)
		if owner == "" {
			continue
		}
		s.everQueued[owner] = true
		if workload.HasActiveQuotaReservation(wl) {
			s.quota[owner] = append(s.quota[owner], wl)
		}
	}
	for uid, workloads := range s.quota { // a cache lists objects in random order
		slices.SortFunc(workloads, func(a, b *kueue.Workload) int { return cmp.Compare(a.Name, b.Name) })
		counts, aside := podsets.Counts(workloads)
		s.quota[uid] = slices.Concat(counts, aside)
	}
	return s
}

// controller returns the UID of an object's controller if it is of a kind, else "".
func controller(o client.Object, kind string) types.UID {
	if owner := metav1.GetControllerOfNoCopy(o); owner != nil && owner.Kind == kind {
		return owner.UID
	}
	return ""
}

// trainJobOf returns the UID of a pod's TrainJob, by the UIDs of the pod's owners; "" if it has none or an owner is
// gone.
func (s *snapshot) trainJobOf(pod *corev1.Pod) types.UID {
	job := s.jobs[controller(pod, "Job")]
	if job == nil {
		return ""
	}
	js := s.jobSets[controller(job, "JobSet")]
	if js == nil {
		return ""
	}
	return controller(js, trainerapi.TrainJobKind)
}

// queued reports whether a TrainJob needs quota.
func (s *snapshot) queued(trainJob types.UID) bool {
	tj := s.trainJobs[trainJob]
	return s.everQueued[trainJob] || tj != nil && tj.Labels[controllerconstants.QueueLabel] != ""
}

// abandoned reports whether a pod was created by a TrainJob's JobSet and its owners are gone.
func (s *snapshot) abandoned(pod *corev1.Pod) bool {
	_, admitted := pod.Labels[constants.PodSetLabel]
	owner := metav1.GetControllerOfNoCopy(pod)
	return admitted && pod.Labels[jobset.JobSetUIDKey] != "" &&
		(owner == nil || owner.Kind == "Job" && s.jobs[owner.UID] == nil)
}

// hasQuotaByName reports whether a Workload holds quota for an abandoned pod. Without owners, only the name of the
// JobSet links the two.
func (s *snapshot) hasQuotaByName(pod *corev1.Pod) bool {
	return slices.ContainsFunc(s.Workloads, func(wl kueue.Workload) bool {
		owner := metav1.GetControllerOfNoCopy(&wl)
		return owner != nil && wl.Namespace == pod.Namespace && owner.Name == pod.Labels[jobset.JobSetNameKey] &&
			len(s.quota[owner.UID]) > 0
	})
}

// runs reports whether a pod is on a node and has not ended.
func runs(pod *corev1.Pod) bool { return pod.Spec.NodeName != "" && !store.PodEnded(pod) }

// gated reports whether a pod has a scheduling gate that Kueue doesn't remove.
func gated(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Spec.SchedulingGates, func(g corev1.PodSchedulingGate) bool {
		return !strings.HasPrefix(g.Name, podsets.KueueGates)
	})
}

type podSetOf struct {
	workload *kueue.Workload
	podSet   kueue.PodSetReference
}
