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
	"sigs.k8s.io/kueue/pkg/workload"
	workloadfinish "sigs.k8s.io/kueue/pkg/workload/finish"

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
	// quota has the Workloads that hold quota by the UID of their TrainJob, sorted by name.
	quota map[types.UID][]*kueue.Workload
	// everQueued has the TrainJobs that have a Workload, even if the TrainJob was deleted.
	everQueued map[types.UID]bool
	flavors    map[kueue.ResourceFlavorReference]*kueue.ResourceFlavor
	nodes      map[string]*metav1.PartialObjectMetadata
	// required caches what nodeLabels returns.
	required map[podSetOf][]requiredLabel
}

func newSnapshot(o Objects) *snapshot {
	s := &snapshot{
		Objects: o, jobSets: map[types.UID]*jobset.JobSet{}, jobs: map[types.UID]*batchv1.Job{},
		trainJobs: map[types.UID]*api.TrainJob{}, quota: map[types.UID][]*kueue.Workload{}, everQueued: map[types.UID]bool{},
		flavors: map[kueue.ResourceFlavorReference]*kueue.ResourceFlavor{}, required: map[podSetOf][]requiredLabel{},
		nodes: make(map[string]*metav1.PartialObjectMetadata, len(o.Nodes)),
	}
	for i := range o.JobSets {
		s.jobSets[o.JobSets[i].UID] = &o.JobSets[i]
	}
	for i := range o.Jobs {
		s.jobs[o.Jobs[i].UID] = &o.Jobs[i]
	}
	for i := range o.TrainJobs {
		s.trainJobs[o.TrainJobs[i].UID] = &o.TrainJobs[i]
	}
	for i := range o.Flavors {
		s.flavors[kueue.ResourceFlavorReference(o.Flavors[i].Name)] = &o.Flavors[i]
	}
	for i := range o.Nodes {
		s.nodes[o.Nodes[i].Name] = &o.Nodes[i]
	}
	for i := range o.Workloads {
		wl := &o.Workloads[i]
		owner := controller(wl, trainerapi.TrainJobKind)
		if owner == "" {
			continue
		}
		s.everQueued[owner] = true
		if holdsQuota(wl) {
			s.quota[owner] = append(s.quota[owner], wl)
		}
	}
	for _, workloads := range s.quota { // a cache lists objects in random order
		slices.SortFunc(workloads, func(a, b *kueue.Workload) int { return cmp.Compare(a.Name, b.Name) })
	}
	return s
}

// holdsQuota reports whether Kueue counts quota for a Workload. It counts none if the Workload is inactive or finished.
func holdsQuota(wl *kueue.Workload) bool {
	return workload.HasQuotaReservation(wl) && workload.IsActive(wl) && !workloadfinish.IsFinished(wl)
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

// podSetOf is a PodSet of a Workload.
type podSetOf struct {
	workload *kueue.Workload
	podSet   kueue.PodSetReference
}

// requiredLabel is a node label that flavors of a PodSet require.
type requiredLabel struct {
	key string
	// by are the flavors that require the label, sorted by name. Flavors of different resources may require different
	// values; then no node is of all of them.
	by []flavorValue
}

// flavorValue is the value of a node label of a ResourceFlavor.
type flavorValue struct {
	flavor kueue.ResourceFlavorReference
	value  string
}
