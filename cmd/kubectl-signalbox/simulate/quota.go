package simulate

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/ptr"
	kueueconfig "sigs.k8s.io/kueue/apis/config/v1beta2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	schdcache "sigs.k8s.io/kueue/pkg/cache/scheduler"
	"sigs.k8s.io/kueue/pkg/resources"
	"sigs.k8s.io/kueue/pkg/scheduler/flavorassigner"
	preemptioncommon "sigs.k8s.io/kueue/pkg/scheduler/preemption/common"
	utilpriority "sigs.k8s.io/kueue/pkg/util/priority"
	utilslices "sigs.k8s.io/kueue/pkg/util/slices"
	"sigs.k8s.io/kueue/pkg/workload"

	"github.com/signalbox-dev/signalbox/podsets"
)

// Quota is what a Workload needs of one resource in one flavor of its ClusterQueue, and what there is. All amounts are
// from the snapshot that Kueue's scheduler decides on.
type Quota struct {
	Flavor   string `json:"name"`
	Resource string `json:"resource"`
	// Needed is what the PodSets request that the flavor suits, or all PodSets if it suits none.
	Needed resource.Quantity `json:"needed"`
	// Free is what is left of the quota, with what may be borrowed; Short is how much is missing.
	Free  resource.Quantity `json:"free"`
	Short resource.Quantity `json:"short,omitzero"`
	// Nominal is the ClusterQueue's own quota; Most is the most that it may ever use.
	Nominal resource.Quantity `json:"nominal"`
	Most    resource.Quantity `json:"most"`
	// Unsuitable is Kueue's reason why the flavor suits none of the PodSets; "" if it suits one.
	Unsuitable string `json:"unsuitable,omitempty"`
	// Holders are the Workloads of the cohort that hold the resource, those that hold most first.
	Holders []Holder `json:"holders,omitempty"`
	Sharing `json:"-"`
}

// Sharing is what a ClusterQueue and its cohort have of a resource in a flavor.
type Sharing struct {
	// Unused is what the ClusterQueue leaves of its own quota; it is negative if it borrows.
	Unused resource.Quantity
	// Borrowed is what other ClusterQueues use beyond their own quota.
	Borrowed resource.Quantity
	// Limited is set if the ClusterQueue's borrowingLimit makes less free, Cohort if it has a cohort.
	Limited, Cohort bool
}

// Holder is a Workload that holds some of a flavor.
type Holder struct {
	Namespace    string            `json:"namespace"`
	Name         string            `json:"name"`
	ClusterQueue string            `json:"clusterQueue"`
	Amount       resource.Quantity `json:"amount"`
	Priority     int32             `json:"priority"`
	Since        time.Time         `json:"since"`
	// Workload is its name, which users don't know it by.
	Workload string `json:"-"`
}

// Owner returns the name by which users know a Workload: that of the job that it is for.
func Owner(wl *kueue.Workload) string {
	if owner := metav1.GetControllerOfNoCopy(wl); owner != nil {
		return owner.Name
	}
	return wl.Name
}

// Owners returns the jobs of Workloads, as NAMESPACE/NAME. A Workload that isn't known is named itself.
func (c *Cluster) Owners(keys []types.NamespacedName) []string {
	var names []string
	for _, key := range keys {
		if wl := c.Workload(key); wl != nil {
			key.Name = Owner(wl)
		}
		names = append(names, key.String())
	}
	return names
}

// formatter has Kueue's format of quantities.
var formatter = resources.NewResourceFormatter()

