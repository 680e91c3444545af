package simulate

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/features"
)

// flavorsOn returns the flavors that an admission gives a resource, without repetitions.
func flavorsOn(admission *kueue.Admission, resource corev1.ResourceName) []string {
	var names []string
	for _, a := range ptr.Deref(admission, kueue.Admission{}).PodSetAssignments {
		if flavor := a.Flavors[resource]; flavor != "" {
			names = append(names, string(flavor))
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// describe puts an answer into one line.
func describe(a *Answer) string {
	parts := []string{string(a.Verdict)}
	if flavors := flavorsOn(a.Admission, gpu); len(flavors) > 0 {
		parts = append(parts, "on "+strings.Join(flavors, ","))
	}
	for _, v := range a.Victims {
		parts = append(parts, "preempts "+v.Name)
	}
	for _, k := range a.After {
		parts = append(parts, "after "+k.Name)
	}
	for _, k := range a.Ahead {
		parts = append(parts, "ahead "+k.Name)
	}
	for _, c := range a.Changes {
		if c.Nodes > 0 {
			parts = append(parts, fmt.Sprintf("or %d nodes", c.Nodes))
		}
		if c.Queue != "" {
			parts = append(parts, "or queue "+c.Queue)
		}
		if len(c.Selector) > 0 {
			parts = append(parts, "or without "+strings.Join(c.Selector, ","))
		}
	}
	return strings.Join(parts, "; ")
}

type askCase struct {
	reason  string
	cluster func(*Cluster)
	want    string
}

func TestAsk(t *testing.T) {
	cases := map[string]askCase{
		"runs": {"it has quota", func(c *Cluster) {
			c.queue("q", "", nil, flavorQuota{flavor: "a", nominal: 8})
			c.runs("x", "q", "a", 0, 2, 4)
		}, "Running; on a"},
		"now": {"there is room", func(c *Cluster) {
			c.queue("q", "", nil, flavorQuota{flavor: "a", nominal: 8})
			c.waits("x", "q", 0, 2, 4)
		}, "Admitted; on a"},
		"preempts": {"one of lower priority is in its way", func(c *Cluster) {
			c.queue("q", "", lowerPriority, flavorQuota{flavor: "a", nominal: 8})
			c.runs("low", "q", "a", 0, 2, 4)
			c.waits("x", "q", 1, 1, 4)
		}, "Preempts; on a; preempts low"},
		"waits": {"the first of two has to end", func(c *Cluster) {
			c.queue("q", "", nil, flavorQuota{flavor: "a", nominal: 8})
			c.runs("first", "q", "a", 0, 1, 4)
			c.runs("second", "q", "a", 0, 1, 4)
			c.waits("x", "q", 0, 1, 4)
		}, "Waits; on a; after first"},
		"waits for a larger one": {"the small one's end doesn't help", func(c *Cluster) {
			c.queue("q", "", nil, flavorQuota{flavor: "a", nominal: 8})
			c.runs("small", "q", "a", 0, 1, 1)
			c.runs("large", "q", "a", 0, 1, 7)
			c.waits("x", "q", 0, 7, 1)
		}, "Waits; on a; after large"},
		"waits behind another": {"the older one is admitted first", func(c *Cluster) {
			c.queue("q", "", nil, flavorQuota{flavor: "a", nominal: 4})
			c.runs("running", "q", "a", 0, 1, 4)
			c.waits("older", "q", 0, 1, 4)
			c.waits("x", "q", 0, 1, 4)
		}, "Waits; on a; after running; after older; ahead older"},
		"stuck": {"the head of a strict queue never fits", func(c *Cluster) {
			c.queue("q", "", func(cq *kueue.ClusterQueue) { cq.Spec.QueueingStrategy = kueue.StrictFIFO },
				flavorQuota{flavor: "a", nominal: 4})
			c.waits("head", "q", 0, 1, 8)
			c.waits("x", "q", 0, 1, 4)
		}, "Stuck; ahead head"},
		"fewer nodes": {"five of eight fit now", func(c *Cluster) {
			c.queue("q", "", nil, flavorQuota{flavor: "a", nominal: 8})
			c.runs("running", "q", "a", 0, 1, 3)
			c.waits("x", "q", 0, 8, 1)
		}, "Waits; on a; after running; or 5 nodes"},
		"never": {"there is not so much, even for one node", func(c *Cluster) {
			c.queue("q", "", nil, flavorQuota{flavor: "a", nominal: 4})
			c.waits("x", "q", 0, 1, 8)
		}, "Never"},
		"never as many": {"two of four would fit an empty cluster", func(c *Cluster) {
			c.queue("q", "", nil, flavorQuota{flavor: "a", nominal: 8})
			c.runs("running", "q", "a", 0, 1, 8)
			c.waits("x", "q", 0, 4, 4)
		}, "Never; or 2 nodes"},
		"another queue": {"it has the flavor, and room", func(c *Cluster) {
			c.queue("q", "", nil, flavorQuota{flavor: "a", nominal: 4})
			c.queue("r", "", nil, flavorQuota{flavor: "b", nominal: 8})
			c.waits("x", "q", 0, 1, 8)
		}, "Never; or queue r"},
		"another flavor": {"its selector asks for one that the queue doesn't have", func(c *Cluster) {
			c.queue("q", "", nil, flavorQuota{flavor: "a", nominal: 8})
			wl := c.waits("x", "q", 0, 1, 8)
			wl.Spec.PodSets[0].Template.Spec.NodeSelector = map[string]string{"gpu": "h100"}
		}, "Never; or without gpu"},
		"other cohorts don't matter": {"they lend it nothing", func(c *Cluster) {
			c.queue("q", "one", nil, flavorQuota{flavor: "a", nominal: 4})
			c.queue("p", "one", nil, flavorQuota{flavor: "a", nominal: 4})
			c.runs("borrows", "p", "a", 0, 2, 4)
			c.waits("x", "q", 0, 1, 4)
		}, "Waits; on a; after borrows"},
	}
	stop := func(c *Cluster) { c.LocalQueues[0].Spec.StopPolicy = ptr.To(kueue.Hold) }
	maps.Copy(cases, map[string]askCase{
		"no queue": {"nobody queues it", func(c *Cluster) { c.waits("x", "q", 0, 1, 4) },
			"Never: LocalQueue q doesn't exist"},
		"a stopped queue": {"Kueue takes nothing from it", func(c *Cluster) {
			c.queue("q", "", nil, flavorQuota{flavor: "a", nominal: 8})
			c.waits("x", "q", 0, 1, 4)
			stop(c)
		}, "Never: LocalQueue q is stopped (spec.stopPolicy: Hold)"},
		"others of a stopped queue": {"they aren't before it", func(c *Cluster) {
			c.queue("q", "", nil, flavorQuota{flavor: "a", nominal: 4})
			c.waits("older", "q", 0, 1, 4)
			c.queue("r", "", nil)
			c.LocalQueues[1].Spec.ClusterQueue = "q"
			c.waits("x", "r", 0, 1, 4)
			stop(c)
		}, "Admitted; on a"},
		"no ClusterQueue": {"its LocalQueue leads nowhere", func(c *Cluster) {
			c.queue("q", "", nil, flavorQuota{flavor: "a", nominal: 8})
			c.LocalQueues[0].Spec.ClusterQueue = "gone"
			c.waits("x", "q", 0, 1, 4)
		}, "Never: ClusterQueue gone of LocalQueue q doesn't exist"},
		"a queue that is gone": {"what runs holds its quota", func(c *Cluster) {
			c.queue("q", "", nil, flavorQuota{flavor: "a", nominal: 8})
			c.runs("running", "q", "a", 0, 2, 4).Spec.QueueName = "gone"
			c.waits("x", "q", 0, 2, 4)
		}, "Waits; on a; after running"},
	})
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			cluster := newCluster()
			c.cluster(cluster)
			answer, err := Ask(t.Context(), cluster, named("x"), nil, noon.Add(time.Hour))
			if err != nil {
				t.Fatal(err)
			}
			if want, says, _ := strings.Cut(c.want, ": "); describe(answer) != want || says != "" && answer.Message != says {
				got := describe(answer)
				t.Errorf("%s: got %q, want %q; Kueue says %q", c.reason, got, c.want, answer.Message)
			}
		})
	}
	if _, err := Ask(t.Context(), newCluster(), named("y"), nil, noon); err == nil {
		t.Error("nobody knows that Workload")
	}
}

