package boost

import (
	"math/rand/v2"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// TestLost holds what a preemption would cost.
func TestLost(t *testing.T) {
	uses := func(lists ...corev1.ResourceList) *kueue.Workload {
		wl := admitted(30, 0)
		wl.Status.Admission.PodSetAssignments = nil
		for _, l := range lists {
			wl.Status.Admission.PodSetAssignments = append(wl.Status.Admission.PodSetAssignments,
				kueue.PodSetAssignment{ResourceUsage: l})
		}
		return wl
	}
	q := resource.MustParse
	for name, c := range map[string]struct {
		wl    *kueue.Workload
		saved *api.Checkpoint
		want  float64
	}{
		"nothing is reported":        {admitted(30, 8), nil, 0},
		"since the last checkpoint":  {admitted(30, 8), savedAgo(10), 80},
		"it is of an earlier run":    {admitted(30, 8), savedAgo(600), 240},
		"it is of a clock ahead":     {admitted(30, 8), savedAgo(-5), 0},
		"it has reported none today": {admitted(2000, 8), savedAgo(1500), 0},
		"it was not admitted":        {&kueue.Workload{}, savedAgo(10), 0},
		"it has no admission": {func() *kueue.Workload {
			wl := admitted(30, 8)
			wl.Status.Admission = nil
			return wl
		}(), savedAgo(10), 0},
		"of several PodSets": {uses(corev1.ResourceList{"nvidia.com/gpu": q("4")},
			corev1.ResourceList{"nvidia.com/gpu": q("2")}),
			savedAgo(10), 60},
		"of several resources": {uses(corev1.ResourceList{"nvidia.com/gpu": q("4"), "rdma/hca": q("2"), "cpu": q("640"),
			"memory": q("1Ti"), "hugepages-1Gi": q("64Gi"), "ephemeral-storage": q("1Ti"), "pods": q("99"),
			"attachable-volumes-csi": q("99")}), savedAgo(10), 40},
		"of CPUs alone": {uses(corev1.ResourceList{"cpu": q("32"), "memory": q("1Ti")}), savedAgo(10), 20},
		"of nothing":    {uses(corev1.ResourceList{"memory": q("1Ti")}), savedAgo(10), 0},
	} {
		t.Run(name, func(t *testing.T) {
			if got := Lost(c.wl, c.saved, now); got != c.want {
				t.Errorf("got %v, want %v", got, c.want)
			}
		})
	}
}

// TestLevel holds that levels leave the highest to the minimum runtime, and never put one above another that would lose
// more.
func TestLevel(t *testing.T) {
	for lost, want := range map[float64]int32{0: 0, 3.9: 0, 4: 1, 63: 1, 64: 2, 1023: 2, 1024: 3, 1e12: 3} {
		if got := Level(lost); got != want || got >= Highest {
			t.Errorf("%v GPU minutes: got %d, want %d", lost, got, want)
		}
	}
	random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // the same cases each time
	for range 1000 {
		a := Lost(admitted(600, random.Int64N(1000)), savedAgo(random.Float64()*600), now)
		b := Lost(admitted(600, random.Int64N(1000)), savedAgo(random.Float64()*600), now)
		if a < b && Level(a) > Level(b) {
			t.Fatalf("%v GPU minutes are worth more than %v", a, b)
		}
	}
}

// TestMark holds that what Signalbox writes is what it reads, and that nothing else counts as its own.
func TestMark(t *testing.T) {
	until := Mark{Value: Highest, Written: now, Until: now.Add(time.Hour)}
	for name, c := range map[string]struct {
		mark, value string
		want        Mark
		ours        bool
	}{
		"none":                {ours: true},
		"one":                 {Mark{Value: 2, Written: now}.String(), "2", Mark{Value: 2, Written: now}, true},
		"a minimum runtime":   {until.String(), "4", until, true},
		"none for now":        {Mark{Written: now}.String(), "", Mark{Written: now}, true},
		"another's":           {"", "4", Mark{}, false},
		"another's 0":         {"", "0", Mark{}, false},
		"changed by another":  {until.String(), "5", until, false},
		"removed by another":  {until.String(), "", until, false},
		"too high":            {"5 2026-11-28T12:00:00Z", "5", Mark{}, false},
		"negative":            {"-1 2026-11-28T12:00:00Z", "-1", Mark{}, false},
		"no time":             {"4", "4", Mark{}, false},
		"no time that is one": {"4 soon", "4", Mark{}, false},
		"too long":            {"4 2026-11-28T12:00:00Z 2026-11-28T12:00:00Z x", "4", Mark{}, false},
		"no value":            {"x 2026-11-28T12:00:00Z", "", Mark{}, true},
		"until no time":       {"4 2026-11-28T12:00:00Z x", "4", Mark{Value: 4, Written: now}, true},
	} {
		t.Run(name, func(t *testing.T) {
			wl := &kueue.Workload{}
			wl.Annotations = map[string]string{}
			if c.mark != "" {
				wl.Annotations[MarkAnnotation] = c.mark
			}
			if c.value != "" {
				wl.Annotations[Annotation] = c.value
			}
			if got, ours := Of(wl); got != c.want || ours != c.ours {
				t.Errorf("got %v, %t; want %v, %t", got, ours, c.want, c.ours)
			}
		})
	}
}

// TestProtectedUntil holds that only what Signalbox may have written is told.
func TestProtectedUntil(t *testing.T) {
	told := func(until time.Duration, change ...func(*kueue.Workload)) *kueue.Workload {
		wl := admitted(1, 8)
		wl.Annotations[MarkAnnotation] = Mark{Value: Highest, Written: now, Until: now.Add(until)}.String()
		wl.Annotations[Annotation] = "4"
		for _, c := range change {
			c(wl)
		}
		return wl
	}
	for name, c := range map[string]struct {
		wl   *kueue.Workload
		want bool
	}{
		"it is protected":     {told(time.Minute), true},
		"it was":              {told(-time.Minute), false},
		"for years":           {told(99999 * time.Hour), false},
		"the boost is gone":   {told(time.Minute, func(wl *kueue.Workload) { delete(wl.Annotations, Annotation) }), false},
		"it has no admission": {told(time.Minute, func(wl *kueue.Workload) { wl.Status.Conditions = nil }), false},
		"by its loss":         {boosted(admitted(1, 8), 2, 1), false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := ProtectedUntil(c.wl, now); got.IsZero() == c.want {
				t.Errorf("got %s", got)
			}
		})
	}
}