// quota returns the quota of a Workload's ClusterQueue for what the Workload requests.
func (c *Cluster) quota(ctx context.Context, wl *kueue.Workload, now time.Time) ([]Quota, error) {
	r, err := newRound(ctx, c, now)
	if err != nil {
		return nil, err
	}
	snapshot, err := r.cache.Snapshot(quiet(ctx))
	if err != nil {
		return nil, err
	}
	cq := snapshot.ClusterQueue(kueue.ClusterQueueReference(c.clusterQueueOf(wl).Name))
	if cq == nil {
		return nil, nil // it isn't active
	}
	requests := c.Counting(wl.Namespace).Of(wl.Spec.PodSets)
	var all []Quota
	for _, group := range cq.ResourceGroups {
		reasons := make([]map[kueue.ResourceFlavorReference]string, len(requests))
		for i := range requests {
			reasons[i] = unsuitable(quiet(ctx), snapshot, cq, onlyPodSet(wl, i), group.CoveredResources)
		}
		for _, flavor := range group.Flavors {
			for _, name := range slices.Sorted(maps.Keys(group.CoveredResources)) {
				row := Quota{Flavor: string(flavor), Resource: string(name)}
				if needed := row.need(requests, reasons); needed.CmpInt64(0) > 0 {
					row.fill(cq, resources.FlavorResource{Flavor: flavor, Resource: name}, needed)
					all = append(all, row)
				}
			}
		}
	}
	return all, nil
}

// inactive returns Kueue's reason why a ClusterQueue admits nothing; "" if it does.
func (c *Cluster) inactive(ctx context.Context, name kueue.ClusterQueueReference, now time.Time) (string, error) {
	r, err := newRound(ctx, c.With(nil), now)
	if err != nil {
		return "", err
	}
	status, _, message := r.cache.ClusterQueueReadiness(name)
	if status == metav1.ConditionTrue {
		return "", nil
	}
	return fmt.Sprintf("ClusterQueue %s is inactive: %s", name, message), nil
}

// Counting returns how Kueue counts the pods of a namespace's Workloads.
func (c *Cluster) Counting(namespace string) podsets.Counting {
	return podsets.Counting{
		RuntimeClasses: c.RuntimeClasses,
		Resources:      ptr.Deref(c.Config, kueueconfig.Configuration{}).Resources,
		LimitRanges: utilslices.Pick(c.LimitRanges, func(limits *corev1.LimitRange) bool {
			return limits.Namespace == namespace
		}),
	}
}

// need returns what the PodSets request that the flavor suits. If it suits none, it returns what all request, and sets
// why. reasons are by PodSet and flavor.
func (q *Quota) need(
	requests []workload.PodSetResources, reasons []map[kueue.ResourceFlavorReference]string,
) resources.Amount {
	suited, all := resources.NewAmount(0), resources.NewAmount(0)
	why := ""
	for i := range requests {
		amount := int64(requests[i].Count)
		if name := corev1.ResourceName(q.Resource); name != corev1.ResourcePods {
			amount = requests[i].Requests.ResourceValue(name)
		}
		all = all.AddInt64(amount)
		if reason := reasons[i][kueue.ResourceFlavorReference(q.Flavor)]; reason == "" {
			suited = suited.AddInt64(amount)
		} else if amount > 0 {
			why = reason
		}
	}
	if suited.CmpInt64(0) > 0 {
		return suited
	}
	q.Unsuitable = why
	return all
}

