package simulate

import (
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/workload"
)

const (
	team = "team"
	gpu  = corev1.ResourceName("nvidia.com/gpu")
)

var noon = time.Date(2026, 11, 25, 12, 0, 0, 0, time.UTC)

// flavorQuota is how many GPUs of a flavor a ClusterQueue has.
type flavorQuota struct {
	flavor         string
	nominal        int
	borrow, lendMs *int
}

// newCluster returns a cluster of a namespace with no queues.
func newCluster() *Cluster {
	return &Cluster{Surroundings: Surroundings{
		Namespaces: []corev1.Namespace{{ObjectMeta: metav1.ObjectMeta{Name: team}}},
	}}
}

// queue adds a ClusterQueue with a LocalQueue of the same name.
func (c *Cluster) queue(name, cohort string, change func(*kueue.ClusterQueue), quotas ...flavorQuota) {
	cq := kueue.ClusterQueue{ObjectMeta: metav1.ObjectMeta{Name: name}}
	cq.Spec.CohortName = kueue.CohortReference(cohort)
	cq.Spec.NamespaceSelector = &metav1.LabelSelector{}
	cq.Spec.QueueingStrategy = kueue.BestEffortFIFO
	cq.Spec.Preemption = &kueue.ClusterQueuePreemption{
		WithinClusterQueue: kueue.PreemptionPolicyNever, ReclaimWithinCohort: kueue.PreemptionPolicyNever,
		BorrowWithinCohort: &kueue.BorrowWithinCohort{Policy: kueue.BorrowWithinCohortPolicyNever},
	}
	cq.Spec.FlavorFungibility = &kueue.FlavorFungibility{
		WhenCanBorrow: kueue.MayStopSearch, WhenCanPreempt: kueue.TryNextFlavor,
	}
	group := kueue.ResourceGroup{CoveredResources: []corev1.ResourceName{gpu}}
	for _, q := range quotas {
		rq := kueue.ResourceQuota{Name: gpu, NominalQuota: *resource.NewQuantity(int64(q.nominal), resource.DecimalSI)}
		if q.borrow != nil {
			rq.BorrowingLimit = resource.NewQuantity(int64(*q.borrow), resource.DecimalSI)
		}
		group.Flavors = append(group.Flavors, kueue.FlavorQuotas{
			Name: kueue.ResourceFlavorReference(q.flavor), Resources: []kueue.ResourceQuota{rq},
		})
		c.flavor(q.flavor)
	}
	cq.Spec.ResourceGroups = []kueue.ResourceGroup{group}
	if change != nil {
		change(&cq)
	}
	c.ClusterQueues = append(c.ClusterQueues, cq)
	lq := kueue.LocalQueue{ObjectMeta: metav1.ObjectMeta{Namespace: team, Name: name}}
	lq.Spec.ClusterQueue = kueue.ClusterQueueReference(name)
	c.LocalQueues = append(c.LocalQueues, lq)
}

func (c *Cluster) flavor(name string) {
	for _, f := range c.Flavors {
		if f.Name == name {
			return
		}
	}
	c.Flavors = append(c.Flavors, kueue.ResourceFlavor{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       kueue.ResourceFlavorSpec{NodeLabels: map[string]string{"gpu": name}},
	})
}

// waits adds a Workload that waits: so many pods of so many GPUs each. Each waits since a second after the one before.
func (c *Cluster) waits(name, queue string, priority int32, pods int32, gpus int64) *kueue.Workload {
	wl := kueue.Workload{ObjectMeta: metav1.ObjectMeta{
		Namespace: team, Name: name, UID: types.UID(name),
		CreationTimestamp: metav1.NewTime(noon.Add(time.Duration(len(c.Workloads)) * time.Second)),
	}}
	wl.Spec.QueueName, wl.Spec.Priority = kueue.LocalQueueName(queue), &priority
	wl.Spec.Active = ptr.To(true)
	wl.Spec.PodSets = []kueue.PodSet{{Name: "node", Count: pods, Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
		Containers: []corev1.Container{{Name: "node", Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{gpu: *resource.NewQuantity(gpus, resource.DecimalSI)},
		}}},
	}}}}
	c.Workloads = append(c.Workloads, wl)
	return &c.Workloads[len(c.Workloads)-1]
}

// runs adds a Workload that has quota of a flavor.
func (c *Cluster) runs(name, queue, flavor string, priority int32, pods int32, gpus int64) *kueue.Workload {
	wl := c.waits(name, queue, priority, pods, gpus)
	usage := *resource.NewQuantity(int64(pods)*gpus, resource.DecimalSI)
	workload.SetQuotaReservation(wl, &kueue.Admission{
		ClusterQueue: kueue.ClusterQueueReference(queue),
		PodSetAssignments: []kueue.PodSetAssignment{{
			Name: "node", Count: &pods, ResourceUsage: corev1.ResourceList{gpu: usage},
			Flavors: map[corev1.ResourceName]kueue.ResourceFlavorReference{gpu: kueue.ResourceFlavorReference(flavor)},
		}},
	}, clocktesting.NewFakeClock(noon))
	workload.SyncAdmittedCondition(wl, noon)
	return wl
}

// flavorsOf describes the flavors that a Workload holds.
func flavorsOf(wl *kueue.Workload) string {
	if wl == nil || !holdsQuota(wl) {
		return ""
	}
	a := wl.Status.Admission.PodSetAssignments[0]
	return fmt.Sprintf("%s:%d", a.Flavors[gpu], *a.Count)
}

// TestUntilAheadOnce holds that one which gets quota twice before the Workload, because it was preempted in between,
// precedes it once.
func TestUntilAheadOnce(t *testing.T) {
	cluster := newCluster()
	cluster.queue("q", "", lowerPriority, flavorQuota{flavor: "a", nominal: 8})
	cluster.runs("short", "q", "a", 5, 1, 4)
	cluster.runs("long", "q", "a", 5, 1, 4)
	cluster.waits("urgent", "q", 5, 2, 4)
	cluster.waits("next", "q", 0, 1, 4)
	cluster.waits("x", "q", 0, 2, 4)
	f, err := Until(t.Context(), cluster, named("x"), fixed{
		"short": time.Hour, "long": 2 * time.Hour, "urgent": time.Hour, "next": 9 * time.Hour,
	}.end, noon.Add(30*time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	// next gets the quota of short, urgent takes it when long has ended, and next gets it again when urgent has.
	if want := []types.NamespacedName{named("next"), named("urgent")}; !slices.Equal(f.Ahead, want) {
		t.Errorf("got %v, want %v", f.Ahead, want)
	}
}
