package podsets

import (
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/workloadslicing"
)

// of is a Workload with a condition that is True, or none.
func of(name, condition, reason string) *kueue.Workload {
	wl := &kueue.Workload{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name}}
	wl.Spec.PodSets = []kueue.PodSet{{Name: "node", Count: 8, MinCount: ptr.To[int32](2)}}
	if condition != "" {
		wl.Status.Conditions = []metav1.Condition{{Type: condition, Status: metav1.ConditionTrue, Reason: reason}}
	}
	if condition == kueue.WorkloadQuotaReserved {
		wl.Status.Admission = &kueue.Admission{PodSetAssignments: []kueue.PodSetAssignment{
			{Name: "node", Count: ptr.To[int32](4)}}}
	}
	return wl
}

// slicedFrom is one that replaces another.
func slicedFrom(old string, count int32, wl *kueue.Workload) *kueue.Workload {
	wl.Annotations = map[string]string{
		workloadslicing.WorkloadSliceReplacementFor: "team/" + old,
		SliceAnnotation: Slice{PodSet: "node", From: 4, Of: 8}.String(),
	}
	wl.Spec.PodSets[0].Count, wl.Spec.PodSets[0].MinCount = count, nil
	return wl
}

func stopped(wl *kueue.Workload) *kueue.Workload {
	wl.Spec.Active = ptr.To(false)
	return wl
}

// TestCounts holds which Workloads of a TrainJob stand for it: of two that hold quota, one.
func TestCounts(t *testing.T) {
	const holds, ended = kueue.WorkloadQuotaReserved, kueue.WorkloadFinished
	plain := of
	for name, c := range map[string]struct {
		reason string
		all    []*kueue.Workload
		counts []string
	}{
		"one": {"nothing is replaced", []*kueue.Workload{plain("a", holds, "")}, []string{"a"}},
		"two": {"neither is a slice", []*kueue.Workload{plain("a", holds, ""), plain("b", "", "")}, []string{"a", "b"}},
		"the slice waits": {"what it would replace runs", []*kueue.Workload{
			plain("a", holds, ""), slicedFrom("a", 8, of("b", "", ""))}, []string{"a"}},
		"both are admitted": {"Kueue finishes the old one next", []*kueue.Workload{
			plain("a", holds, ""), slicedFrom("a", 8, of("b", holds, ""))}, []string{"b"}},
		"the old one is replaced": {"its end is none of the TrainJob's", []*kueue.Workload{
			plain("a", ended, kueue.WorkloadSliceReplaced), slicedFrom("a", 8, of("b", holds, ""))}, []string{"b"}},
		"the slice has lost its quota": {"the TrainJob queues with its minimum again", []*kueue.Workload{
			plain("a", ended, kueue.WorkloadSliceReplaced), slicedFrom("a", 8, of("b", "", ""))}, nil},
		"the slice is deactivated": {"another would be active", []*kueue.Workload{
			plain("a", ended, kueue.WorkloadSliceReplaced), stopped(slicedFrom("a", 8, of("b", "", "")))}, []string{"b"}},
		"the slice is deactivated while it waits": {"it stands for nothing", []*kueue.Workload{
			plain("a", holds, ""), stopped(slicedFrom("a", 8, of("b", "", "")))}, []string{"a"}},
		"the slice is gone": {"nothing stands for it", []*kueue.Workload{
			plain("a", ended, kueue.WorkloadSliceReplaced)}, nil},
		"the old one has lost its quota": {"the slice would be admitted as a whole", []*kueue.Workload{
			plain("a", "", ""), slicedFrom("a", 8, of("b", "", ""))}, []string{"a"}},
		"the TrainJob has ended": {"its end is declared on the slice", []*kueue.Workload{
			plain("a", ended, kueue.WorkloadSliceReplaced), slicedFrom("a", 8, of("b", ended, "Succeeded"))}, []string{"b"}},
		"grows again": {"the second waits", []*kueue.Workload{
			plain("a", ended, kueue.WorkloadSliceReplaced), slicedFrom("a", 6, of("b", holds, "")),
			slicedFrom("b", 8, of("c", "", ""))}, []string{"b"}},
		"has grown again": {"the second replaces the first, in whatever order", []*kueue.Workload{
			slicedFrom("b", 8, of("c", holds, "")), slicedFrom("a", 6, of("b", holds, ""))}, []string{"c"}},
		"replace each other": {"one of them stands for it, whatever they say", []*kueue.Workload{
			slicedFrom("b", 8, of("a", holds, "")), slicedFrom("a", 6, of("b", holds, ""))}, []string{"a"}},
		"no slice of ours": {"Kueue's annotation alone says nothing", []*kueue.Workload{
			plain("a", holds, ""), func() *kueue.Workload {
				wl := slicedFrom("a", 8, of("b", "", ""))
				delete(wl.Annotations, SliceAnnotation)
				return wl
			}()}, []string{"a", "b"}},
	} {
		t.Run(name, func(t *testing.T) {
			counts, aside := Counts(c.all)
			var got []string
			for _, wl := range counts {
				got = append(got, wl.Name)
			}
			if !slices.Equal(got, c.counts) || len(counts)+len(aside) != len(c.all) {
				t.Errorf("%s: got %v and %d aside, want %v", c.reason, got, len(aside), c.counts)
			}
		})
	}
}

