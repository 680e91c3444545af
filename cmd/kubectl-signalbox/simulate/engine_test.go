package simulate

import (
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	featuregatetesting "k8s.io/component-base/featuregate/testing"
	"k8s.io/utils/ptr"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/features"

	"github.com/signalbox-dev/signalbox/admission/boost"
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

// TestBoosts holds that a boost of Signalbox's ends in a simulation where Signalbox ends it: with the quota, and with
// the minimum runtime. One of others stays.
func TestBoosts(t *testing.T) {
	featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, features.PriorityBoost, true)
	boosted := func(wl *kueue.Workload, until time.Time) {
		mark := boost.Mark{Value: boost.Highest, Written: noon, Until: until}
		wl.Annotations = map[string]string{boost.Annotation: mark.Text(), boost.MarkAnnotation: mark.String()}
	}
	for name, c := range map[string]struct {
		cluster func(*Cluster)
		victims []string
	}{
		"one that is preempted doesn't preempt its equal": {cluster: func(c *Cluster) {
			c.queue("q", "", lowerPriority, flavorQuota{flavor: "a", nominal: 4}, flavorQuota{flavor: "b", nominal: 4})
			c.runs("peer", "q", "b", 10, 1, 4)
			boosted(c.runs("victim", "q", "a", 10, 1, 4), noon.Add(time.Hour))
			urgent := c.waits("urgent", "q", 100, 1, 4)
			urgent.Spec.PodSets[0].Template.Spec.NodeSelector = map[string]string{"gpu": "a"}
		}, victims: []string{"victim"}},
		"one that a change queues again doesn't preempt its equal": {cluster: func(c *Cluster) {
			c.queue("q", "", lowerPriority, flavorQuota{flavor: "a", nominal: 4})
			c.runs("peer", "q", "a", 10, 1, 4)
			boosted(c.waits("x", "q", 10, 1, 4), noon.Add(time.Hour))
		}},
		"one within its minimum runtime isn't preempted for an equal": {cluster: func(c *Cluster) {
			c.queue("q", "", lowerPriority, flavorQuota{flavor: "a", nominal: 4})
			boosted(c.runs("first", "q", "a", 10, 1, 4), noon.Add(time.Hour))
			c.waits("x", "q", 12, 1, 4)
		}},
		"one whose minimum runtime is over is": {cluster: func(c *Cluster) {
			c.queue("q", "", lowerPriority, flavorQuota{flavor: "a", nominal: 4})
			boosted(c.runs("first", "q", "a", 10, 1, 4), noon)
			c.waits("x", "q", 12, 1, 4)
		}, victims: []string{"first"}},
		"others' stays": {cluster: func(c *Cluster) {
			c.queue("q", "", lowerPriority, flavorQuota{flavor: "a", nominal: 4})
			c.runs("first", "q", "a", 10, 1, 4)
			c.waits("x", "q", 10, 1, 4).Annotations = map[string]string{boost.Annotation: "1"}
		}, victims: []string{"first"}},
	} {
		t.Run(name, func(t *testing.T) {
			cluster := newCluster()
			c.cluster(cluster)
			outcome, err := Settle(t.Context(), cluster, noon)
			if err != nil {
				t.Fatal(err)
			}
			var victims []string
			for _, p := range outcome.Preempted {
				victims = append(victims, p.Victim.Name)
			}
			slices.Sort(victims)
			if !slices.Equal(victims, c.victims) {
				t.Errorf("preempted %v, want %v", victims, c.victims)
			}
		})
	}
}

// TestUseGates holds that simulations run with the gates of the cluster's Kueue, and that a gate of another release of
// Kueue is named and changes nothing.
func TestUseGates(t *testing.T) {
	gate := utilfeature.DefaultFeatureGate
	featuregatetesting.SetFeatureGateDuringTest(t, gate, features.PartialAdmission, true) // restores it at the end
	unknown, err := UseGates(map[string]bool{string(features.PartialAdmission): false, "Later": true, "Earlier": false})
	if err != nil || !slices.Equal(unknown, []string{"Earlier", "Later"}) || features.Enabled(features.PartialAdmission) {
		t.Errorf("UseGates: %v, %v, PartialAdmission %v", unknown, err, features.Enabled(features.PartialAdmission))
	}
	if unknown, err := UseGates(nil); len(unknown) > 0 || err != nil {
		t.Errorf("no gates: %v, %v", unknown, err)
	}
	for name, spec := range utilfeature.DefaultMutableFeatureGate.GetAll() {
		if spec.LockToDefault && spec.Default {
			if _, err := UseGates(map[string]bool{string(name): false}); err == nil {
				t.Errorf("gate %s can't be off, and no error says so", name)
			}
			return
		}
	}
	t.Error("no gate is locked to its default: try an invalid value otherwise")
}

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
