package podsets

import (
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/workload"
	workloadfinish "sigs.k8s.io/kueue/pkg/workload/finish"
)

// HoldsQuota reports whether a Workload holds quota.
func HoldsQuota(wl *kueue.Workload) bool {
	return !workloadfinish.IsFinished(wl) && workload.HasQuotaReservation(wl)
}

// Finalized reports whether a Workload has the finalizer that keeps its quota.
func Finalized(wl *kueue.Workload) bool {
	return controllerutil.ContainsFinalizer(wl, kueue.ResourceInUseFinalizerName)
}
