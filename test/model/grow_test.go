package model

import (
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/workload"
	workloadfinish "sigs.k8s.io/kueue/pkg/workload/finish"
	"sigs.k8s.io/kueue/pkg/workloadslicing"

	"github.com/signalbox-dev/signalbox/admission/grow"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/cmd/signalbox/audit"
	"github.com/signalbox-dev/signalbox/overrides"
	"github.com/signalbox-dev/signalbox/podsets"
)

// grows lets the first TrainJob start with one of two nodes, and grow. Each Job has one pod in the model; how many its
// JobSet asks for is compared with the admission.
func (w *world) grows() {
	for _, tj := range list[*api.TrainJob](w, "TrainJob") {
		if tj.Name != names[0] {
			continue
		}
		tj = tj.DeepCopy()
		tj.Spec.Trainer.NumNodes = ptr.To[int32](2)
		tj.Annotations[overrides.MinParallelismAnnotation], tj.Annotations[api.GrowAnnotation] = "1", "true"
		w.update(tj)
	}
	w.restart()
}

// growActions create a slice at any moment at which its TrainJob runs, whatever room there is: the manager's decision
// takes half an hour. Kueue admits it by two writes, of which the second may never come.
func (w *world) growActions() []action {
	var all []action
	workloads := list[*kueue.Workload](w, "Workload")
	sliced := slices.ContainsFunc(workloads, func(wl *kueue.Workload) bool { return podsets.SliceOf(wl) != nil })
	for _, wl := range workloads {
		old := w.replacedBy(wl)
		switch whole, _ := podsets.PartiallyAdmitted(wl); {
		case whole != nil && counts(wl) && w.budget.Slices > 0 && !sliced:
			all = append(all, action{"the manager creates a slice for " + wl.Name, maybe, func(w *world) {
				w.budget.Slices--
				slice := grow.Want{PodSet: whole.Name, Have: 1, Least: 2, Most: 2}.Slice(wl, 2, 1)
				slice.Name = wl.Name + "-slice"
				must(w.api().Create(background, slice))
			}})
		case old != nil && counts(old) && counts(wl):
			all = append(all, action{"Kueue finishes " + old.Name, maybe, func(w *world) {
				must(workloadfinish.Finish(background, w.api(), old.DeepCopy(), kueue.WorkloadSliceReplaced, "replaced", w.clock))
			}})
		case old != nil && counts(old) && !workload.HasQuotaReservation(wl) && workload.IsActive(wl):
			all = append(all, action{"Kueue admits slice " + wl.Name, maybe, func(w *world) { w.admit(wl) }})
		}
	}
	return all
}

// replacedBy returns the Workload that a slice replaces; nil if it is gone, or if it is no slice.
func (w *world) replacedBy(slice *kueue.Workload) *kueue.Workload {
	key := workloadslicing.ReplacementForKey(slice)
	for _, wl := range list[*kueue.Workload](w, "Workload") {
		if key != nil && workload.Key(wl) == *key {
			return wl
		}
	}
	return nil
}

// replacing reports whether a Workload that counts is replaced by another that does, and waits for its end.
func (w *world) replacing(wl *kueue.Workload) bool {
	return slices.ContainsFunc(list[*kueue.Workload](w, "Workload"), func(slice *kueue.Workload) bool {
		old := w.replacedBy(slice)
		return old != nil && old.UID == wl.UID && counts(slice)
	})
}

// replaced reports whether a finding is of two Workloads with quota of which one replaces the other: until Kueue, or
// the manager, has finished that.
func (w *world) replaced(f audit.Finding) bool {
	return strings.HasPrefix(f.Object, "Workload ") &&
		slices.ContainsFunc(list[*kueue.Workload](w, "Workload"), w.replacing)
}

// oversized describes a JobSet with more pods than the Workload was admitted with that stands for its TrainJob; "" if
// there is none.
func (w *world) oversized() string {
	for _, js := range list[*jobset.JobSet](w, "JobSet") {
		owner := metav1.GetControllerOf(js)
		if owner == nil || w.ledger.Owner[js.UID] != owner.UID || ptr.Deref(js.Spec.Suspend, false) ||
			js.Status.TerminalState != "" { // its TrainJob's end is declared next, on both
			continue
		}
		var own []*kueue.Workload
		for _, wl := range list[*kueue.Workload](w, "Workload") {
			if by := metav1.GetControllerOf(wl); by != nil && by.UID == owner.UID && counts(wl) {
				own = append(own, wl)
			}
		}
		stands, _ := podsets.Counts(own)
		if len(stands) == 0 {
			continue // it is being stopped; no pod of it runs by now, or another rule is violated
		}
		pods := ptr.Deref(js.Spec.ReplicatedJobs[0].Template.Spec.Parallelism, 1)
		if most := ptr.Deref(stands[0].Status.Admission.PodSetAssignments[0].Count, 0); pods > most {
			return fmt.Sprintf("JobSet %s has %d pods, and Workload %s was admitted with %d", js.Name, pods, stands[0].Name,
				most)
		}
	}
	return ""
}
