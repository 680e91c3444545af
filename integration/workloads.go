package integration

import (
	"slices"

	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/controller/jobframework"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/integration/managed"
	"github.com/signalbox-dev/signalbox/podsets"
)

func holdQuota(workloads []*kueue.Workload) bool { return holderOf(workloads) != nil }

// holderOf returns the Workload that holds quota; nil if none does.
func holderOf(workloads []*kueue.Workload) *kueue.Workload {
	if i := slices.IndexFunc(workloads, podsets.HoldsQuota); i >= 0 {
		return workloads[i]
	}
	return nil
}

// keptByOthers reports whether a Workload that is being deleted exists only because of finalizers of others.
func keptByOthers(wl *kueue.Workload) bool {
	return !wl.DeletionTimestamp.IsZero() && !podsets.Finalized(wl)
}

// classOf returns the name of a Workload's WorkloadPriorityClass; "" if it has none.
func classOf(wl *kueue.Workload) string {
	if ref := wl.Spec.PriorityClassRef; ref != nil && ref.Kind == kueue.WorkloadPriorityClassKind {
		return ref.Name
	}
	return ""
}

// byAuthor sorts the Workloads of a TrainJob: the one that Signalbox has made comes first, by its name, and then the
// older ones. Another client may have made one more, which must not stand for the TrainJob.
func byAuthor(job *api.TrainJob, own []*kueue.Workload) {
	if len(own) < 2 {
		return // the name is a hash, and nearly every TrainJob has one Workload
	}
	made := jobframework.GetWorkloadNameForOwnerWithGVK(job.Name, job.UID, managed.Kind)
	slices.SortStableFunc(own, func(a, b *kueue.Workload) int {
		switch made {
		case a.Name:
			return -1
		case b.Name:
			return 1
		}
		return a.CreationTimestamp.Compare(b.CreationTimestamp.Time)
	})
}