// TestClaims holds that a Workload with a resource claim hangs nobody.
func TestClaims(t *testing.T) {
	features.SetFeatureGateDuringTest(t, features.KueueDRAIntegration, true)
	cluster := newCluster()
	cluster.queue("q", "", nil, flavorQuota{flavor: "a", nominal: 8})
	claims := cluster.waits("claims", "q", 0, 1, 4)
	claims.Spec.PodSets[0].Template.Spec.ResourceClaims = []corev1.PodResourceClaim{
		{Name: "gpu", ResourceClaimTemplateName: ptr.To("gpu")}}
	cluster.waits("x", "q", 0, 1, 4)
	answer, err := Ask(t.Context(), cluster, named("x"), nil, noon)
	if err != nil || describe(answer) != "Admitted; on a" {
		t.Errorf("another: got %v, %v", answer, err)
	}
	answer, err = Ask(t.Context(), cluster, named("claims"), nil, noon)
	if err != nil || answer.Message != "What its resource claims count isn't simulated" {
		t.Errorf("it says what isn't known: got %v, %v", answer, err)
	}
}

// TestTopologyOfOthers holds that what other ClusterQueues have placed on the nodes of a topology counts.
func TestTopologyOfOthers(t *testing.T) {
	cluster := newCluster()
	cluster.queue("q", "", nil, flavorQuota{flavor: "a", nominal: 8})
	cluster.queue("other", "", nil, flavorQuota{flavor: "a", nominal: 8})
	cluster.queue("apart", "", nil, flavorQuota{flavor: "b", nominal: 8})
	cluster.Flavors[0].Spec.TopologyName = ptr.To(kueue.TopologyReference("racks"))
	for i := 1; i < 3; i++ {
		cluster.LocalQueues[i].Namespace = "others"
	}
	for _, queue := range []string{"other", "apart"} {
		cluster.runs("in-"+queue, queue, "a", 0, 1, 4).Namespace = "others"
	}
	part := cluster.Concerning(cluster.waits("x", "q", 0, 1, 4))
	if len(part.ClusterQueues) != 2 || len(part.Workloads) != 2 || part.Workloads[0].Name != "in-other" {
		t.Errorf("got %d ClusterQueues, %d Workloads", len(part.ClusterQueues), len(part.Workloads))
	}
}