func (q *Quota) fill(cq *schdcache.ClusterQueueSnapshot, fr resources.FlavorResource, needed resources.Amount) {
	quantity := func(a resources.Amount) resource.Quantity { return formatter.ResourceQuantity(fr.Resource, a.Int64()) }
	zero := resources.NewAmount(0)
	nominal, free := cq.QuotaFor(fr).Nominal, cq.Available(fr)
	q.Needed, q.Free, q.Nominal, q.Most = quantity(needed), quantity(free), quantity(nominal),
		quantity(cq.PotentialAvailable(fr))
	q.Short = quantity(resources.MaxAmount(zero, needed.Sub(free)))
	q.Unused = quantity(nominal.Sub(cq.ResourceNode.Usage[fr]))
	tree := []*schdcache.ClusterQueueSnapshot{cq}
	if q.Cohort = cq.HasParent(); q.Cohort {
		tree = cq.Parent().Root().SubtreeClusterQueues()
		q.Limited = free.Cmp(unlimited(cq, fr)) < 0
	}
	borrowed := zero
	for _, other := range tree {
		q.hold(other, fr)
		if other != cq {
			borrowed = borrowed.Add(resources.MaxAmount(zero, other.ResourceNode.Usage[fr].Sub(other.QuotaFor(fr).Nominal)))
		}
	}
	q.Borrowed = quantity(borrowed)
	slices.SortStableFunc(q.Holders, func(a, b Holder) int {
		return cmp.Or(b.Amount.Cmp(a.Amount), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
}

func (q *Quota) hold(cq *schdcache.ClusterQueueSnapshot, fr resources.FlavorResource) {
	for _, info := range cq.Workloads {
		amount := info.FlavorResourceUsage()[fr]
		if amount.CmpInt64(0) <= 0 {
			continue
		}
		q.Holders = append(q.Holders, Holder{
			Namespace: info.Obj.Namespace, Name: Owner(info.Obj), ClusterQueue: string(cq.Name),
			Workload: info.Obj.Name,
			Amount:   formatter.ResourceQuantity(fr.Resource, amount.Int64()),
			Priority: utilpriority.Priority(info.Obj), Since: quotaSince(info.Obj, time.Time{}),
		})
	}
}

// unlimited returns what would be free if the ClusterQueue had no borrowingLimit.
func unlimited(cq *schdcache.ClusterQueueSnapshot, fr resources.FlavorResource) resources.Amount {
	before := cq.ResourceNode.Quotas
	defer func() { cq.ResourceNode.Quotas = before }()
	quota := before[fr]
	quota.BorrowingLimit = nil
	cq.ResourceNode.Quotas = maps.Clone(before)
	cq.ResourceNode.Quotas[fr] = quota
	return cq.Available(fr)
}

// onlyPodSet returns a Workload with one of its PodSets.
func onlyPodSet(wl *kueue.Workload, podSet int) *kueue.Workload {
	wl = wl.DeepCopy()
	wl.Spec.PodSets, wl.Status = wl.Spec.PodSets[podSet:podSet+1], kueue.WorkloadStatus{}
	return wl
}

// unsuitable returns Kueue's reasons why flavors don't suit a Workload of one PodSet. Kueue looks at a flavor only if
// the one before hasn't enough quota, so that it is asked for more than any has.
func unsuitable(
	ctx context.Context, snapshot *schdcache.Snapshot, cq *schdcache.ClusterQueueSnapshot, wl *kueue.Workload,
	covered sets.Set[corev1.ResourceName],
) map[kueue.ResourceFlavorReference]string {
	info := workload.NewInfo(wl)
	info.TotalRequests[0].Requests = resources.NewRequests()
	for name := range covered {
		info.TotalRequests[0].Requests.Set(name, math.MaxInt64/2)
	}
	assignment := flavorassigner.New(info, cq, snapshot.ResourceFlavors, false, nobody{}, nil, "", formatter, 0).
		Assign(ctx, nil)
	reasons := map[kueue.ResourceFlavorReference]string{}
	for _, attempt := range assignment.PodSets[0].FlavorAssignmentAttempts {
		for _, reason := range attempt.Reasons {
			if !strings.HasPrefix(reason, "insufficient ") {
				reasons[attempt.Flavor] = reason
			}
		}
	}
	return reasons
}

// nobody can be preempted.
type nobody struct{}

// SimulatePreemption implements the oracle of Kueue's flavorassigner.
func (nobody) SimulatePreemption(
	context.Context, *schdcache.ClusterQueueSnapshot, workload.Info, resources.FlavorResource, resources.Amount,
) (preemptioncommon.PreemptionPossibility, int) {
	return preemptioncommon.NoCandidates, 0
}

// Held returns what a Workload that has quota counts of each flavor, as Kueue counts it.
func Held(wl *kueue.Workload) map[resources.FlavorResource]resource.Quantity {
	held := map[resources.FlavorResource]resource.Quantity{}
	for fr, amount := range workload.NewInfo(wl).FlavorResourceUsage() {
		held[fr] = formatter.ResourceQuantity(fr.Resource, amount.Int64())
	}
	return held
}
