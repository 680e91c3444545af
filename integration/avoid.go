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
// the PodSets stay: a node whose time is over mismatches nothing. A start chooses again: what it remembers of a run on
// this quota counts, too, or because Kueue admitted it before it was queued for that, and what others of its namespace
// remember. If its pods wait for a node that doesn't count any more, it is started again, on its quota.

// observeNodes reads what decides which nodes a suspended TrainJob keeps off. What others of its namespace remember
// counts for one that holds quota.
func (r *observer) observeNodes(ctx context.Context, o *situation) error {
	known := &o.queue.avoiding
	if !r.policy.Avoid.On() || managed.Elsewhere(o.job) {
		return nil
	}
	known.counted = r.policy.Avoid.Counted(o.job.Status.Avoided, o.now)
	var others []api.TrainJob
	var err error
	if holdQuota(o.workloads.own) {
		if others, err = r.remembering(ctx, o.job.Namespace); err != nil {
			return err
		}
	}
	if len(known.counted)+len(others) == 0 {
		return nil
	}
	o.queue.later(r.policy.Avoid.Left(known.counted, o.now))
	var nodes corev1.NodeList
	if err := r.client.List(ctx, &nodes, client.UnsafeDisableDeepCopy); err != nil {
		return err
	}
	known.cluster.Nodes = nodes.Items
	known.shared = r.policy.Avoid.Further(known.counted, r.policy.Avoid.Shared(others, nodes.Items, o.now))
	known.cluster.Flavors, err = r.flavorsOf(ctx, o.job)
	return err
}

// remembering returns the TrainJobs of a namespace that remember nodes.
func (r reads) remembering(ctx context.Context, namespace string) ([]api.TrainJob, error) {
	var jobs api.TrainJobList
	err := r.client.List(ctx, &jobs, client.InNamespace(namespace),
		client.MatchingFields{avoid.Index: avoid.Remembers}, client.UnsafeDisableDeepCopy)
	return jobs.Items, err
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

// keepOff returns what a TrainJob is queued for that would run e, and least at least: it keeps off the nodes that it
// remembers. What a start keeps off is noted. One with a Workload of others, as MultiKueue makes it, can't be queued
// for anything else: it takes the place that it has.
func keepOff(o *observed, e, least *overrides.Effective) *overrides.Effective {
	known := &o.queue.avoiding
	wl := holderOf(o.workloads.own)
	prebuilt := jobframework.PrebuiltWorkloadNameFor(o.job) != "" && len(o.workloads.own) > 0
	if prebuilt {
		wl = o.workloads.own[0]
	}
	known.cluster.Fewer = fewerPods(wl, least)
	if wl == nil {
		known.choice = known.cluster.Choose(e, known.counted, nil)
		return avoid.Apply(e, known.choice.Hosts)
	}
	queued := avoid.Kept(e, wl.Spec.PodSets)
	var kept []string
	if prebuilt {
		kept = queued
	}
	known.choice = known.cluster.Choose(e, known.counted, kept)
	switch placed := placedOn(wl, added(known.choice.Hosts, queued)); {
	case placed && prebuilt: // its pods would wait for its place, and hold quota
		known.choice = avoid.Choice{Hosts: kept, Tolerated: known.counted}
	case placed && !workloadevict.IsEvicted(wl):
		return avoid.Apply(e, known.choice.Hosts) // it is queued again
	default:
		known.share(e, wl, queued)
	}
	return avoid.Apply(e, queued)
}

// share has a start keep off what others of its namespace remember, unless it is placed there.
func (a *avoiding) share(e *overrides.Effective, wl *kueue.Workload, queued []string) {
	if len(a.shared) == 0 {
		return
	}
	shared := a.cluster.Choose(e, a.shared, a.choice.Hosts)
	if len(shared.Avoided) > 0 && !placedOn(wl, added(shared.Hosts, queued)) {
		a.withOthers = &avoid.Choice{Hosts: shared.Hosts, Tolerated: slices.Concat(a.choice.Tolerated, shared.Tolerated),
			Avoided: slices.Concat(a.choice.Avoided, shared.Avoided)}
	}
}

// added returns the hosts that are not among others.
func added(hosts, others []string) []string {
	return slices.DeleteFunc(slices.Clone(hosts), func(host string) bool { return slices.Contains(others, host) })
}

// fewerPods returns how many pods of its ReplicatedJobs a TrainJob runs, where they may be fewer than these say: those
// of its admission, or else of what it runs at least, which is nil for one without a minimum.
func fewerPods(wl *kueue.Workload, least *overrides.Effective) map[string]int64 {
	pods := map[string]int64{}
	if wl != nil && wl.Status.Admission != nil {
		for _, a := range wl.Status.Admission.PodSetAssignments {
			if a.Count != nil {
				pods[string(a.Name)] = int64(*a.Count)
			}
		}
		return pods
	}
	if least == nil {
		return nil
	}
	for i := range least.ReplicatedJobs {
		rj := &least.ReplicatedJobs[i]
		pods[rj.Name] = int64(overrides.PodsPerJob(rj)) * int64(rj.Replicas)
	}
	return pods
}

// placedOn reports whether Kueue has assigned one of some hosts to a Workload's pods, or places that may be: those of
// levels above the hostname.
func placedOn(wl *kueue.Workload, hosts []string) bool {
	return len(hosts) > 0 && wl.Status.Admission != nil && slices.ContainsFunc(wl.Status.Admission.PodSetAssignments,
		func(a kueue.PodSetAssignment) bool {
			return a.TopologyAssignment != nil && (!tas.IsLowestLevelHostname(a.TopologyAssignment.Levels) ||
				slices.ContainsFunc(hosts, func(host string) bool { return tas.HasNodeInPodSetAssignment(&a, host) }))
		})
}

// tells returns the event about the nodes that a start keeps off, or has to take although they are remembered.
func tells(choice avoid.Choice) []events.Event {
	switch off, taken := avoid.Names(choice.Avoided), avoid.Names(choice.Tolerated); {
	case taken != "":
		return []events.Event{events.NodesTaken.Of(taken, cmp.Or(off, "none"))}
	case off != "":
		return []events.Event{events.KeepsOff.Of(off)}
	}
	return nil
}