// fixed are lengths by name.
type fixed map[string]time.Duration

func (f fixed) end(wl *kueue.Workload, since time.Time) time.Time { return since.Add(f[wl.Name]) }

func TestUntil(t *testing.T) {
	cluster := newCluster()
	cluster.queue("q", "", nil, flavorQuota{flavor: "a", nominal: 8})
	cluster.runs("long", "q", "a", 0, 1, 4)
	cluster.runs("short", "q", "a", 0, 1, 4)
	cluster.waits("next", "q", 0, 1, 4)
	cluster.waits("x", "q", 0, 2, 4)
	f, err := Until(t.Context(), cluster, named("x"),
		fixed{"long": 90 * time.Minute, "short": time.Hour, "next": 20 * time.Minute}.end, noon.Add(30*time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	// short ends at 13:00, next runs from then until 13:20, long ends at 13:30.
	if want := noon.Add(90 * time.Minute); !f.At.Equal(want) {
		t.Errorf("got %v, want %v", f.At, want)
	}
	var ended []string
	for _, k := range f.Ended {
		ended = append(ended, k.Name)
	}
	if want := []string{"short", "next", "long"}; !slices.Equal(ended, want) {
		t.Errorf("ended %v, want %v", ended, want)
	}
}

// TestUntilReadmitted holds that a preempted Workload which gets quota elsewhere at once runs again from its start.
func TestUntilReadmitted(t *testing.T) {
	cluster := newCluster()
	cluster.queue("q", "", func(cq *kueue.ClusterQueue) {
		lowerPriority(cq)
		cq.Spec.FlavorFungibility.WhenCanPreempt = kueue.MayStopSearch
	}, flavorQuota{flavor: "a", nominal: 4}, flavorQuota{flavor: "b", nominal: 4})
	on := func(wl *kueue.Workload, flavor string) {
		wl.Spec.PodSets[0].Template.Spec.NodeSelector = map[string]string{"gpu": flavor}
	}
	cluster.runs("moved", "q", "a", 0, 1, 4)
	on(cluster.waits("urgent", "q", 5, 1, 4), "a")
	on(cluster.waits("x", "q", 0, 1, 4), "b")
	f, err := Until(t.Context(), cluster, named("x"), fixed{"moved": time.Hour, "urgent": 9 * time.Hour}.end,
		noon.Add(30*time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	if want := noon.Add(90 * time.Minute); !f.At.Equal(want) {
		t.Errorf("got %v, want %v: it waits for %v", f.At, want, f.Ended)
	}
}

// TestDecide holds what a decision has beside its verdict: the quota, and whom a ClusterQueue doesn't preempt.
func TestDecide(t *testing.T) {
	cluster := newCluster()
	cluster.queue("q", "all", nil, flavorQuota{flavor: "a", nominal: 8, borrow: ptr.To(2)},
		flavorQuota{flavor: "b", nominal: 4})
	cluster.queue("p", "all", nil, flavorQuota{flavor: "a", nominal: 4})
	cluster.runs("low", "q", "a", 0, 2, 4)
	x := cluster.waits("x", "q", 5, 1, 4)
	x.Spec.PodSets[0].Template.Spec.NodeSelector = map[string]string{"gpu": "a"}
	d, err := Decide(t.Context(), cluster, named("x"), noon)
	if err != nil {
		t.Fatal(err)
	}
	if d.Verdict != Waits || d.Behind || len(d.Lower) != 1 || d.Lower[0].Name != "low" || len(d.Quota) != 2 {
		t.Fatalf("got %+v", d)
	}
	a, b := d.Quota[0], d.Quota[1]
	if a.Needed.String() != "4" || a.Free.String() != "2" || a.Short.String() != "2" || a.Nominal.String() != "8" ||
		a.Most.String() != "10" || !a.Limited || a.Unsuitable != "" || len(a.Holders) != 1 || a.Holders[0].Name != "low" {
		t.Errorf("got %+v", a)
	}
	if b.Unsuitable != "flavor b doesn't match node affinity" {
		t.Errorf("got %+v", b)
	}
	for message, change := range map[string]func(*kueue.Workload){
		"LocalQueue other doesn't exist":                 func(wl *kueue.Workload) { wl.Spec.QueueName = "other" },
		"Workload x is deactivated (spec.active: false)": func(wl *kueue.Workload) { wl.Spec.Active = ptr.To(false) },
		"Workload x is on hold: stopped": func(wl *kueue.Workload) {
			wl.Status.Conditions = []metav1.Condition{{Type: kueue.WorkloadQuotaReserved, Status: metav1.ConditionFalse,
				Reason: kueue.WorkloadOnHold, Message: "stopped"}}
		},
	} {
		changed := x.DeepCopy()
		change(changed)
		d, err := Decide(t.Context(), cluster.Put(changed), named("x"), noon)
		if err != nil || d.Verdict != Never || d.Message != message {
			t.Errorf("got %+v, %v, want %q", d, err, message)
		}
	}
	if d, err := Decide(t.Context(), cluster, named("low"), noon); err != nil || d.Verdict != Running {
		t.Errorf("got %+v, %v", d, err)
	}
	if _, err := Decide(t.Context(), cluster, named("y"), noon); err == nil {
		t.Error("nobody knows that Workload")
	}
}

// TestFlavorsInTurn holds that one which is considered for each flavor in turn, and gets none, is in nobody's way.
func TestFlavorsInTurn(t *testing.T) {
	cluster := newCluster()
	cluster.queue("q", "", nil, flavorQuota{flavor: "a", nominal: 8}, flavorQuota{flavor: "b", nominal: 4},
		flavorQuota{flavor: "c", nominal: 8})
	two := cluster.waits("two", "q", 0, 1, 3)
	second := *two.Spec.PodSets[0].DeepCopy()
	second.Name, second.Count = "second", 9
	two.Spec.PodSets = append(two.Spec.PodSets, second)
	cluster.waits("x", "q", 0, 1, 3)
	answer, err := Ask(t.Context(), cluster, named("x"), nil, noon)
	if err != nil || describe(answer) != "Admitted; on a" {
		t.Errorf("got %v, %v", describe(answer), err)
	}
}
