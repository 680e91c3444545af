package boost

import (
	"testing"
	"time"

	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
)

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
