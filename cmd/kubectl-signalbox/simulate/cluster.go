package simulate

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueueconfig "sigs.k8s.io/kueue/apis/config/v1beta2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/dra"
	utilqueue "sigs.k8s.io/kueue/pkg/util/queue"
	utilslices "sigs.k8s.io/kueue/pkg/util/slices"
	"sigs.k8s.io/kueue/pkg/workload"
	workloadevict "sigs.k8s.io/kueue/pkg/workload/evict"
	workloadfinish "sigs.k8s.io/kueue/pkg/workload/finish"
)

// Cluster is all that Kueue's scheduler decides on.
type Cluster struct {
	Surroundings
	ClusterQueues   []kueue.ClusterQueue
	LocalQueues     []kueue.LocalQueue
	Cohorts         []kueue.Cohort
	Flavors         []kueue.ResourceFlavor
	Topologies      []kueue.Topology
	AdmissionChecks []kueue.AdmissionCheck
	Workloads       []kueue.Workload
	// Config is Kueue's configuration; nil for its defaults.
	Config *kueueconfig.Configuration
}

// Surroundings are the objects that are not Kueue's.
type Surroundings struct {
	Namespaces     []corev1.Namespace
	LimitRanges    []corev1.LimitRange
	RuntimeClasses []nodev1.RuntimeClass
	// Nodes and Pods matter only to flavors with a topology. Pods are those that Kueue doesn't manage.
	Nodes []corev1.Node
	Pods  []corev1.Pod
}

// keyOf returns the name of an object.
func keyOf(o client.Object) types.NamespacedName { return client.ObjectKeyFromObject(o) }

// holders returns the names of the Workloads that hold quota.
func (c *Cluster) holders() []types.NamespacedName {
	var names []types.NamespacedName
	for i := range c.Workloads {
		if wl := &c.Workloads[i]; holdsQuota(wl) {
			names = append(names, keyOf(wl))
		}
	}
	return names
}

// Workload returns a Workload of the cluster; nil if there is none of the name.
func (c *Cluster) Workload(key types.NamespacedName) *kueue.Workload {
	for i := range c.Workloads {
		if keyOf(&c.Workloads[i]) == key {
			return &c.Workloads[i]
		}
	}
	return nil
}

// With returns the cluster with other Workloads. Everything else is shared.
func (c *Cluster) With(workloads []kueue.Workload) *Cluster {
	other := *c
	other.Workloads = workloads
	return &other
}

// Ordering returns Kueue's order of Workloads of one priority: by creation, or by the last eviction for another reason
// than preemption.
func (c *Cluster) Ordering() workload.Ordering {
	by := kueueconfig.EvictionTimestamp
	if c.Config != nil && c.Config.WaitForPodsReady != nil && c.Config.WaitForPodsReady.RequeuingStrategy != nil {
		by = ptr.Deref(c.Config.WaitForPodsReady.RequeuingStrategy.Timestamp, by)
	}
	return workload.Ordering{PodsReadyRequeuingTimestamp: by}
}

// holdsQuota reports whether a Workload that has not finished holds quota.
func holdsQuota(wl *kueue.Workload) bool {
	return workload.HasQuotaReservation(wl) && !workloadfinish.IsFinished(wl)
}

// message returns what Kueue says of a Workload that waits.
func message(wl *kueue.Workload) string {
	if c := apimeta.FindStatusCondition(wl.Status.Conditions, kueue.WorkloadQuotaReserved); c != nil {
		return c.Message
	}
	return ""
}

// without returns the cluster when some Workloads have ended.
func (c *Cluster) without(ended []types.NamespacedName) *Cluster {
	return c.With(utilslices.Pick(c.Workloads, func(wl *kueue.Workload) bool {
		return !slices.Contains(ended, keyOf(wl))
	}))
}

// stopped reports whether a LocalQueue takes no Workloads.
func stopped(lq *kueue.LocalQueue) bool {
	return ptr.Deref(lq.Spec.StopPolicy, kueue.None) != kueue.None
}

// unqueued returns why a Workload isn't considered at all; "" if it is.
func (c *Cluster) unqueued(wl *kueue.Workload) string {
	lq, cq := c.localQueueOf(wl), c.clusterQueueOf(wl)
	switch {
	case lq == nil:
		return fmt.Sprintf("LocalQueue %s doesn't exist", wl.Spec.QueueName)
	case stopped(lq):
		return fmt.Sprintf("LocalQueue %s is stopped (spec.stopPolicy: %s)", lq.Name, *lq.Spec.StopPolicy)
	case cq == nil:
		return fmt.Sprintf("ClusterQueue %s of LocalQueue %s doesn't exist", lq.Spec.ClusterQueue, lq.Name)
	case c.circular(cq.Spec.CohortName):
		return fmt.Sprintf("ClusterQueue %s is inactive: the parents of Cohort %s form a circle", cq.Name,
			cq.Spec.CohortName)
	case !workload.IsActive(wl):
		return fmt.Sprintf("Workload %s is deactivated (spec.active: false)", wl.Name)
	case workload.IsOnHold(wl):
		return fmt.Sprintf("Workload %s is on hold: %s", wl.Name, message(wl))
	case dra.NeedsDRAReconcile(wl, nil):
		return "What its resource claims count isn't simulated"
	}
	return ""
}

// Concerning returns the part of the cluster that decides about a Workload: the ClusterQueues of its namespace's
// LocalQueues, which it could use instead of its own. To them belong those of their cohort trees, and those that place
// pods on the same nodes by a topology.
func (c *Cluster) Concerning(wl *kueue.Workload) *Cluster {
	names := sets.New[kueue.ClusterQueueReference]()
	for i := range c.LocalQueues {
		if lq := &c.LocalQueues[i]; lq.Namespace == wl.Namespace {
			names.Insert(lq.Spec.ClusterQueue)
		}
	}
	return c.partOf(wl, names)
}

