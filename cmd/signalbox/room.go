package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueueconfig "sigs.k8s.io/kueue/apis/config/v1beta2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/workloadslicing"

	"github.com/signalbox-dev/signalbox/cmd/kubectl-signalbox/simulate"
	"github.com/signalbox-dev/signalbox/integration"
	"github.com/signalbox-dev/signalbox/podsets"
)

// room asks a simulation of Kueue's scheduler with how many pods a slice would be admitted. One runs at a time. It
// reads the Workloads of its ClusterQueue from the API server: the manager's cache has those of TrainJobs alone.
type room struct {
	cached, live client.Reader
	resources    *kueueconfig.Resources // of Kueue's configuration
	clock        clock.PassiveClock
	// within bounds an answer, so that it keeps no worker for long.
	within time.Duration

	mu sync.Mutex
	// slow is until when nothing is asked about a ClusterQueue of which an answer takes longer.
	slow map[string]time.Time
}

const (
	// askTime is how long an answer may take. Of 3,000 Workloads that wait, and are alike, it takes 0.1 s; if each of
	// them is of another size, many seconds.
	askTime = 10 * time.Second
	// slowFor is after how long a ClusterQueue is asked about again of which it takes longer.
	slowFor = 10 * time.Minute
)

// Most implements integration.Room.
func (r *room) Most(
	ctx context.Context, slice *kueue.Workload, podSet kueue.PodSetReference, least int32,
) (int32, error) {
	if !r.mu.TryLock() {
		return 0, integration.ErrRoomBusy
	}
	defer r.mu.Unlock()
	now, name := r.clock.Now(), ""
	cluster, err := r.queues(ctx, slice)
	if err != nil || len(cluster.ClusterQueues) == 0 {
		return 0, err
	}
	if name = cluster.ClusterQueues[0].Name; now.Before(r.slow[name]) {
		return 0, fmt.Errorf("so many Workloads wait in ClusterQueue %s that it takes too long to find out", name)
	}
	ctx, cancel := context.WithTimeout(ctx, r.within)
	defer cancel()
	most, err := r.simulate(ctx, cluster, slice, simulate.Growth{PodSet: podSet, Least: least})
	if err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		r.slow = map[string]time.Time{name: now.Add(slowFor)}
	}
	return most, err
}

func (r *room) simulate(
	ctx context.Context, cluster *simulate.Cluster, slice *kueue.Workload, growth simulate.Growth,
) (most int32, err error) {
	if cluster.Workloads, err = r.workloads(ctx, cluster); err != nil {
		return 0, fmt.Errorf("listing Workloads: %w", err)
	}
	now := r.clock.Now()
	growth.Workload = slice.DeepCopy()
	growth.Workload.UID, growth.Workload.CreationTimestamp = types.UID(slice.Name), metav1.NewTime(now)
	replaced, _ := strings.CutPrefix(string(*workloadslicing.ReplacementForKey(slice)), slice.Namespace+"/")
	growth.Stays = types.NamespacedName{Namespace: slice.Namespace, Name: replaced}
	return simulate.Most(ctx, cluster, growth, now)
}

// queues reads what decides about a slice, but for the Workloads. Its ClusterQueue has neither a cohort nor a topology.
// It is missing in what is returned if nothing leads to it.
func (r *room) queues(ctx context.Context, slice *kueue.Workload) (*simulate.Cluster, error) {
	var namespaces corev1.NamespaceList
	var limits corev1.LimitRangeList
	var locals kueue.LocalQueueList
	var flavors kueue.ResourceFlavorList
	err := errors.Join(r.cached.List(ctx, &namespaces), r.cached.List(ctx, &limits), r.cached.List(ctx, &locals),
		r.cached.List(ctx, &flavors))
	if err != nil {
		return nil, fmt.Errorf("reading the queues: %w", err)
	}
	c := &simulate.Cluster{
		Surroundings: simulate.Surroundings{Namespaces: namespaces.Items, LimitRanges: limits.Items},
		LocalQueues:  locals.Items, Flavors: flavors.Items, Config: &kueueconfig.Configuration{Resources: r.resources},
	}
	for i := range locals.Items {
		lq := &locals.Items[i]
		if lq.Namespace != slice.Namespace || lq.Name != string(slice.Spec.QueueName) {
			continue
		}
		var cq kueue.ClusterQueue
		if err := r.live.Get(ctx, client.ObjectKey{Name: string(lq.Spec.ClusterQueue)}, &cq); err != nil {
			return nil, fmt.Errorf("reading ClusterQueue %s: %w", lq.Spec.ClusterQueue, err)
		}
		c.ClusterQueues = append(c.ClusterQueues, cq)
	}
	for _, name := range podsets.RuntimeClasses(slice.Spec.PodSets) {
		var class nodev1.RuntimeClass
		if err := r.live.Get(ctx, client.ObjectKey{Name: name}, &class); err != nil {
			return nil, fmt.Errorf("reading RuntimeClass %s: %w", name, err)
		}
		c.RuntimeClasses = append(c.RuntimeClasses, class)
	}
	return c, nil
}

// page is how many Workloads are read at once: one answer with all of a large cluster would hold up the API server.
const page = 500

// workloads returns the Workloads of the namespaces that have a LocalQueue which leads to the ClusterQueue: the API
// server can't select them by that. What holds quota of it from elsewhere, because its LocalQueue is gone, is in the
// ClusterQueue's status, by which grow.Want.Free bounds what is asked.
func (r *room) workloads(ctx context.Context, c *simulate.Cluster) ([]kueue.Workload, error) {
	namespaces := sets.New[string]()
	for i := range c.LocalQueues {
		if lq := &c.LocalQueues[i]; string(lq.Spec.ClusterQueue) == c.ClusterQueues[0].Name {
			namespaces.Insert(lq.Namespace)
		}
	}
	var all []kueue.Workload
	for _, namespace := range sets.List(namespaces) {
		for next, more := "", true; more; more = next != "" {
			var list kueue.WorkloadList
			err := r.live.List(ctx, &list, client.InNamespace(namespace), client.Limit(page), client.Continue(next))
			if err != nil {
				return nil, err
			}
			all, next = append(all, list.Items...), list.Continue
		}
	}
	return all, nil
}
