package simulate

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
)

// TestInactive holds that a ClusterQueue that admits nothing is nobody's problem but its own, with the reason. Cohorts
// whose parents form a circle are the worst of them.
func TestInactive(t *testing.T) {
	cluster := newCluster()
	for name, parent := range map[string]string{
		"a": "b", "b": "c", "c": "a", "below": "a", "self": "self", "inner": "all",
	} {
		cohort := kueue.Cohort{ObjectMeta: metav1.ObjectMeta{Name: name}}
		cohort.Spec.ParentName = kueue.CohortReference(parent)
		cluster.Cohorts = append(cluster.Cohorts, cohort)
	}
	stop := func(cq *kueue.ClusterQueue) { cq.Spec.StopPolicy = ptr.To(kueue.Hold) }
	missing := func(cq *kueue.ClusterQueue) { cq.Spec.ResourceGroups[0].Flavors[0].Name = "missing" }
	for name, c := range map[string]struct {
		cohort, says string
		change       func(*kueue.ClusterQueue)
	}{
		"alone":   {},
		"beside":  {cohort: "inner"},
		"in":      {cohort: "a", says: "ClusterQueue in is inactive: the parents of Cohort a form a circle"},
		"below":   {cohort: "below", says: "ClusterQueue below is inactive: the parents of Cohort below form a circle"},
		"own":     {cohort: "self", says: "ClusterQueue own is inactive: the parents of Cohort self form a circle"},
		"stopped": {says: "ClusterQueue stopped is inactive: Can't admit new workloads: is stopped.", change: stop},
		"lacking": {says: "ClusterQueue lacking is inactive: Can't admit new workloads: references missing " +
			"ResourceFlavor(s): missing.", change: missing},
	} {
		cluster.queue(name, c.cohort, c.change, flavorQuota{flavor: "f", nominal: 8})
		cluster.waits(name, name, 0, 1, 4)
		want := Admitted
		if c.says != "" {
			want = Never
		}
		d, err := Decide(t.Context(), cluster, named(name), noon)
		if err != nil || d.Verdict != want || d.Message != c.says {
			t.Errorf("%s: decided %+v, %v, want %s: %s", name, d, err, want, c.says)
		}
		a, err := Ask(t.Context(), cluster, named(name), nil, noon)
		if err != nil || a.Verdict != want || a.Message != c.says {
			t.Errorf("%s: got %+v, %v, want %s: %s", name, a, err, want, c.says)
		}
	}
}
