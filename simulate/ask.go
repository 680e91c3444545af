package simulate

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/dra"
	"sigs.k8s.io/kueue/pkg/workload"
)

// Verdict is what becomes of a Workload.
type Verdict string

const (
	// Running means that it has quota already.
	Running Verdict = "Running"
	// Admitted means that it gets quota now.
	Admitted Verdict = "Admitted"
	// Preempts means that it gets quota when others have been preempted.
	Preempts Verdict = "Preempts"
	// Waits means that it gets quota when others have ended.
	Waits Verdict = "Waits"
	// Stuck means that it would get quota, but others wait in front of it that never get any.
	Stuck Verdict = "Stuck"
	// Never means that it doesn't get quota even if nobody else asks for any.
	Never Verdict = "Never"
)

// Answer is what Kueue would do with a Workload.
type Answer struct {
	Verdict Verdict
	// Admission is what it gets, now or later; nil for Never.
	Admission *kueue.Admission
	// Victims are those that it preempts.
	Victims []Preemption
	// After are those that have to end before, in the order in which they are expected to.
	After []types.NamespacedName
	// Ahead are those that wait, and are admitted before it; for Stuck, those that wait in front of it forever.
	Ahead []types.NamespacedName
	// Message is Kueue's about why it isn't admitted now.
	Message string
	// Changes are what would have it admitted now, the smallest first.
	Changes []Change
}

// Change is a change of a Workload with which Kueue would admit it.
type Change struct {
	// Nodes is a smaller number of pods of PodSet; 0 for no change of it.
	Nodes  int32
	PodSet kueue.PodSetReference
	// Queue is another LocalQueue; "" for no change of it.
	Queue string
	// Selector are node labels to take out of the pods' node selector.
	Selector []string
	// Admission is what it would get.
	Admission *kueue.Admission
}

// Lengths says when Workloads are expected to end.
type Lengths interface {
	// End returns when a Workload ends that has had quota since a time.
	End(wl *kueue.Workload, since time.Time) time.Time
}

// inTurn has Workloads end one after the other, in the order in which they got their quota.
type inTurn struct{}

func (inTurn) End(_ *kueue.Workload, since time.Time) time.Time { return since.Add(1000 * time.Hour) }

// Ask returns what Kueue would do with one of the cluster's Workloads. lengths may be nil: then those that run are
// expected to end in the order in which they have started.
func Ask(
	ctx context.Context, cluster *Cluster, key types.NamespacedName, lengths Lengths, now time.Time,
) (*Answer, error) {
	wl := cluster.Workload(key)
	if wl == nil {
		return nil, fmt.Errorf("there is no Workload %s", key)
	}
	if holdsQuota(wl) {
		return &Answer{Verdict: Running, Admission: wl.Status.Admission}, nil
	}
	unqueued := cluster.unqueued(wl)
	cluster = cluster.Concerning(wl)
	settled, err := Settle(ctx, cluster, now)
	if err != nil {
		return nil, err
	}
	is := settled.Workload(key)
	if holdsQuota(is) {
		answer := &Answer{Verdict: Admitted, Admission: is.Status.Admission, Victims: settled.victimsOf(is.UID)}
		if len(answer.Victims) > 0 {
			answer.Verdict = Preempts
		}
		return answer, nil
	}
	alone, err := settleOne(ctx, cluster.With([]kueue.Workload{*wl}), wl, now)
	if err != nil {
		return nil, err
	}
	answer := &Answer{Verdict: Never, Message: cmp.Or(unqueued, message(alone))}
	if holdsQuota(alone) {
		answer.Message = cmp.Or(unqueued, message(is))
		if lengths == nil {
			lengths = inTurn{}
		}
		if err := answer.waits(ctx, cluster, key, lengths, now); err != nil {
			return nil, err
		}
	}
	answer.Changes, err = changes(ctx, cluster, wl, answer.Verdict == Never, now)
	return answer, err
}

