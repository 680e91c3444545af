// Package simulate answers what Kueue would do, by running Kueue's own scheduler in this process on a copy of a
// cluster's queues and Workloads. It writes nothing to a cluster.
package simulate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/go-logr/logr"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/event"
	kueueconfig "sigs.k8s.io/kueue/apis/config/v1beta2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	qcache "sigs.k8s.io/kueue/pkg/cache/queue"
	schdcache "sigs.k8s.io/kueue/pkg/cache/scheduler"
	"sigs.k8s.io/kueue/pkg/scheduler"
	"sigs.k8s.io/kueue/pkg/scheduler/preemption/fairsharing"
	"sigs.k8s.io/kueue/pkg/util/expectations"
	workloadevict "sigs.k8s.io/kueue/pkg/workload/evict"
	workloadfinish "sigs.k8s.io/kueue/pkg/workload/finish"
)

// maxRounds bounds how often Workloads may preempt each other. Kueue's rules let no two do so forever; a fault in them
// must not hang a command.
const maxRounds = 1000

// Settle returns what Kueue decides about a cluster until nothing changes any more. It assumes that a preempted
// Workload gives its quota back at once. now is the time that Kueue reads.
func Settle(ctx context.Context, cluster *Cluster, now time.Time) (*Outcome, error) {
	outcome := &Outcome{Cluster: cluster.With(nil)}
	for i := range cluster.Workloads {
		if workloadfinish.IsFinished(&cluster.Workloads[i]) {
			continue
		}
		wl := cluster.Workloads[i].DeepCopy()
		if holdsQuota(wl) && workloadevict.IsEvicted(wl) {
			release(wl, wl.Status.Conditions, now) // its pods are ending
		}
		unboost(wl, now)
		outcome.Workloads = append(outcome.Workloads, *wl)
	}
	if len(cluster.ClusterQueues) == 0 {
		return outcome, nil
	}
	before := sets.New(outcome.holders()...)
	for range maxRounds {
		r, err := newRound(ctx, outcome.Cluster, now)
		if err != nil {
			return nil, err
		}
		if err := r.run(ctx); err != nil {
			return nil, err
		}
		evicted, err := r.apply(outcome)
		if err != nil {
			return nil, err
		}
		if !evicted {
			outcome.Admitted = slices.DeleteFunc(outcome.holders(), before.Has)
			return outcome, nil
		}
	}
	return nil, fmt.Errorf("after %d rounds, Workloads still preempt each other", maxRounds)
}

func newRound(ctx context.Context, cluster *Cluster, now time.Time) (*round, error) {
	r := &round{gate: &gate{}, now: now, written: map[types.NamespacedName]*kueue.Workload{}}
	r.holding, r.retries = -1, mostFlavors(cluster)+1
	c, err := r.client(ctx, cluster)
	if err != nil {
		return nil, err
	}
	config := ptr.Deref(cluster.Config, kueueconfig.Configuration{})
	counted := ptr.Deref(config.Resources, kueueconfig.Resources{})
	ordering := cluster.Ordering().PodsReadyRequeuingTimestamp
	// Preempted Workloads are taken out of the caches at once, so that no expectation stays open.
	expected := expectations.NewStore("simulated")
	requeuer := qcache.NewRequeuer(qcache.WithBatchPeriod(time.Hour))
	r.requeuer = requeuer
	r.cache = schdcache.New(c,
		schdcache.WithFairSharing(fairsharing.Enabled(config.FairSharing)),
		schdcache.WithAdmissionFairSharing(config.AdmissionFairSharing),
		schdcache.WithExcludedResourcePrefixes(counted.ExcludeResourcePrefixes),
		schdcache.WithResourceTransformations(counted.Transformations))
	r.gate.active = r.cache.ClusterQueueActive
	r.queues = qcache.NewManager(c, r.gate, requeuer,
		qcache.WithAdmissionFairSharing(config.AdmissionFairSharing), qcache.WithPreemptionExpectations(expected),
		qcache.WithExcludedResourcePrefixes(counted.ExcludeResourcePrefixes),
		qcache.WithResourceTransformations(counted.Transformations),
		qcache.WithPodsReadyRequeuingTimestamp(ordering))
	// Kueue's controller would ask the API server what the claims of these Workloads count. Nobody takes them here.
	r.queues.SetDRAReconcileChannel(make(chan event.TypedGenericEvent[*kueue.Workload], len(cluster.Workloads)))
	r.scheduler = scheduler.New(r.queues, r.cache, c, r,
		scheduler.WithFairSharing(config.FairSharing), scheduler.WithAdmissionFairSharing(config.AdmissionFairSharing),
		scheduler.WithPreemptionExpectations(expected), scheduler.WithClock(nil, clocktesting.NewFakeClock(now)),
		scheduler.WithPodsReadyRequeuingTimestamp(ordering),
		// What becomes of resources that a ClusterQueue doesn't cover depends on a feature gate, too.
		scheduler.WithQuotaCheckStrategy(ptr.Deref(counted.QuotaCheckStrategy, "")))
	return r, r.load(quiet(ctx), cluster)
}

// quiet returns a context whose logger drops what Kueue logs.
func quiet(ctx context.Context) context.Context { return ctrl.LoggerInto(ctx, logr.Discard()) }

