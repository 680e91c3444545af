package simulate

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/util/sets"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
)

// changes returns what would have a Workload admitted: now, or if it never is as it stands, with nobody else.
func changes(ctx context.Context, cluster *Cluster, wl *kueue.Workload, alone bool, now time.Time) ([]Change, error) {
	if alone {
		cluster = cluster.With([]kueue.Workload{*wl})
	}
	try := func(change func(*kueue.Workload)) (*kueue.Admission, error) {
		other := wl.DeepCopy()
		change(other)
		is, err := settleOne(ctx, cluster.Put(other), other, now)
		if err != nil || !holdsQuota(is) {
			return nil, err
		}
		return is.Status.Admission, nil
	}
	var found []Change
	type search = func(*kueue.Workload, *Cluster, trial) ([]Change, error)
	for _, next := range []search{otherQueues, withoutSelector, fewerNodes} {
		some, err := next(wl, cluster, try)
		if err != nil {
			return nil, err
		}
		found = append(found, some...)
	}
	return found, nil
}

// trial returns what a Workload gets when it is changed; nil for nothing.
type trial = func(change func(*kueue.Workload)) (*kueue.Admission, error)

// otherQueues returns the other LocalQueues of the namespace that have room.
func otherQueues(wl *kueue.Workload, cluster *Cluster, try trial) ([]Change, error) {
	var found []Change
	for i := range cluster.LocalQueues {
		lq := &cluster.LocalQueues[i]
		if lq.Namespace != wl.Namespace || lq.Name == string(wl.Spec.QueueName) {
			continue
		}
		admission, err := try(func(wl *kueue.Workload) { wl.Spec.QueueName = kueue.LocalQueueName(lq.Name) })
		if err != nil {
			return nil, err
		}
		if admission != nil {
			found = append(found, Change{Queue: lq.Name, Admission: admission})
		}
	}
	return found, nil
}

// withoutSelector returns the node labels that no flavor with room has.
func withoutSelector(wl *kueue.Workload, cluster *Cluster, try trial) ([]Change, error) {
	labels, selected := sets.New[string](), sets.New[string]()
	for i := range cluster.Flavors {
		labels = labels.Union(sets.KeySet(cluster.Flavors[i].Spec.NodeLabels))
	}
	for i := range wl.Spec.PodSets {
		selected = selected.Union(sets.KeySet(wl.Spec.PodSets[i].Template.Spec.NodeSelector))
	}
	selected = selected.Intersection(labels)
	if len(selected) == 0 {
		return nil, nil
	}
	admission, err := try(func(wl *kueue.Workload) {
		for i := range wl.Spec.PodSets {
			for key := range selected {
				delete(wl.Spec.PodSets[i].Template.Spec.NodeSelector, key)
			}
		}
	})
	if err != nil || admission == nil {
		return nil, err
	}
	return []Change{{Selector: sets.List(selected), Admission: admission}}, nil
}

// fewerNodes returns the largest number of pods of the largest PodSet that is admitted. More pods never fit where fewer
// don't, so that it is found by halving.
func fewerNodes(wl *kueue.Workload, _ *Cluster, try trial) ([]Change, error) {
	largest := 0
	for i := range wl.Spec.PodSets {
		if wl.Spec.PodSets[i].Count > wl.Spec.PodSets[largest].Count {
			largest = i
		}
	}
	var best Change
	low, high := int32(0), wl.Spec.PodSets[largest].Count-1
	for low < high {
		middle := (low + high + 1) / 2
		admission, err := try(func(wl *kueue.Workload) {
			wl.Spec.PodSets[largest].Count, wl.Spec.PodSets[largest].MinCount = middle, nil
		})
		if err != nil {
			return nil, err
		}
		if admission == nil {
			high = middle - 1
			continue
		}
		low, best.Nodes, best.Admission = middle, middle, admission
	}
	if best.Nodes == 0 {
		return nil, nil
	}
	return []Change{best}, nil
}
