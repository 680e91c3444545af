package main

import (
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

// cohort is three ClusterQueues of eight GPUs: "takes" has borrowed so many, "gives" and "full" have some unused.
func cohort(borrowed, unused, limit string) string {
	queue := func(name, lending, total, borrows string) string {
		return `apiVersion: kueue.x-k8s.io/v1beta2
kind: ClusterQueue
metadata: {name: ` + name + `}
spec:
  cohortName: all
  resourceGroups:
  - coveredResources: [nvidia.com/gpu]
    flavors: [{name: a100, resources: [{name: nvidia.com/gpu, nominalQuota: 8` + lending + `}]}]
status:
  flavorsReservation: [{name: a100, resources: [{name: nvidia.com/gpu, total: "` + total + `", borrowed: "` + borrows + `"}]}]
`
	}
	if limit != "" {
		limit = ", lendingLimit: " + limit
	}
	return queue("takes", "", "12", borrowed) + "---\n" + queue("gives", limit, "2", "0") + "---\n" +
		queue("full", "", unused, "0")
}

// TestLent holds what is said of quota that others have borrowed: Kueue keeps only what they have together.
func TestLent(t *testing.T) {
	cases := map[string]struct {
		reason, manifest string
		gives, full      string
	}{
		"one lender": {"nobody else has any", cohort("4", "8", ""), "4 lent", ""},
		"either": {"each has six unused, and four are borrowed", cohort("4", "2", ""), "between 0 and 4 lent",
			"between 0 and 4 lent"},
		"most of one":     {"the other has one", cohort("4", "7", ""), "between 3 and 4 lent", "between 0 and 1 lent"},
		"limited":         {"it lends two at most", cohort("4", "5", "2"), "between 1 and 2 lent", "between 2 and 3 lent"},
		"nothing":         {"nobody borrows", cohort("0", "2", ""), "", ""},
		"of the cohort's": {"the cohort has four of its own", cohort("4", "8", "") + cohortQuota, "between 0 and 4 lent", ""},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			tr := newTrial(t, interceptor.Funcs{}, c.manifest)
			k, err := view(tr, true).read(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			all := lentBy(k.queues)
			for queue, want := range map[string]string{"gives": c.gives, "full": c.full, "takes": "", "cq": ""} {
				if got := all[lender{queue, "a100", "nvidia.com/gpu"}].String(); got != want {
					t.Errorf("%s: %s: %q", c.reason, queue, got)
				}
			}
		})
	}
}

const cohortQuota = `---
apiVersion: kueue.x-k8s.io/v1beta2
kind: Cohort
metadata: {name: all}
spec:
  resourceGroups:
  - coveredResources: [nvidia.com/gpu]
    flavors: [{name: a100, resources: [{name: nvidia.com/gpu, nominalQuota: 4}]}]`
