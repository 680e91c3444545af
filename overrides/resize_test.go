package overrides

import (
	"strings"
	"testing"

	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
)

func TestCheckResize(t *testing.T) {
	gpus := func(n string) string { return "{trainer: {resourcesPerNode: {limits: {nvidia.com/gpu: " + n + "}}}}" }
	cases := map[string]struct {
		reason, before, after string
		left, resized         bool
		refused               string
	}{
		"more nodes": {"its Workload follows", "{trainer: {numNodes: 2}}", "{trainer: {numNodes: 4}}", false, true, ""},
		"the last run is left": {"its pods hold quota", "{trainer: {numNodes: 2}}", "{trainer: {numNodes: 4}}", true, true,
			"when JobSet last is deleted"},
		"other nodes":         {"they ask for something else", gpus("1"), gpus("2"), true, true, "spec.trainer"},
		"the same, otherwise": {"a quantity has several forms", gpus("1"), gpus(`"1"`), true, false, ""},
		"the runtime's":       {"the TrainJob says it now", "{}", "{trainer: {numNodes: 4}}", true, true, "spec.trainer"},
		"nothing":             {"only something else has changed", "{}", "{suspend: true}", true, false, ""},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			before, after, js := jobOf(t, c.before), jobOf(t, c.after), (*jobset.JobSet)(nil)
			if c.left {
				js = &jobset.JobSet{}
				js.Name = "last"
			}
			if got := Resized(before, after); got != c.resized {
				t.Errorf("%s: got %t", c.reason, got)
			}
			errs := CheckResize(before, after, js)
			if (len(errs) == 0) != (c.refused == "") ||
				len(errs) > 0 && !strings.Contains(errs.ToAggregate().Error(), c.refused) {
				t.Errorf("%s: got %v, want %q", c.reason, errs, c.refused)
			}
		})
	}
}
