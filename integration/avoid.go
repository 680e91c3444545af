package integration

import (
	"cmp"
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/controller/jobframework"
	"sigs.k8s.io/kueue/pkg/util/tas"
	workloadevict "sigs.k8s.io/kueue/pkg/workload/evict"

	"github.com/signalbox-dev/signalbox/admission/avoid"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/integration/managed"
	"github.com/signalbox-dev/signalbox/overrides"
	"github.com/signalbox-dev/signalbox/store/events"
)

// A suspended TrainJob is queued for PodSets that keep off the nodes that it remembers. While its Workload holds quota,
// the PodSets stay: a node whose time is over mismatches nothing. What it remembers beyond them, of a run on this quota
// or because Kueue admitted it before it was queued for that, is kept off by its next start.

// observeNodes reads what decides which nodes a suspended TrainJob keeps off.
func (r *observer) observeNodes(ctx context.Context, o *situation) error {
	known := &o.queue.avoiding
	known.counted = r.policy.Avoid.Counted(o.job.Status.Avoided, o.now)
	if len(known.counted) == 0 || managed.Elsewhere(o.job) {
		known.counted = nil
		return nil
	}
	o.queue.later(r.policy.Avoid.Left(known.counted, o.now))
	var nodes corev1.NodeList
	if err := r.client.List(ctx, &nodes, client.UnsafeDisableDeepCopy); err != nil {
		return err
	}
	known.cluster.Nodes = nodes.Items
	var err error
	known.cluster.Flavors, err = r.flavorsOf(ctx, o.job)
	return err
}

// flavorsOf returns the ResourceFlavors that a TrainJob may be admitted on; all that there are if its queue can't be
// read, so that half of each is left.
func (r reads) flavorsOf(ctx context.Context, job *api.TrainJob) (flavors []kueue.ResourceFlavorSpec, err error) {
	var all kueue.ResourceFlavorList
	if err := r.client.List(ctx, &all, client.UnsafeDisableDeepCopy); err != nil {
		return nil, err
	}
	cq, err := r.clusterQueueOf(ctx, job)
	if err != nil {
		ctrl.LoggerFrom(ctx).Info("The flavors of a TrainJob's queue aren't known", "reason", err.Error())
	}
	named := sets.New[string]()
	for _, group := range cq.Spec.ResourceGroups {
		for _, quotas := range group.Flavors {
			named.Insert(string(quotas.Name))
		}
	}
	for i := range all.Items {
		if named.Has(all.Items[i].Name) || err != nil {
			flavors = append(flavors, all.Items[i].Spec)
		}
	}
	return flavors, nil
}

// clusterQueueOf returns the ClusterQueue of a TrainJob's queue; an empty one with an error.
func (r reads) clusterQueueOf(ctx context.Context, job *api.TrainJob) (*kueue.ClusterQueue, error) {
	var lq kueue.LocalQueue
	cq, name := &kueue.ClusterQueue{}, string(jobframework.QueueNameForObject(job))
	if err := r.client.Get(ctx, client.ObjectKey{Namespace: job.Namespace, Name: name}, &lq); err != nil {
		return cq, err
	}
	return cq, r.live.Get(ctx, client.ObjectKey{Name: string(lq.Spec.ClusterQueue)}, cq)
}

// keepOff returns what a TrainJob is queued for that would run e: it keeps off the nodes that it remembers. What a
// start keeps off is noted. One with a Workload of others, as MultiKueue makes it, can't be queued for anything else:
// it takes the place that it has.
func keepOff(o *observed, e *overrides.Effective) *overrides.Effective {
	known, counted := &o.queue.avoiding, o.queue.avoiding.counted
	wl := holderOf(o.workloads.own)
	prebuilt := jobframework.PrebuiltWorkloadNameFor(o.job) != "" && len(o.workloads.own) > 0
	if prebuilt {
		wl = o.workloads.own[0]
	}
	if wl == nil {
		known.choice = known.cluster.Choose(e, counted, nil)
		return avoid.Apply(e, known.choice.Hosts)
	}
	kept := avoid.Kept(e, wl.Spec.PodSets)
	known.choice = known.cluster.Choose(e, counted, kept)
	switch placed := len(known.choice.Hosts) > len(kept) && placedOn(wl, known.choice.Hosts); {
	case placed && prebuilt: // its pods would wait for its place, and hold quota
		known.choice = avoid.Choice{Hosts: kept, Tolerated: counted}
	case placed && !workloadevict.IsEvicted(wl):
		return avoid.Apply(e, known.choice.Hosts) // it is queued again
	}
	return avoid.Apply(e, kept)
}

// placedOn reports whether Kueue has assigned one of some hosts to a Workload's pods, or places that may be: those of
// levels above the hostname.
func placedOn(wl *kueue.Workload, hosts []string) bool {
	return wl.Status.Admission != nil && slices.ContainsFunc(wl.Status.Admission.PodSetAssignments,
		func(a kueue.PodSetAssignment) bool {
			return a.TopologyAssignment != nil && (!tas.IsLowestLevelHostname(a.TopologyAssignment.Levels) ||
				slices.ContainsFunc(hosts, func(host string) bool { return tas.HasNodeInPodSetAssignment(&a, host) }))
		})
}

// tells returns the event about the nodes that a start keeps off, or has to take although they are remembered.
func (a *avoiding) tells() []events.Event {
	switch off, taken := avoid.Names(a.choice.Avoided), avoid.Names(a.choice.Tolerated); {
	case taken != "":
		return []events.Event{events.NodesTaken.Of(taken, cmp.Or(off, "none"))}
	case off != "":
		return []events.Event{events.KeepsOff.Of(off)}
	}
	return nil
}