// partOf returns the part of the cluster that decides about a Workload, if it is in one of the ClusterQueues; wl may be
// nil. It adds to the names those that belong to them.
func (c *Cluster) partOf(wl *kueue.Workload, names sets.Set[kueue.ClusterQueueReference]) *Cluster {
	for before := -1; before != len(names); {
		before = len(names)
		c.addRelated(names)
	}
	part := *c
	part.ClusterQueues = utilslices.Pick(c.ClusterQueues, func(cq *kueue.ClusterQueue) bool {
		return names.Has(kueue.ClusterQueueReference(cq.Name))
	})
	part.LocalQueues = utilslices.Pick(c.LocalQueues, func(lq *kueue.LocalQueue) bool {
		return names.Has(lq.Spec.ClusterQueue)
	})
	queues := utilslices.ToRefMap(part.LocalQueues, utilqueue.Key)
	part.Workloads = utilslices.Pick(c.Workloads, func(other *kueue.Workload) bool {
		if other.Status.Admission != nil && names.Has(other.Status.Admission.ClusterQueue) {
			return true // it holds quota there, wherever its LocalQueue leads now
		}
		return queues[utilqueue.KeyFromWorkload(other)] != nil || wl != nil && keyOf(other) == keyOf(wl)
	})
	return &part
}

// addRelated adds the ClusterQueues that share a cohort tree, or a flavor with a topology, with those of the names.
func (c *Cluster) addRelated(names sets.Set[kueue.ClusterQueueReference]) {
	topologies := sets.New[kueue.ResourceFlavorReference]()
	for i := range c.Flavors {
		if c.Flavors[i].Spec.TopologyName != nil {
			topologies.Insert(kueue.ResourceFlavorReference(c.Flavors[i].Name))
		}
	}
	shared := sets.New[string]()
	for i := range c.ClusterQueues {
		if cq := &c.ClusterQueues[i]; names.Has(kueue.ClusterQueueReference(cq.Name)) {
			shared.Insert(c.sharedBy(cq, topologies)...)
		}
	}
	for i := range c.ClusterQueues {
		if cq := &c.ClusterQueues[i]; shared.HasAny(c.sharedBy(cq, topologies)...) {
			names.Insert(kueue.ClusterQueueReference(cq.Name))
		}
	}
}

// sharedBy returns what a ClusterQueue may have in common with others: its cohort tree, and its flavors of those.
func (c *Cluster) sharedBy(cq *kueue.ClusterQueue, flavors sets.Set[kueue.ResourceFlavorReference]) []string {
	var with []string
	if cq.Spec.CohortName != "" {
		with = append(with, "Cohort/"+string(c.Root(cq.Spec.CohortName)))
	}
	for flavor := range utilqueue.AllFlavors(cq.Spec.ResourceGroups).Intersection(flavors) {
		with = append(with, "ResourceFlavor/"+string(flavor))
	}
	return with
}

// Root returns the root of a cohort's tree.
func (c *Cluster) Root(name kueue.CohortReference) kueue.CohortReference {
	for range len(c.Cohorts) + 1 {
		parent := c.parent(name)
		if parent == "" {
			break
		}
		name = parent
	}
	return name
}

// circular reports whether the parents of a cohort form a circle. Kueue admits nothing below it.
func (c *Cluster) circular(name kueue.CohortReference) bool { return c.parent(c.Root(name)) != "" }

// parent returns the parent of a cohort; "" for a root.
func (c *Cluster) parent(name kueue.CohortReference) kueue.CohortReference {
	for i := range c.Cohorts {
		if c.Cohorts[i].Name == string(name) {
			return c.Cohorts[i].Spec.ParentName
		}
	}
	return ""
}

// Without returns the cluster without a Workload.
func (c *Cluster) Without(key types.NamespacedName) *Cluster {
	return c.without([]types.NamespacedName{key})
}

// Put returns the cluster with one Workload in the place of that of its name.
func (c *Cluster) Put(wl *kueue.Workload) *Cluster {
	others := c.without([]types.NamespacedName{keyOf(wl)})
	return c.With(append(others.Workloads, *wl))
}

// holding returns the cluster with a Workload and those that hold quota. evicted says whether these include evicted
// Workloads, whose pods are ending.
func (c *Cluster) holding(wl *kueue.Workload, evicted bool) *Cluster {
	others := utilslices.Pick(c.Workloads, func(other *kueue.Workload) bool {
		return holdsQuota(other) && (evicted || !workloadevict.IsEvicted(other))
	})
	return c.With(append(others, *wl))
}

// localQueueOf returns the LocalQueue that a Workload names; nil if there is none.
func (c *Cluster) localQueueOf(wl *kueue.Workload) *kueue.LocalQueue {
	for i := range c.LocalQueues {
		if lq := &c.LocalQueues[i]; utilqueue.Key(lq) == utilqueue.KeyFromWorkload(wl) {
			return lq
		}
	}
	return nil
}

// clusterQueueOf returns the ClusterQueue that a Workload waits in; nil if there is none.
func (c *Cluster) clusterQueueOf(wl *kueue.Workload) *kueue.ClusterQueue {
	lq := c.localQueueOf(wl)
	for i := range c.ClusterQueues {
		if cq := &c.ClusterQueues[i]; lq != nil && cq.Name == string(lq.Spec.ClusterQueue) {
			return cq
		}
	}
	return nil
}
