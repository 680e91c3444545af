package simulate

import (
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueueconfig "sigs.k8s.io/kueue/apis/config/v1beta2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/workload"
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

// live returns the Workloads that hold quota or wait for it.
func (c *Cluster) live() []*kueue.Workload {
	var live []*kueue.Workload
	for i := range c.Workloads {
		if wl := &c.Workloads[i]; !workloadfinish.IsFinished(wl) {
			live = append(live, wl)
		}
	}
	return live
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
