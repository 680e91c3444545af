package simulate

import (
	"os"
	"strings"
	"testing"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/workload"
	"sigs.k8s.io/kueue/pkg/workloadslicing"

	"github.com/signalbox-dev/signalbox/admission/grow"
)

// slice is one that would replace "old", with so many pods of four GPUs each.
func (c *Cluster) slice(priority, pods int32) *kueue.Workload {
	wl := c.waits("new", "q", priority, pods, 4)
	old := workload.Key(c.Workload(named("old")))
	wl.Annotations = map[string]string{workloadslicing.WorkloadSliceReplacementFor: string(old)}
	other := wl.DeepCopy()
	c.Workloads = c.Workloads[:len(c.Workloads)-1]
	return other
}

// TestMost holds how many pods a Workload gets that replaces another: by the quota that nobody uses or gets before it,
// and by nobody's preemption.
func TestMost(t *testing.T) {
	for name, c := range map[string]struct {
		reason      string
		cluster     func(*Cluster)
		priority    int32
		least, want int32
	}{
		"all": {"what it replaces counts for it", func(c *Cluster) {
			c.queue("q", "", nil, flavorQuota{flavor: "a", nominal: 32})
			c.runs("old", "q", "a", 0, 2, 4)
		}, 0, 3, 8},
		"some": {"five pods fit", func(c *Cluster) {
			c.queue("q", "", nil, flavorQuota{flavor: "a", nominal: 22})
			c.runs("old", "q", "a", 0, 2, 4)
		}, 0, 3, 5},
		"too few": {"five pods fit, which are not worth it", func(c *Cluster) {
			c.queue("q", "", nil, flavorQuota{flavor: "a", nominal: 22})
			c.runs("old", "q", "a", 0, 2, 4)
		}, 0, 6, 0},
		"others wait": {"one in front of it gets the room", func(c *Cluster) {
			c.queue("q", "", nil, flavorQuota{flavor: "a", nominal: 32})
			c.runs("old", "q", "a", 0, 2, 4)
			c.waits("x", "q", 0, 4, 4)
		}, 0, 3, 4},
		"the head doesn't fit": {"nobody passes it", func(c *Cluster) {
			c.queue("q", "", func(cq *kueue.ClusterQueue) { cq.Spec.QueueingStrategy = kueue.StrictFIFO },
				flavorQuota{flavor: "a", nominal: 32})
			c.runs("old", "q", "a", 0, 2, 4)
			c.waits("x", "q", 0, 7, 4)
		}, 0, 3, 0},
		"preempts nobody": {"one of lower priority would be in its way", func(c *Cluster) {
			c.queue("q", "", lowerPriority, flavorQuota{flavor: "a", nominal: 32})
			c.runs("old", "q", "a", 1, 2, 4)
			c.runs("x", "q", "a", 0, 3, 4)
		}, 1, 3, 5},
		"another flavor": {"the room is not where it runs", func(c *Cluster) {
			c.queue("q", "", nil, flavorQuota{flavor: "a", nominal: 12}, flavorQuota{flavor: "b", nominal: 32})
			c.runs("old", "q", "a", 0, 2, 4)
		}, 0, 3, 3},
		"is about to be preempted": {"what it replaces loses its quota", func(c *Cluster) {
			c.queue("q", "", lowerPriority, flavorQuota{flavor: "a", nominal: 32})
			c.runs("old", "q", "a", 0, 2, 4)
			c.waits("x", "q", 5, 8, 4)
		}, 0, 3, 0},
		"no queue": {"its LocalQueue leads nowhere", func(c *Cluster) {
			c.queue("p", "", nil, flavorQuota{flavor: "a", nominal: 32})
			c.runs("old", "p", "a", 0, 2, 4)
		}, 0, 3, 0},
	} {
		t.Run(name, func(t *testing.T) {
			cluster := newCluster()
			c.cluster(cluster)
			slice := cluster.slice(c.priority, 8)
			got, err := Most(t.Context(), cluster, Growth{slice, "node", c.least, named("old")}, noon)
			if err != nil || got != c.want {
				t.Errorf("%s: got %d, %v; want %d", c.reason, got, err, c.want)
			}
		})
	}
}

// TestSliceInCohort holds the fault of Kueue's for which nothing grows in a cohort: it admits a slice and a Workload of
// another ClusterQueue in one cycle, although there is quota for one of them. If it fails, TrainJobs may grow there.
func TestSliceInCohort(t *testing.T) {
	cluster := newCluster()
	cluster.queue("q", "all", nil, flavorQuota{flavor: "a", nominal: 8})
	cluster.queue("p", "all", nil, flavorQuota{flavor: "a", nominal: 8})
	cluster.runs("old", "q", "a", 0, 2, 4)
	slice := cluster.slice(0, 4)
	cluster.waits("x", "p", 0, 2, 4)
	settled, err := Settle(t.Context(), cluster.Put(slice), noon)
	if err != nil {
		t.Fatal(err)
	}
	if !holdsQuota(settled.Workload(named("new"))) || !holdsQuota(settled.Workload(named("x"))) {
		t.Error("sixteen are there, and Kueue gives out no more")
	}
}

// TestSlicePreempts holds by what the chart's policy "grow" recognizes a preemption for a slice: its message.
func TestSlicePreempts(t *testing.T) {
	cluster := newCluster()
	cluster.queue("q", "", lowerPriority, flavorQuota{flavor: "a", nominal: 32})
	cluster.runs("old", "q", "a", 1, 2, 4)
	cluster.runs("x", "q", "a", 0, 6, 4)
	old := cluster.Workload(named("old"))
	old.OwnerReferences = []metav1.OwnerReference{{Kind: "TrainJob", Name: "job", UID: "job", Controller: ptr.To(true)}}
	slice := grow.Want{PodSet: "node", Have: 2, Least: 3, Most: 8}.Slice(old, 8, 2)
	slice.Name, slice.UID = "new", "new"
	settled, err := Settle(t.Context(), cluster.Put(slice), noon)
	if err != nil {
		t.Fatal(err)
	}
	c := apimeta.FindStatusCondition(settled.Workload(named("x")).Status.Conditions, kueue.WorkloadEvicted)
	policy, err := os.ReadFile("../../../charts/signalbox/templates/policies.yaml")
	if err != nil {
		t.Fatal(err)
	}
	const mark = ", JobUID: grows-"
	if c == nil || c.Reason != kueue.WorkloadEvictedByPreemption || !strings.Contains(c.Message, mark+"job)") ||
		!strings.Contains(string(policy), "c.reason == 'Preempted' && c.message.contains('"+mark+"')") {
		t.Errorf("Kueue writes %+v", c)
	}
}
