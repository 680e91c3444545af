package podsets

import (
	"cmp"
	"fmt"
	"slices"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/util/podset"
	"sigs.k8s.io/kueue/pkg/workload"
	workloadfinish "sigs.k8s.io/kueue/pkg/workload/finish"
	"sigs.k8s.io/kueue/pkg/workloadslicing"
)

// SliceAnnotation marks the Workload that replaces another of the same TrainJob, so that it grows (package
// admission/grow). Its value is a Slice. Kueue's own annotation names what it replaces.
const SliceAnnotation = "signalbox.dev/grown"

// Slice is the value of SliceAnnotation.
type Slice struct {
	// PodSet is the one that has more pods than before.
	PodSet kueue.PodSetReference
	// From is the number of nodes that the TrainJob's entry has before it is started on the slice.
	From int32
	// Of is the number of pods that the PodSet has if the TrainJob gets all its nodes.
	Of int32
}

// String returns the value of the annotation.
func (s Slice) String() string { return fmt.Sprintf("%s %d %d", s.PodSet, s.From, s.Of) }

// SliceOf returns what a Workload says that is a slice; nil for any other.
func SliceOf(wl *kueue.Workload) *Slice {
	value, marked := wl.Annotations[SliceAnnotation]
	if !marked || workloadslicing.ReplacementForKey(wl) == nil {
		return nil
	}
	s := &Slice{}
	if n, err := fmt.Sscanf(value, "%s %d %d", &s.PodSet, &s.From, &s.Of); n != 3 || err != nil || s.From < 1 {
		return nil
	}
	return s
}

// Counts divides the Workloads of one TrainJob, in their order, into those that stand for it and those that are aside.
// A slice stands for it from the moment that it holds quota, alone; before that, the Workload that it is to replace
// does. Kueue finishes what was replaced, and a slice that has lost its quota is worth nothing any more, unless it is
// deactivated: what takes its place would be active.
func Counts(all []*kueue.Workload) (counts, aside []*kueue.Workload) {
	if !slices.ContainsFunc(all, func(wl *kueue.Workload) bool { return SliceOf(wl) != nil || Replaced(wl) }) {
		return all, nil
	}
	holder := sliceWithQuota(all)
	for _, wl := range all {
		waits := SliceOf(wl) != nil && !workloadfinish.IsFinished(wl)
		if wl == holder || holder == nil && !waits && !Replaced(wl) {
			counts = append(counts, wl)
		} else {
			aside = append(aside, wl)
		}
	}
	if i := slices.IndexFunc(aside, deactivated); i >= 0 && len(counts) == 0 {
		counts, aside = aside[i:i+1:i+1], slices.Concat(aside[:i], aside[i+1:])
	}
	return counts, aside
}

func deactivated(wl *kueue.Workload) bool {
	return !workload.IsActive(wl) && !workloadfinish.IsFinished(wl)
}

// sliceWithQuota returns the slice that holds quota and is replaced by no other that does, or the first of those that
// replace each other; nil if none holds quota.
func sliceWithQuota(all []*kueue.Workload) (first *kueue.Workload) {
	for _, wl := range all {
		if SliceOf(wl) == nil || !HoldsQuota(wl) {
			continue
		}
		first = cmp.Or(first, wl)
		if !slices.ContainsFunc(all, func(other *kueue.Workload) bool {
			replaces := workloadslicing.ReplacementForKey(other)
			return other != wl && SliceOf(other) != nil && HoldsQuota(other) && *replaces == workload.Key(wl)
		}) {
			return wl
		}
	}
	return first
}

// Replaced reports whether a Workload was finished because a slice has replaced it.
func Replaced(wl *kueue.Workload) bool { return workloadslicing.IsReplaced(wl.Status) }

