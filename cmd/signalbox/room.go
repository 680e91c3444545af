package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueueconfig "sigs.k8s.io/kueue/apis/config/v1beta2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/workloadslicing"

	"github.com/signalbox-dev/signalbox/cmd/kubectl-signalbox/simulate"
	"github.com/signalbox-dev/signalbox/podsets"
)

// room asks a simulation of Kueue's scheduler with how many pods a slice would be admitted. One runs at a time. It
// reads all Workloads from the API server, because the manager's cache has those of TrainJobs alone.
type room struct {
	cached, live client.Reader
	resources    *kueueconfig.Resources // of Kueue's configuration
	clock        clock.PassiveClock
	mu           sync.Mutex
}

// Most implements integration.Room.
func (r *room) Most(
	ctx context.Context, slice *kueue.Workload, podSet kueue.PodSetReference, least int32,
) (int32, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	cluster, err := r.cluster(ctx, slice)
	if err != nil {
		return 0, fmt.Errorf("reading the queues: %w", err)
	}
	now := r.clock.Now()
	waits := slice.DeepCopy()
	waits.UID, waits.CreationTimestamp = types.UID(slice.Name), metav1.NewTime(now)
	replaced, _ := strings.CutPrefix(string(*workloadslicing.ReplacementForKey(slice)), slice.Namespace+"/")
	stays := types.NamespacedName{Namespace: slice.Namespace, Name: replaced}
	return simulate.Most(ctx, cluster, simulate.Growth{Workload: waits, PodSet: podSet, Least: least, Stays: stays}, now)
}

// cluster reads what decides about a slice. Its ClusterQueue has neither a cohort nor a topology.
func (r *room) cluster(ctx context.Context, slice *kueue.Workload) (*simulate.Cluster, error) {
	var namespaces corev1.NamespaceList
	var limits corev1.LimitRangeList
	var locals kueue.LocalQueueList
	var flavors kueue.ResourceFlavorList
	err := errors.Join(r.cached.List(ctx, &namespaces), r.cached.List(ctx, &limits), r.cached.List(ctx, &locals),
		r.cached.List(ctx, &flavors))
	if err != nil {
		return nil, err
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
			return nil, err
		}
		c.ClusterQueues = append(c.ClusterQueues, cq)
	}
	for _, name := range podsets.RuntimeClasses(slice.Spec.PodSets) {
		var class nodev1.RuntimeClass
		if err := r.live.Get(ctx, client.ObjectKey{Name: name}, &class); err != nil {
			return nil, err
		}
		c.Surroundings.RuntimeClasses = append(c.Surroundings.RuntimeClasses, class)
	}
	c.Workloads, err = r.workloads(ctx)
	return c, err
}

// page is how many Workloads are read at once: one answer with all of a large cluster would hold up the API server.
const page = 500

func (r *room) workloads(ctx context.Context) ([]kueue.Workload, error) {
	var all []kueue.Workload
	for next := ""; ; {
		var list kueue.WorkloadList
		if err := r.live.List(ctx, &list, client.Limit(page), client.Continue(next)); err != nil {
			return nil, err
		}
		all = append(all, list.Items...)
		if next = list.Continue; next == "" {
			return all, nil
		}
	}
}