// load fills the caches, in an order in which each object finds what it refers to.
func (r *round) load(ctx context.Context, c *Cluster) error {
	log := logr.Discard()
	for i := range c.Topologies {
		r.cache.AddOrUpdateTopology(log, &c.Topologies[i])
	}
	for i := range c.Flavors {
		r.cache.AddOrUpdateResourceFlavor(log, &c.Flavors[i])
	}
	for i := range c.AdmissionChecks {
		r.cache.AddOrUpdateAdmissionCheck(log, &c.AdmissionChecks[i])
	}
	for i := range c.Nodes {
		r.cache.TASCache().SyncNode(&c.Nodes[i])
	}
	for i := range c.Pods {
		r.cache.TASCache().Update(&c.Pods[i], log)
	}
	for i := range c.Cohorts {
		if c.circular(kueue.CohortReference(c.Cohorts[i].Name)) {
			continue // Kueue's caches return an error, after which its controller goes on
		}
		if err := r.cache.AddOrUpdateCohort(&c.Cohorts[i]); err != nil {
			return fmt.Errorf("Cohort %s: %w", c.Cohorts[i].Name, err)
		}
		r.queues.AddOrUpdateCohort(ctx, &c.Cohorts[i])
	}
	return r.loadQueues(ctx, c)
}

func (r *round) loadQueues(ctx context.Context, c *Cluster) error {
	for i := range c.ClusterQueues {
		cq := &c.ClusterQueues[i]
		if c.circular(cq.Spec.CohortName) {
			continue
		}
		if err := errors.Join(r.cache.AddClusterQueue(ctx, cq), r.queues.AddClusterQueue(ctx, cq)); err != nil {
			return fmt.Errorf("ClusterQueue %s: %w", cq.Name, err)
		}
	}
	for i := range c.LocalQueues {
		if stopped(&c.LocalQueues[i]) {
			continue
		}
		if err := r.queues.AddLocalQueue(ctx, &c.LocalQueues[i]); err != nil {
			return fmt.Errorf("LocalQueue %s: %w", keyOf(&c.LocalQueues[i]), err)
		}
	}
	return nil
}

// run lets the scheduler go through cycles until it has nothing to decide, or has evicted a Workload.
func (r *round) run(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctrl.LoggerInto(ctx, logr.New(ear{r.gate})))
	defer stop()
	go r.queues.CleanUpOnContext(ctx)
	go func() { _ = r.requeuer.Start(ctx) }() // it only ends its own goroutines
	if err := r.scheduler.Start(ctx); err != nil {
		return err
	}
	for {
		found, err := r.gate.cycle(ctx, r.queues)
		if err != nil || !found || r.evicts() {
			return err
		}
		if progress, err := r.progress(); err != nil || !progress {
			return err
		}
	}
}

// Eventf implements the EventRecorder of client-go: Kueue sends an event about each Workload that a cycle leaves
// waiting.
func (r *round) Eventf(about, _ runtime.Object, _, _, _, _ string, _ ...any) {
	if wl, is := about.(*kueue.Workload); is {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.considered = append(r.considered, keyOf(wl))
	}
}

// mostFlavors returns how many flavors a resource group has at most.
func mostFlavors(c *Cluster) int {
	most := 0
	for i := range c.ClusterQueues {
		for _, group := range c.ClusterQueues[i].Spec.ResourceGroups {
			most = max(most, len(group.Flavors))
		}
	}
	return most
}

// progress reports whether Kueue may still decide about anything. The head of a strict queue that doesn't fit is
// considered in every cycle. One of any other queue may be considered once for each flavor, before those behind it.
func (r *round) progress() (bool, error) {
	admitted, err := r.admitted()
	if err != nil {
		return false, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	progress := len(admitted) != r.holding
	if progress {
		r.holding, r.seen = len(admitted), map[types.NamespacedName]bool{}
	}
	for _, key := range r.considered {
		progress = progress || !r.seen[key]
		r.seen[key] = true
	}
	r.considered = nil
	if r.idle++; progress {
		r.idle = 0
	}
	return r.idle <= r.retries, nil
}

// admitted returns what holds quota in the scheduler's cache: it writes admissions later, in goroutines of its own.
func (r *round) admitted() (map[types.NamespacedName]*kueue.Workload, error) {
	snapshot, err := r.cache.Snapshot(quiet(context.Background()))
	if err != nil {
		return nil, fmt.Errorf("reading the scheduler's cache: %w", err)
	}
	admitted := map[types.NamespacedName]*kueue.Workload{}
	for _, cq := range snapshot.ClusterQueues() {
		for _, info := range cq.Workloads {
			admitted[keyOf(info.Obj)] = info.Obj
		}
	}
	return admitted, nil
}

// evicts reports whether a Workload is to be evicted.
func (r *round) evicts() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, wl := range r.written {
		if workloadevict.IsEvicted(wl) && wl.Status.Admission != nil {
			return true
		}
	}
	return false
}

// apply brings the Workloads of an outcome to what the round has decided, and reports whether any was evicted.
func (r *round) apply(outcome *Outcome) (evicted bool, err error) {
	admitted, err := r.admitted()
	if err != nil {
		return false, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range outcome.Workloads {
		wl := &outcome.Workloads[i]
		key := keyOf(wl)
		written := r.written[key]
		switch {
		case written != nil && workloadevict.IsEvicted(written) && holdsQuota(wl):
			why := apimeta.FindStatusCondition(written.Status.Conditions, kueue.WorkloadEvicted)
			outcome.Preempted = append(outcome.Preempted, Preemption{Victim: key, By: Preemptor(why.Message)})
			release(wl, written.Status.Conditions, r.now)
			evicted = true
		case admitted[key] != nil && !holdsQuota(wl):
			wl.Status = *admitted[key].Status.DeepCopy()
		case written != nil && !holdsQuota(wl) && written.Status.Admission == nil:
			wl.Status.Conditions = written.Status.Conditions
		}
	}
	return evicted, nil
}