// AsPartial returns a slice as if its TrainJob had been partially admitted with so many pods: with the PodSets that are
// computed for the TrainJob, if they differ in nothing else. It returns any other Workload as it is.
func AsPartial(wl *kueue.Workload, computed []kueue.PodSet) *kueue.Workload {
	slice := SliceOf(wl)
	if slice == nil {
		return wl
	}
	own, whole := podset.FindPodSetByName(wl.Spec.PodSets, slice.PodSet), podset.FindPodSetByName(computed, slice.PodSet)
	if own == nil || whole == nil || whole.MinCount == nil || own.Count > whole.Count || own.Count < *whole.MinCount {
		return wl
	}
	wl = wl.DeepCopy()
	delete(wl.Annotations, SliceAnnotation)
	setCount(wl.Spec.PodSets, slice.PodSet, whole.Count, whole.MinCount)
	for i := range wl.Status.ReclaimablePods { // Kueue subtracts them from the slice's pods
		if r := &wl.Status.ReclaimablePods[i]; r.Name == slice.PodSet && r.Count > 0 {
			r.Count += whole.Count - own.Count
		}
	}
	return wl
}

// WithCount returns a copy of PodSets in which one has so many pods, none of which may be left out.
func WithCount(podSets []kueue.PodSet, name kueue.PodSetReference, count int32) []kueue.PodSet {
	all := (&kueue.WorkloadSpec{PodSets: podSets}).DeepCopy().PodSets
	setCount(all, name, count, nil)
	return all
}

func setCount(podSets []kueue.PodSet, name kueue.PodSetReference, count int32, least *int32) {
	for i := range podSets {
		if podSets[i].Name == name {
			podSets[i].Count, podSets[i].MinCount = count, least
		}
	}
}

// PartiallyAdmitted returns the PodSet that was admitted with fewer pods than it has, and how many fewer; nil if
// there is none. A PodSet without minCount has fewer pods because some were reclaimed. Of a slice, the PodSet has the
// pods that its TrainJob asks for.
func PartiallyAdmitted(wl *kueue.Workload) (podSet *kueue.PodSet, fewer int32) {
	if wl == nil || wl.Status.Admission == nil {
		return nil, 0
	}
	if SliceOf(wl) != nil {
		return missingOf(wl)
	}
	for _, assignment := range wl.Status.Admission.PodSetAssignments {
		p := podset.FindPodSetByName(wl.Spec.PodSets, assignment.Name)
		if p != nil && p.MinCount != nil && ptr.Deref(assignment.Count, p.Count) < p.Count {
			return p, p.Count - *assignment.Count
		}
	}
	return nil, 0
}

// missingOf returns the PodSet of a slice that has fewer pods than its TrainJob asks for, with all of them, and how
// many fewer were admitted; nil if there is none.
func missingOf(wl *kueue.Workload) (podSet *kueue.PodSet, fewer int32) {
	slice := SliceOf(wl)
	if slice == nil {
		return nil, 0
	}
	own := podset.FindPodSetByName(wl.Spec.PodSets, slice.PodSet)
	if own == nil || own.Count >= slice.Of {
		return nil, 0
	}
	all := own.DeepCopy()
	all.Count = slice.Of
	return all, slice.Of - own.Count
}

// Refused reports whether Kueue has considered a Workload that waits, and not admitted it.
func Refused(wl *kueue.Workload) bool {
	c := apimeta.FindStatusCondition(wl.Status.Conditions, kueue.WorkloadQuotaReserved)
	return c != nil && !workload.HasQuotaReservation(wl) && c.Reason != kueue.WorkloadQuotaReservedReasonPendingEvaluation
}

// HoldsQuota reports whether a Workload holds quota.
func HoldsQuota(wl *kueue.Workload) bool {
	return !workloadfinish.IsFinished(wl) && workload.HasQuotaReservation(wl)
}

// Finalized reports whether a Workload has the finalizer that keeps its quota.
func Finalized(wl *kueue.Workload) bool {
	return controllerutil.ContainsFinalizer(wl, kueue.ResourceInUseFinalizerName)
}
