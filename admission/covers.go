package admission

import (
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/signalbox-dev/signalbox/podsets"
)

// MismatchError reports that a Workload was admitted for something else than what its TrainJob would run. Kueue decides
// on its own copy of a Workload, and others may write to Workloads; what starts must fit what was admitted.
type MismatchError struct{ Path, Says, Needs string }

// Error implements error.
func (e *MismatchError) Error() string {
	return fmt.Sprintf("the admission doesn't stand for what the TrainJob runs: %s is %s, but %s is needed",
		e.Path, e.Says, e.Needs)
}

// assignments is where an admission's assignments are.
const assignments = "status.admission.podSetAssignments"

// Covers compares what was admitted with what is to run, PodSet by PodSet: the pods in full, their number and the
// counted quota. Reclaimed pods will not run again, and Kueue doesn't count them. The first difference is returned as a
// *MismatchError.
//
// uncounted are the resources that the pods ask for and the admission counts nothing of. They are right only if the
// ClusterQueue doesn't cover them: Kueue's configuration may exclude them.
func Covers(
	wl *kueue.Workload, computed []kueue.PodSet, reclaimed []kueue.ReclaimablePod,
) (uncounted []corev1.ResourceName, err error) {
	if wl.Status.Admission == nil {
		return nil, &MismatchError{Path: "status.admission", Says: "not set", Needs: "an admission"}
	}
	if !podsets.Equal(computed, wl.Spec.PodSets) {
		return nil, &MismatchError{
			Path: "spec.podSets", Says: "of something else", Needs: "what the runtime and the TrainJob give now",
		}
	}
	assigned := wl.Status.Admission.PodSetAssignments
	if have, need := len(assigned), len(computed); have != need {
		return nil, &MismatchError{Path: assignments, Says: fmt.Sprintf("%d long", have), Needs: fmt.Sprint(need)}
	}
	missing := map[corev1.ResourceName]bool{}
	for i := range computed {
		podSet := &computed[i]
		at := slices.IndexFunc(assigned, func(a kueue.PodSetAssignment) bool { return a.Name == podSet.Name })
		if at < 0 {
			return nil, &MismatchError{
				Path: assignments, Says: "without " + string(podSet.Name), Needs: "one for each PodSet",
			}
		}
		if err := covers(&assigned[at], podSet, countOf(reclaimed, podSet.Name), missing); err != nil {
			return nil, err
		}
		given := countOf(wl.Status.ReclaimablePods, podSet.Name)
		if err := stillCounted(&assigned[at], podSet, given, countOf(reclaimed, podSet.Name)); err != nil {
			return nil, err
		}
	}
	return slices.Sorted(maps.Keys(missing)), nil
}

// countOf returns how many pods of a PodSet are reclaimed.
func countOf(reclaimed []kueue.ReclaimablePod, podSet kueue.PodSetReference) (count int32) {
	for _, r := range reclaimed {
		if r.Name == podSet {
			count += r.Count
		}
	}
	return count
}

// stillCounted returns a *MismatchError if pods were given back since the admission and run again now: Kueue doesn't
// count them any more.
func stillCounted(assignment *kueue.PodSetAssignment, podSet *kueue.PodSet, given, reclaimed int32) error {
	admitted := ptr.Deref(assignment.Count, podSet.Count)
	if min(podSet.Count-given, admitted) >= min(podSet.Count-reclaimed, admitted) {
		return nil
	}
	return &MismatchError{
		Path: fmt.Sprintf("status.reclaimablePods[%s]", podSet.Name), Says: fmt.Sprint(given), Needs: fmt.Sprint(reclaimed),
	}
}

// covers compares the assignment of one PodSet with it. reclaimed is how many of its pods don't run again. It adds the
// resources that are not counted to missing.
func covers(
	assignment *kueue.PodSetAssignment, podSet *kueue.PodSet, reclaimed int32, missing map[corev1.ResourceName]bool,
) error {
	path := fmt.Sprintf("%s[%s]", assignments, podSet.Name)
	count := podSet.Count - reclaimed
	have := ptr.Deref(assignment.Count, podSet.Count)
	if least := min(ptr.Deref(podSet.MinCount, count), count); have < least || have > podSet.Count {
		return &MismatchError{Path: path + ".count", Says: fmt.Sprint(have), Needs: fmt.Sprint(least)}
	}
	count = min(count, have) // partial admission
	requests := podsets.Requests(&podSet.Template)
	for _, name := range slices.Sorted(maps.Keys(requests)) {
		need := requests[name]
		need.Mul(int64(count))
		if need.IsZero() {
			continue
		}
		usage, counted := assignment.ResourceUsage[name]
		if !counted {
			missing[name] = true
			continue
		}
		if usage.Cmp(need) < 0 {
			return &MismatchError{
				Path: path + ".resourceUsage[" + string(name) + "]", Says: usage.String(), Needs: need.String(),
			}
		}
	}
	return nil
}

// Uncovered returns a *MismatchError where a ClusterQueue covers a resource that an admission by it counts nothing of.
func Uncovered(cq *kueue.ClusterQueue, uncounted []corev1.ResourceName) error {
	for _, group := range cq.Spec.ResourceGroups {
		for _, name := range uncounted {
			if slices.Contains(group.CoveredResources, name) {
				return &MismatchError{
					Path: assignments + "[].resourceUsage", Says: "without " + string(name),
					Needs: "all that ClusterQueue " + cq.Name + " covers",
				}
			}
		}
	}
	return nil
}
