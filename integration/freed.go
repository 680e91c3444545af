package integration

import (
	"context"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/controller/jobframework"

	"github.com/signalbox-dev/signalbox/admission/avoid"
	"github.com/signalbox-dev/signalbox/integration/managed"
	"github.com/signalbox-dev/signalbox/store"
	"github.com/signalbox-dev/signalbox/store/events"
)

// waitsForNode is for how long the pods of a TrainJob wait for nodes before it is started again for one that it kept
// off.
const waitsForNode = time.Minute

// resolveFreed decides whether a running TrainJob is started again, on its quota, because its pods wait for nodes and
// one that they keep off doesn't count any more. None of them has got one: a restart, which may gain nothing, loses
// neither work nor places. What can't be read changes nothing: it waits on.
func (r *resolver) resolveFreed(ctx context.Context, o *situation) {
	hosts, wl := avoid.Started(o.entry), o.match()
	if len(hosts) == 0 || wl == nil || !startsAgain(o, wl) {
		return
	}
	freed, err := r.freed(ctx, o, hosts)
	if err != nil {
		ctrl.LoggerFrom(ctx).Info("It isn't known whether pods wait for a node that is kept off", "reason", err.Error())
	}
	if jobframework.PrebuiltWorkloadNameFor(o.job) != "" { // its start keeps off what its Workload does
		freed = added(freed, avoid.Written(wl.Spec.PodSets))
	}
	o.queue.freed = freed
}

// startsAgain reports whether a running TrainJob that was stopped would start again on its quota, and elsewhere: it has
// all its pods and all their quota, and no topology has placed them.
func startsAgain(o *situation, wl *kueue.Workload) bool {
	placed := func(a kueue.PodSetAssignment) bool {
		return a.TopologyAssignment != nil || a.DelayedTopologyRequest != nil
	}
	return o.stage == stageRunning && o.jobSet != nil && o.queue.pods.missing == nil && !o.ready() &&
		runsOnQuota(o, wl) && o.standing == managed.Queued && wl.Spec.QueueName == jobframework.QueueNameForObject(o.job) &&
		len(o.workloads.aside) == 0 && len(wl.Status.ReclaimablePods) == 0 &&
		!slices.ContainsFunc(wl.Status.Admission.PodSetAssignments, placed)
}

// freed returns which of the hosts that a TrainJob keeps off don't count any more, if all its pods wait. It reads
// caches alone, and once a minute, because no event says that a pod waits.
func (r *resolver) freed(ctx context.Context, o *situation, hosts []string) ([]string, error) {
	o.queue.later(waitsForNode)
	pods, err := r.store.Pods.Named(ctx, o.jobSet)
	placed := func(pod corev1.Pod) bool { return pod.Spec.NodeName != "" || store.PodEnded(&pod) }
	if err != nil || len(pods) == 0 || slices.ContainsFunc(pods, placed) {
		o.memory.waits = time.Time{}
		return nil, err
	}
	if o.memory.waits.Before(startedAt(o.observed)) {
		o.memory.waits = o.now
	}
	if left := waitsForNode - o.now.Sub(o.memory.waits); left > 0 {
		o.queue.later(left)
		return nil, nil
	}
	policy := r.policy.Avoid
	if !policy.On() {
		return hosts, nil // it was turned off: nodes aren't watched
	}
	others, err := r.remembering(ctx, o.job.Namespace)
	if err != nil {
		return nil, err
	}
	var nodes corev1.NodeList
	if err := r.client.List(ctx, &nodes, client.UnsafeDisableDeepCopy); err != nil {
		return nil, err
	}
	counted := slices.Concat(policy.All(o.job.Status.Avoided, o.now), policy.Shared(others, nodes.Items, o.now))
	return avoid.Cluster{Nodes: nodes.Items}.Freed(o.jobSet.Spec.ReplicatedJobs, hosts, counted), nil
}

// useFreed adds the restart of a TrainJob that needn't keep off all nodes any more.
func (p *plan) useFreed(o *situation, a *asked) {
	if len(o.queue.freed) > 0 && a.stop == nil {
		p.Do(stop{suspend{reason: "a node that it keeps off is free"},
			ptr.To(events.NodesFreed.Of(strings.Join(o.queue.freed, ", ")))})
	}
}
