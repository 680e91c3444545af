package integration

import (
	"context"
	"errors"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/controller/jobframework"
	workloadevict "sigs.k8s.io/kueue/pkg/workload/evict"

	"github.com/signalbox-dev/signalbox/admission/avoid"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides"
	"github.com/signalbox-dev/signalbox/podsets"
	"github.com/signalbox-dev/signalbox/store/events"
)

// A suspended TrainJob is queued for PodSets that keep off the nodes that it remembers. While its Workload holds quota,
// the PodSets stay: a node whose time is over mismatches nothing. What it has remembered since then, in a run on this
// quota, is kept off by its next start.

// observeNodes reads what decides which nodes a suspended TrainJob keeps off. That the flavors of its queue can't be
// read keeps it from nothing: then its pods alone say which nodes fit.
func (r *observer) observeNodes(ctx context.Context, o *situation) error {
	known := &o.queue.avoiding
	known.counted = r.policy.Avoid.Counted(o.job.Status.Avoided, o.now)
	if len(known.counted) == 0 || elsewhere(o.job) {
		known.counted = nil
		return nil
	}
	o.queue.later(r.policy.Avoid.Left(known.counted, o.now))
	var nodes corev1.NodeList
	if err := r.client.List(ctx, &nodes, client.UnsafeDisableDeepCopy); err != nil {
		return err
	}
	known.cluster.Nodes = nodes.Items
	flavors, err := r.flavorsOf(ctx, o.job)
	if err != nil {
		ctrl.LoggerFrom(ctx).Info("The flavors of a TrainJob's queue aren't known", "reason", err.Error())
	}
	known.cluster.Flavors = flavors
	return nil
}

// flavorsOf returns the ResourceFlavors that a TrainJob may be admitted on.
func (r reads) flavorsOf(ctx context.Context, job *api.TrainJob) (flavors []kueue.ResourceFlavorSpec, err error) {
	var lq kueue.LocalQueue
	name := string(jobframework.QueueNameForObject(job))
	if err := r.client.Get(ctx, client.ObjectKey{Namespace: job.Namespace, Name: name}, &lq); err != nil {
		return nil, err
	}
	var cq kueue.ClusterQueue
	if err := r.live.Get(ctx, client.ObjectKey{Name: string(lq.Spec.ClusterQueue)}, &cq); err != nil {
		return nil, err
	}
	for _, group := range cq.Spec.ResourceGroups {
		for _, quotas := range group.Flavors {
			var flavor kueue.ResourceFlavor
			failed := r.client.Get(ctx, client.ObjectKey{Name: string(quotas.Name)}, &flavor)
			if err = errors.Join(err, failed); failed == nil {
				flavors = append(flavors, flavor.Spec)
			}
		}
	}
	return flavors, err
}

// keepOff returns what a TrainJob is queued for that would run e: it keeps off the nodes that it remembers. What a
// start keeps off is noted.
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
	kept := avoid.Written(wl.Spec.PodSets)
	// A slice has the PodSets of the Workload that it has replaced, which was queued before.
	c := apimeta.FindStatusCondition(wl.Status.Conditions, kueue.WorkloadQuotaReserved)
	if c != nil && podsets.SliceOf(wl) == nil {
		counted = slices.DeleteFunc(slices.Clone(counted), func(n api.AvoidedNode) bool {
			return n.Time.Before(&c.LastTransitionTime)
		})
	}
	known.choice = known.cluster.Choose(e, counted, kept)
	if len(known.choice.Hosts) > len(kept) && placed(wl) && !prebuilt && !workloadevict.IsEvicted(wl) {
		return avoid.Apply(e, known.choice.Hosts) // its place may be the node: it is queued again
	}
	return avoid.Apply(e, kept)
}

// placed reports whether Kueue has assigned nodes to a Workload's pods.
func placed(wl *kueue.Workload) bool {
	return wl.Status.Admission != nil && slices.ContainsFunc(wl.Status.Admission.PodSetAssignments,
		func(a kueue.PodSetAssignment) bool { return a.TopologyAssignment != nil })
}

// tells returns the event about the nodes that a start keeps off, or has to take although they are remembered.
func (a *avoiding) tells() []events.Event {
	switch off, taken := avoid.Names(a.choice.Avoided), avoid.Names(a.choice.Tolerated); {
	case taken != "":
		return []events.Event{events.NodesTaken.Of(taken, off)}
	case off != "":
		return []events.Event{events.KeepsOff.Of(off)}
	}
	return nil
}