// waits completes the answer for a Workload that is admitted later.
func (a *Answer) waits(
	ctx context.Context, cluster *Cluster, key types.NamespacedName, lengths Lengths, now time.Time,
) error {
	forecast, err := Until(ctx, cluster, key, lengths, now)
	if err != nil {
		return err
	}
	if forecast.Admission == nil {
		a.Verdict, a.Ahead = Stuck, forecast.Stuck
		return nil
	}
	a.Verdict, a.Admission, a.Ahead = Waits, forecast.Admission, forecast.Ahead
	a.After, err = necessary(ctx, cluster, key, forecast.Ended, now)
	return err
}

// mostTried bounds how many ends are tried one by one.
const mostTried = 24

// necessary leaves out of those that have ended before a Workload is admitted the ones that it doesn't need.
func necessary(
	ctx context.Context, cluster *Cluster, key types.NamespacedName, ended []types.NamespacedName, now time.Time,
) ([]types.NamespacedName, error) {
	if len(ended) > mostTried {
		return ended, nil
	}
	needed := slices.Clone(ended)
	for _, candidate := range ended {
		rest := slices.DeleteFunc(slices.Clone(needed), func(k types.NamespacedName) bool { return k == candidate })
		settled, err := Settle(ctx, cluster.without(rest), now)
		if err != nil {
			return nil, err
		}
		if holdsQuota(settled.Workload(key)) {
			needed = rest
		}
	}
	return needed, nil
}

// without returns the cluster when some Workloads have ended.
func (c *Cluster) without(ended []types.NamespacedName) *Cluster {
	var left []kueue.Workload
	for i := range c.Workloads {
		if !slices.Contains(ended, keyOf(&c.Workloads[i])) {
			left = append(left, c.Workloads[i])
		}
	}
	return c.With(left)
}

// victimsOf returns those that a Workload has preempted, and that didn't get quota again elsewhere.
func (o *Outcome) victimsOf(uid types.UID) []Preemption {
	var victims []Preemption
	for _, p := range o.Preempted {
		if p.By == uid {
			victims = append(victims, p)
		}
	}
	return victims
}

// stopped reports whether a LocalQueue takes no Workloads.
func stopped(lq *kueue.LocalQueue) bool {
	return ptr.Deref(lq.Spec.StopPolicy, kueue.None) != kueue.None
}

// unqueued returns why a Workload isn't considered at all; "" if it is.
func (c *Cluster) unqueued(wl *kueue.Workload) string {
	lq := slices.IndexFunc(c.LocalQueues, func(lq kueue.LocalQueue) bool {
		return lq.Namespace == wl.Namespace && lq.Name == string(wl.Spec.QueueName)
	})
	if lq < 0 {
		return fmt.Sprintf("LocalQueue %s doesn't exist", wl.Spec.QueueName)
	}
	if stopped(&c.LocalQueues[lq]) {
		return fmt.Sprintf("LocalQueue %s is stopped (spec.stopPolicy: %s)", wl.Spec.QueueName,
			*c.LocalQueues[lq].Spec.StopPolicy)
	}
	name := c.LocalQueues[lq].Spec.ClusterQueue
	if !slices.ContainsFunc(c.ClusterQueues, func(cq kueue.ClusterQueue) bool { return cq.Name == string(name) }) {
		return fmt.Sprintf("ClusterQueue %s of LocalQueue %s doesn't exist", name, wl.Spec.QueueName)
	}
	if !workload.IsActive(wl) {
		return fmt.Sprintf("Workload %s is deactivated (spec.active: false)", wl.Name)
	}
	if workload.IsOnHold(wl) {
		return fmt.Sprintf("Workload %s is on hold: %s", wl.Name, message(wl))
	}
	if dra.NeedsDRAReconcile(wl, nil) {
		return "What its resource claims count isn't simulated"
	}
	return ""
}

// Concerning returns the part of the cluster that decides about a Workload: the ClusterQueues of its namespace's
// LocalQueues, which it could use instead of its own. To them belong those of their cohort trees, and those that place
// pods on the same nodes by a topology.
func (c *Cluster) Concerning(wl *kueue.Workload) *Cluster {
	names := map[kueue.ClusterQueueReference]bool{}
	for i := range c.LocalQueues {
		if lq := &c.LocalQueues[i]; lq.Namespace == wl.Namespace {
			names[lq.Spec.ClusterQueue] = true
		}
	}
	return c.partOf(wl, names)
}

