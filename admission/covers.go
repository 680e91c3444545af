package admission

import (
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/workload"

	"github.com/signalbox-dev/signalbox/podsets"
)

// MismatchError reports that a Workload was admitted for something else than what its TrainJob would run. Kueue decides
// on its own copy of a Workload, and others may write to Workloads; what starts must fit what was admitted.
type MismatchError struct{ Path, Says, Needs string }

// Error implements error.
func (e *MismatchError) Error() string {
	return fmt.Sprintf("the admission doesn't match what the TrainJob runs: %s is %s, but %s is needed",
		e.Path, e.Says, e.Needs)
}

const assignments = "status.admission.podSetAssignments"

// Covers compares what was admitted with what is to run, PodSet by PodSet: the pods in full, their number and the quota
// that Kueue counts of them. Reclaimed pods will not run again, and Kueue doesn't count them. The first difference is
// returned as a *MismatchError.
//
// uncounted are the resources that Kueue counts of the pods, and the admission counts nothing of. They are right only
// if the ClusterQueue doesn't cover them.
func Covers(
	wl *kueue.Workload, computed []kueue.PodSet, reclaimed []kueue.ReclaimablePod, counting podsets.Counting,
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
	run := slices.Clone(computed) // with the pods that run
	for i := range computed {
		podSet := &computed[i]
		at := slices.IndexFunc(assigned, func(a kueue.PodSetAssignment) bool { return a.Name == podSet.Name })
		if at < 0 {
			return nil, &MismatchError{
				Path: assignments, Says: "without " + string(podSet.Name), Needs: "one for each PodSet",
			}
		}
		given, again := countOf(wl.Status.ReclaimablePods, podSet.Name), countOf(reclaimed, podSet.Name)
		if run[i].Count, err = podsOf(&assigned[at], podSet, again); err != nil {
			return nil, err
		}
		if err := stillCounted(&assigned[at], podSet, given, again); err != nil {
			return nil, err
		}
	}
	return covers(assigned, counting.Of(run))
}

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

// podsOf returns how many pods of a PodSet run on an assignment, of which so many don't run again.
func podsOf(assignment *kueue.PodSetAssignment, podSet *kueue.PodSet, reclaimed int32) (int32, error) {
	count, have := podSet.Count-reclaimed, ptr.Deref(assignment.Count, podSet.Count)
	if least := min(ptr.Deref(podSet.MinCount, count), count); have < least || have > podSet.Count {
		return 0, &MismatchError{
			Path: fmt.Sprintf("%s[%s].count", assignments, podSet.Name), Says: fmt.Sprint(have), Needs: fmt.Sprint(least),
		}
	}
	return min(count, have), nil // partial admission
}

// covers compares assignments with what Kueue counts of the pods that run, and returns the resources that they lack.
func covers(
	assigned []kueue.PodSetAssignment, counted []workload.PodSetResources,
) (missing []corev1.ResourceName, err error) {
	for _, podSet := range counted {
		at := slices.IndexFunc(assigned, func(a kueue.PodSetAssignment) bool { return a.Name == podSet.Name })
		needs := podSet.Requests.ToResourceList(nil)
		for _, name := range slices.Sorted(maps.Keys(needs)) {
			need := needs[name]
			usage, found := assigned[at].ResourceUsage[name]
			switch {
			case need.IsZero():
			case !found:
				missing = append(missing, name)
			case usage.Cmp(need) < 0:
				return nil, &MismatchError{
					Path: fmt.Sprintf("%s[%s].resourceUsage[%s]", assignments, podSet.Name, name), Says: usage.String(),
					Needs: need.String(),
				}
			}
		}
	}
	slices.Sort(missing)
	return slices.Compact(missing), nil
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
