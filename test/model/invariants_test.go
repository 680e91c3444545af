package model

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/workload"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/store"
)

// wrong describes a violated safety property; "" if there is none.
func (w *world) wrong() string {
	workloads := list[*kueue.Workload](w, "Workload")
	used, held := 0, map[types.UID]bool{}
	for _, wl := range workloads {
		if counts(wl) {
			used++
			if owner := metav1.GetControllerOf(wl); owner != nil {
				held[owner.UID] = true
			}
		}
	}
	if used > 1 {
		return fmt.Sprintf("%d Workloads hold a quota for one", used)
	}
	running := map[types.UID]int{}
	for _, pod := range list[*corev1.Pod](w, "Pod") {
		uid := w.ledger.Owner[types.UID(pod.Labels[jobset.JobSetUIDKey])]
		if uid == "" {
			return "pod " + pod.Name + " is of a JobSet that no TrainJob has"
		}
		if pod.Spec.NodeName == "" || store.PodEnded(pod) {
			continue
		}
		running[uid]++
		if !held[uid] {
			return "pod " + pod.Name + " runs, and no Workload of its TrainJob holds quota"
		}
		if running[uid] > 1 {
			return "two pods of one TrainJob run"
		}
		if pod.DeletionTimestamp.IsZero() && pod.Spec.NodeSelector[pool] != w.ledger.Flavor[uid] {
			return fmt.Sprintf("pod %s runs on flavor %q, and %q was admitted",
				pod.Name, pod.Spec.NodeSelector[pool], w.ledger.Flavor[uid])
		}
	}
	for uid, starts := range w.ledger.Starts {
		if starts > w.ledger.Admissions[uid] {
			return fmt.Sprintf("a TrainJob was started %d times on %d admissions", starts, w.ledger.Admissions[uid])
		}
	}
	return ""
}

// unfinished describes what should not remain when no step is left; "" if there is nothing.
func (w *world) unfinished() string {
	inactive := map[types.UID]bool{}
	for _, wl := range list[*kueue.Workload](w, "Workload") {
		owner := metav1.GetControllerOf(wl)
		if owner != nil && !workload.IsActive(wl) {
			inactive[owner.UID] = true
		}
		if counts(wl) {
			return "Workload " + wl.Name + " keeps its quota"
		}
	}
	for _, tj := range list[*api.TrainJob](w, "TrainJob") {
		if !apimeta.IsStatusConditionTrue(tj.Status.Conditions, "Complete") && !inactive[tj.UID] {
			return fmt.Sprintf("TrainJob %s never finishes: %v", tj.Name, tj.Status.Conditions)
		}
	}
	for _, pod := range list[*corev1.Pod](w, "Pod") {
		if !store.PodEnded(pod) {
			return "pod " + pod.Name + " still runs"
		}
	}
	return ""
}