func TestSliceOf(t *testing.T) {
	for value, want := range map[string]*Slice{
		"node 4 8": {PodSet: "node", From: 4, Of: 8}, "node 0 8": nil, "node": nil, "": nil, "node four 8": nil,
	} {
		wl := slicedFrom("a", 8, of("b", "", ""))
		wl.Annotations[SliceAnnotation] = value
		if got := SliceOf(wl); !ptr.Equal(got, want) {
			t.Errorf("%q: got %v, want %v", value, got, want)
		}
	}
}

// TestAsPartial holds that what was admitted to a slice is a partial admission of its TrainJob, and nothing else is.
func TestAsPartial(t *testing.T) {
	computed := func(count, least int32) []kueue.PodSet {
		return []kueue.PodSet{{Name: "node", Count: count, MinCount: &least}}
	}
	for name, c := range map[string]struct {
		wl       *kueue.Workload
		computed []kueue.PodSet
		equal    bool
	}{
		"a part":           {slicedFrom("a", 6, of("b", "", "")), computed(8, 2), true},
		"all":              {slicedFrom("a", 8, of("b", "", "")), computed(8, 2), true},
		"too many":         {slicedFrom("a", 9, of("b", "", "")), computed(8, 2), false},
		"too few":          {slicedFrom("a", 1, of("b", "", "")), computed(8, 2), false},
		"no minimum":       {slicedFrom("a", 6, of("b", "", "")), []kueue.PodSet{{Name: "node", Count: 8}}, false},
		"no such PodSet":   {slicedFrom("a", 6, of("b", "", "")), []kueue.PodSet{{Name: "other", Count: 8}}, false},
		"none":             {of("b", "", ""), computed(8, 2), true},
		"none, of another": {of("b", "", ""), computed(6, 2), false},
	} {
		t.Run(name, func(t *testing.T) {
			before := c.wl.DeepCopy()
			if got := Equal(c.computed, AsPartial(c.wl, c.computed).Spec.PodSets); got != c.equal {
				t.Errorf("got %t, want %t", got, c.equal)
			}
			if !Equal(before.Spec.PodSets, c.wl.Spec.PodSets) {
				t.Error("the slice is changed")
			}
			c.wl.Status.ReclaimablePods = []kueue.ReclaimablePod{{Name: "node", Count: 1}}
			// Of what Kueue counts, one pod is missing: of the PodSet, all that were never admitted are missing, too.
			missing := 9 - c.wl.Spec.PodSets[0].Count
			if got := AsPartial(c.wl, c.computed); got != c.wl && got.Status.ReclaimablePods[0].Count != missing {
				t.Errorf("got %v", got.Status.ReclaimablePods)
			}
		})
	}
}

// TestPartialSlice holds that a slice with fewer pods than its TrainJob asks for is a partial admission, and that none
// of its own pods is missing where Kueue counts those that were given back.
func TestPartialSlice(t *testing.T) {
	for name, c := range map[string]struct {
		count, fewer int32
		podSet       string
	}{
		"a part":         {6, 2, "node"},
		"all":            {8, 0, "node"},
		"another PodSet": {6, 0, "launcher"},
	} {
		t.Run(name, func(t *testing.T) {
			wl := slicedFrom("a", c.count, of("b", kueue.WorkloadQuotaReserved, ""))
			wl.Annotations[SliceAnnotation] = Slice{PodSet: kueue.PodSetReference(c.podSet), From: 4, Of: 8}.String()
			podSet, fewer := PartiallyAdmitted(wl)
			if fewer != c.fewer || (podSet != nil) != (c.fewer > 0) || podSet != nil && podSet.Count != 8 {
				t.Errorf("got %v, %d fewer", podSet, fewer)
			}
			back := []kueue.ReclaimablePod{{Name: "node", Count: 1}}
			if got := AddNotAdmitted(back, wl); got[0].Count != 1 {
				t.Errorf("got %v", got)
			}
		})
	}
}

func TestRefused(t *testing.T) {
	for name, c := range map[string]struct {
		status metav1.ConditionStatus
		reason string
		want   bool
	}{
		"admitted":           {metav1.ConditionTrue, "QuotaReserved", false},
		"not considered yet": {metav1.ConditionFalse, kueue.WorkloadQuotaReservedReasonPendingEvaluation, false},
		"doesn't fit":        {metav1.ConditionFalse, "Pending", true},
	} {
		wl := of("a", kueue.WorkloadQuotaReserved, c.reason)
		wl.Status.Conditions[0].Status = c.status
		if got := Refused(wl); got != c.want {
			t.Errorf("%s: got %t", name, got)
		}
	}
	if Refused(of("a", "", "")) {
		t.Error("Kueue hasn't seen it")
	}
}
