package simulate

import (
	"testing"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
)

func named(name string) types.NamespacedName {
	return types.NamespacedName{Namespace: team, Name: name}
}

func lowerPriority(cq *kueue.ClusterQueue) {
	cq.Spec.Preemption.WithinClusterQueue = kueue.PreemptionPolicyLowerPriority
}

func TestSettle(t *testing.T) {
	cases := map[string]struct {
		reason  string
		cluster func(*Cluster)
		want    map[string]string // the flavor and number of pods that a Workload has in the end
		victims []string
	}{
		"room": {reason: "there is quota", cluster: func(c *Cluster) {
			c.queue("q", "", nil, flavorQuota{flavor: "a", nominal: 8})
			c.waits("x", "q", 0, 2, 4)
		}, want: map[string]string{"x": "a:2"}},
		"no room": {reason: "eight are used", cluster: func(c *Cluster) {
			c.queue("q", "", nil, flavorQuota{flavor: "a", nominal: 8})
			c.runs("r", "q", "a", 0, 2, 4)
			c.waits("x", "q", 0, 1, 1)
		}, want: map[string]string{"r": "a:2", "x": ""}},
		"the other flavor": {reason: "the first is full", cluster: func(c *Cluster) {
			c.queue("q", "", nil, flavorQuota{flavor: "a", nominal: 8}, flavorQuota{flavor: "b", nominal: 8})
			c.runs("r", "q", "a", 0, 2, 4)
			c.waits("x", "q", 0, 1, 1)
		}, want: map[string]string{"x": "b:1"}},
		"borrowed": {reason: "the cohort has room", cluster: func(c *Cluster) {
			c.queue("q", "all", nil, flavorQuota{flavor: "a", nominal: 4})
			c.queue("p", "all", nil, flavorQuota{flavor: "a", nominal: 4})
			c.waits("x", "q", 0, 2, 4)
		}, want: map[string]string{"x": "a:2"}},
		"not borrowed": {reason: "the limit is zero", cluster: func(c *Cluster) {
			c.queue("q", "all", nil, flavorQuota{flavor: "a", nominal: 4, borrow: ptr.To(0)})
			c.queue("p", "all", nil, flavorQuota{flavor: "a", nominal: 4})
			c.waits("x", "q", 0, 2, 4)
		}, want: map[string]string{"x": ""}},
		"preempts": {reason: "its priority is higher, and the one of least priority goes", cluster: func(c *Cluster) {
			c.queue("q", "", lowerPriority, flavorQuota{flavor: "a", nominal: 8})
			c.runs("low", "q", "a", 1, 1, 4)
			c.runs("lowest", "q", "a", 0, 1, 4)
			c.waits("x", "q", 2, 1, 4)
		}, want: map[string]string{"x": "a:1", "low": "a:1", "lowest": ""}, victims: []string{"lowest"}},
		"reclaims": {reason: "what was borrowed goes back", cluster: func(c *Cluster) {
			c.queue("q", "all", func(cq *kueue.ClusterQueue) {
				cq.Spec.Preemption.ReclaimWithinCohort = kueue.PreemptionPolicyAny
			}, flavorQuota{flavor: "a", nominal: 4})
			c.queue("p", "all", nil, flavorQuota{flavor: "a", nominal: 4})
			c.runs("r", "p", "a", 5, 2, 4)
			c.waits("x", "q", 0, 1, 4)
		}, want: map[string]string{"x": "a:1", "r": ""}, victims: []string{"r"}},
		"in order": {reason: "the older one gets the quota", cluster: func(c *Cluster) {
			c.queue("q", "", nil, flavorQuota{flavor: "a", nominal: 4})
			c.waits("x", "q", 0, 1, 4)
			c.waits("y", "q", 0, 1, 4)
		}, want: map[string]string{"x": "a:1", "y": ""}},
		"strictly in order": {reason: "the head doesn't fit", cluster: func(c *Cluster) {
			c.queue("q", "", func(cq *kueue.ClusterQueue) { cq.Spec.QueueingStrategy = kueue.StrictFIFO },
				flavorQuota{flavor: "a", nominal: 4})
			c.waits("x", "q", 0, 1, 5)
			c.waits("y", "q", 0, 1, 1)
		}, want: map[string]string{"x": "", "y": ""}},
		"nobody's": {reason: "its LocalQueue doesn't exist", cluster: func(c *Cluster) {
			c.queue("q", "", nil, flavorQuota{flavor: "a", nominal: 4})
			c.waits("x", "other", 0, 1, 1)
		}, want: map[string]string{"x": ""}},
		"no queues": {reason: "there is nothing to decide", cluster: func(c *Cluster) { c.waits("x", "q", 0, 1, 1) },
			want: map[string]string{"x": ""}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			cluster := newCluster()
			c.cluster(cluster)
			outcome, err := Settle(t.Context(), cluster, noon)
			if err != nil {
				t.Fatal(err)
			}
			for name, want := range c.want {
				if got := flavorsOf(outcome.Workload(named(name))); got != want {
					t.Errorf("%s: %s has %q, want %q: %s", c.reason, name, got, want, message(outcome.Workload(named(name))))
				}
			}
			var victims []string
			for _, p := range outcome.Preempted {
				victims = append(victims, p.Victim.Name)
				if p.By != "x" {
					t.Errorf("%s: %s was preempted by %q", c.reason, p.Victim.Name, p.By)
				}
			}
			if len(victims) != len(c.victims) || len(victims) > 0 && victims[0] != c.victims[0] {
				t.Errorf("%s: preempted %v, want %v", c.reason, victims, c.victims)
			}
		})
	}
}