// partOf returns the part of the cluster that decides about a Workload, if it is in one of the ClusterQueues.
func (c *Cluster) partOf(wl *kueue.Workload, names map[kueue.ClusterQueueReference]bool) *Cluster {
	for before := -1; before != len(names); {
		before = len(names)
		c.addRelated(names)
	}
	part := *c
	part.ClusterQueues = slices.DeleteFunc(slices.Clone(c.ClusterQueues), func(cq kueue.ClusterQueue) bool {
		return !names[kueue.ClusterQueueReference(cq.Name)]
	})
	part.LocalQueues = slices.DeleteFunc(slices.Clone(c.LocalQueues), func(lq kueue.LocalQueue) bool {
		return !names[lq.Spec.ClusterQueue]
	})
	queues := map[types.NamespacedName]bool{}
	for i := range part.LocalQueues {
		queues[keyOf(&part.LocalQueues[i])] = true
	}
	part.Workloads = slices.DeleteFunc(slices.Clone(c.Workloads), func(other kueue.Workload) bool {
		if other.Status.Admission != nil && names[other.Status.Admission.ClusterQueue] {
			return false // it holds quota there, wherever its LocalQueue leads now
		}
		return !queues[types.NamespacedName{Namespace: other.Namespace, Name: string(other.Spec.QueueName)}] &&
			keyOf(&other) != keyOf(wl)
	})
	return &part
}

// addRelated adds the ClusterQueues that share a cohort tree, or a flavor with a topology, with those of the names.
func (c *Cluster) addRelated(names map[kueue.ClusterQueueReference]bool) {
	topologies := map[kueue.ResourceFlavorReference]bool{}
	for i := range c.Flavors {
		if c.Flavors[i].Spec.TopologyName != nil {
			topologies[kueue.ResourceFlavorReference(c.Flavors[i].Name)] = true
		}
	}
	shared := map[string]bool{}
	for i := range c.ClusterQueues {
		if cq := &c.ClusterQueues[i]; names[kueue.ClusterQueueReference(cq.Name)] {
			for _, with := range c.sharedBy(cq, topologies) {
				shared[with] = true
			}
		}
	}
	for i := range c.ClusterQueues {
		cq := &c.ClusterQueues[i]
		if slices.ContainsFunc(c.sharedBy(cq, topologies), func(with string) bool { return shared[with] }) {
			names[kueue.ClusterQueueReference(cq.Name)] = true
		}
	}
}

// sharedBy returns what a ClusterQueue may have in common with others: its cohort tree, and its flavors of those.
func (c *Cluster) sharedBy(cq *kueue.ClusterQueue, flavors map[kueue.ResourceFlavorReference]bool) []string {
	var with []string
	if cq.Spec.CohortName != "" {
		with = append(with, "Cohort/"+string(c.Root(cq.Spec.CohortName)))
	}
	for _, group := range cq.Spec.ResourceGroups {
		for _, fq := range group.Flavors {
			if flavors[fq.Name] {
				with = append(with, "ResourceFlavor/"+string(fq.Name))
			}
		}
	}
	return with
}

// Root returns the root of a cohort's tree.
func (c *Cluster) Root(name kueue.CohortReference) kueue.CohortReference {
	for range len(c.Cohorts) + 1 {
		at := slices.IndexFunc(c.Cohorts, func(cohort kueue.Cohort) bool { return cohort.Name == string(name) })
		if at < 0 || c.Cohorts[at].Spec.ParentName == "" {
			break
		}
		name = c.Cohorts[at].Spec.ParentName
	}
	return name
}

// Flavors returns the flavors that an admission gives a resource, without repetitions; those of every resource if it
// is "".
func Flavors(admission *kueue.Admission, resource corev1.ResourceName) []string {
	var names []string
	if admission == nil {
		return nil
	}
	for _, a := range admission.PodSetAssignments {
		for name, flavor := range a.Flavors {
			if resource == "" || name == resource {
				names = append(names, string(flavor))
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}
