package explain

import (
	"cmp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/workload"
	workloadfinish "sigs.k8s.io/kueue/pkg/workload/finish"

	"github.com/signalbox-dev/signalbox/podsets"
	"github.com/signalbox-dev/signalbox/simulate"
)

// Flavor is what a TrainJob asks of a flavor of its ClusterQueue, and what there is.
type Flavor struct {
	Name     string `json:"name"`
	Resource string `json:"resource"`
	// Needed is what the TrainJob asks for.
	Needed string `json:"needed"`
	// Free is what is left of the quota, with what may be borrowed. Short is how much is missing.
	Free  string `json:"free"`
	Short string `json:"short,omitempty"`
	// Nominal is the ClusterQueue's own quota, Most the most that it may ever use.
	Nominal string `json:"nominal"`
	Most    string `json:"most"`
	// Unsuitable says why the flavor isn't for this TrainJob's pods; "" if it is.
	Unsuitable string `json:"unsuitable,omitempty"`
	// Holders are the Workloads that hold the resource, those that hold most first.
	Holders []Holder `json:"holders,omitempty"`

	amounts
}

// amounts are the numbers of a Flavor.
type amounts struct {
	// group is the number of its resource group: the pods need a flavor of each.
	group                                    int
	needed, free, short, nominal, most, used resource.Quantity
	// borrowed is what other ClusterQueues of the cohort use beyond their own quota.
	borrowed resource.Quantity
	limited  bool // by the borrowing limit, not by what there is
}

// Holder is a Workload that holds some of a flavor.
type Holder struct {
	Namespace    string    `json:"namespace"`
	Name         string    `json:"name"`
	ClusterQueue string    `json:"clusterQueue"`
	Amount       string    `json:"amount"`
	Priority     int32     `json:"priority"`
	Since        time.Time `json:"since"`

	amount resource.Quantity
}

// flavors returns the flavors of the TrainJob's ClusterQueue that have what it asks for; nil if they aren't known.
func (f *Facts) flavors() []Flavor {
	cq := f.clusterQueue()
	if cq == nil || f.Workload == nil {
		return nil
	}
	needed := requested(f.Workload)
	var all []Flavor
	for n, group := range cq.Spec.ResourceGroups {
		for _, fq := range group.Flavors {
			for _, rq := range fq.Resources {
				need, asked := needed[rq.Name]
				if !asked || need.IsZero() {
					continue
				}
				flavor := f.flavor(cq, fq.Name, rq, need)
				flavor.group, flavor.Unsuitable = n, f.unsuitable(fq.Name)
				all = append(all, flavor)
			}
		}
	}
	return all
}

// flavor computes one row.
func (f *Facts) flavor(
	cq *kueue.ClusterQueue, name kueue.ResourceFlavorReference, rq kueue.ResourceQuota, need resource.Quantity,
) Flavor {
	row := Flavor{
		Name: string(name), Resource: string(rq.Name),
		amounts: amounts{
			needed: need, nominal: rq.NominalQuota, most: rq.NominalQuota.DeepCopy(),
			used: used(&f.Cluster, cq.Name, name, rq.Name),
		},
	}
	row.free = rq.NominalQuota.DeepCopy()
	row.free.Sub(row.used)
	if cq.Spec.CohortName != "" {
		f.borrow(&row, cq, name, rq)
	}
	if row.free.Sign() < 0 {
		row.free = resource.Quantity{}
	}
	row.short = need.DeepCopy()
	row.short.Sub(row.free)
	if row.short.Sign() <= 0 {
		row.short = resource.Quantity{}
	} else {
		row.Short = row.short.String()
	}
	row.Needed, row.Free, row.Nominal, row.Most = need.String(), row.free.String(), row.nominal.String(), row.most.String()
	row.Holders = f.holders(cq, name, rq.Name)
	return row
}

// borrow adds what the cohort has. Kueue's rule for a flat cohort: all that its ClusterQueues lend and don't use, up to
// the borrowing limit.
func (f *Facts) borrow(
	row *Flavor, cq *kueue.ClusterQueue, name kueue.ResourceFlavorReference, rq kueue.ResourceQuota,
) {
	var lent, taken resource.Quantity
	for i := range f.Cluster.ClusterQueues {
		other := &f.Cluster.ClusterQueues[i]
		if other.Name == cq.Name || !f.sameTree(other.Spec.CohortName, cq.Spec.CohortName) {
			continue
		}
		quota := quotaOf(other, name, rq.Name)
		if quota == nil {
			continue
		}
		lends := ptr.Deref(quota.LendingLimit, quota.NominalQuota)
		lent.Add(lends)
		use := used(&f.Cluster, other.Name, name, rq.Name)
		over := use.DeepCopy()
		over.Sub(quota.NominalQuota)
		if over.Sign() > 0 {
			row.borrowed.Add(over)
		}
		kept := quota.NominalQuota.DeepCopy()
		kept.Sub(lends)
		use.Sub(kept)
		if use.Sign() > 0 {
			taken.Add(use)
		}
	}
	row.most.Add(lent)
	row.free = rq.NominalQuota.DeepCopy()
	row.free.Sub(row.used)
	row.free.Add(lent)
	row.free.Sub(taken)
	if rq.BorrowingLimit != nil {
		most := rq.NominalQuota.DeepCopy()
		most.Add(*rq.BorrowingLimit)
		if row.most.Cmp(most) > 0 {
			row.most = most
		}
		left := most.DeepCopy()
		left.Sub(row.used)
		if row.free.Cmp(left) > 0 {
			row.free, row.limited = left, true
		}
	}
}

// sameTree reports whether two cohorts have the same root.
func (f *Facts) sameTree(a, b kueue.CohortReference) bool {
	return a != "" && b != "" && f.Cluster.Root(a) == f.Cluster.Root(b)
}

func quotaOf(
	cq *kueue.ClusterQueue, name kueue.ResourceFlavorReference, resource corev1.ResourceName,
) *kueue.ResourceQuota {
	for _, group := range cq.Spec.ResourceGroups {
		for _, fq := range group.Flavors {
			for i := range fq.Resources {
				if fq.Name == name && fq.Resources[i].Name == resource {
					return &fq.Resources[i]
				}
			}
		}
	}
	return nil
}

// used returns what the Workloads of a ClusterQueue hold: by its status, which a user may read without the Workloads.
func used(
	c *simulate.Cluster, queue string, flavor kueue.ResourceFlavorReference, name corev1.ResourceName,
) resource.Quantity {
	cq := clusterQueueNamed(c, queue)
	if cq == nil {
		return resource.Quantity{}
	}
	for _, usage := range cq.Status.FlavorsReservation {
		for _, r := range usage.Resources {
			if usage.Name == flavor && r.Name == name {
				return r.Total.DeepCopy()
			}
		}
	}
	return resource.Quantity{}
}

// requested returns what the pods of a Workload ask for together.
func requested(wl *kueue.Workload) map[corev1.ResourceName]resource.Quantity {
	total := podsets.Counting{}.Total(wl)
	pods := total[corev1.ResourcePods]
	for i := range wl.Spec.PodSets {
		pods.Add(*resource.NewQuantity(int64(wl.Spec.PodSets[i].Count), resource.DecimalSI))
	}
	total[corev1.ResourcePods] = pods
	return total
}

// holders returns the Workloads that hold a flavor's resource in the ClusterQueue and in its cohort.
func (f *Facts) holders(
	cq *kueue.ClusterQueue, flavor kueue.ResourceFlavorReference, name corev1.ResourceName,
) []Holder {
	var all []Holder
	for i := range f.Cluster.Workloads {
		wl := &f.Cluster.Workloads[i]
		if wl.Status.Admission == nil || workloadfinish.IsFinished(wl) || !workload.HasQuotaReservation(wl) {
			continue
		}
		in := clusterQueueNamed(&f.Cluster, string(wl.Status.Admission.ClusterQueue))
		if in == nil || in.Name != cq.Name && !f.sameTree(in.Spec.CohortName, cq.Spec.CohortName) {
			continue
		}
		h := Holder{
			Namespace:    wl.Namespace,
			Name:         Owner(wl),
			ClusterQueue: in.Name,
			Priority:     ptr.Deref(wl.Spec.Priority, 0),
		}
		for _, a := range wl.Status.Admission.PodSetAssignments {
			if a.Flavors[name] == flavor {
				h.amount.Add(a.ResourceUsage[name])
			}
		}
		if h.amount.IsZero() {
			continue
		}
		if c := apimeta.FindStatusCondition(wl.Status.Conditions, kueue.WorkloadQuotaReserved); c != nil {
			h.Since = c.LastTransitionTime.Time
		}
		h.Amount = h.amount.String()
		all = append(all, h)
	}
	slices.SortStableFunc(all, func(a, b Holder) int {
		return cmp.Or(b.amount.Cmp(a.amount), cmp.Compare(a.Name, b.Name))
	})
	return all
}

// Owner returns the name by which users know a Workload: that of the job that it is for.
func Owner(wl *kueue.Workload) string {
	for _, ref := range wl.OwnerReferences {
		if ref.Controller != nil && *ref.Controller {
			return ref.Name
		}
	}
	return wl.Name
}

// unsuitable returns why a flavor isn't for the TrainJob's pods: as Kueue does, it compares node labels with the pods'
// node selector, and taints with their tolerations.
func (f *Facts) unsuitable(name kueue.ResourceFlavorReference) string {
	at := slices.IndexFunc(f.Cluster.Flavors, func(rf kueue.ResourceFlavor) bool { return rf.Name == string(name) })
	if at < 0 {
		return ""
	}
	flavor := &f.Cluster.Flavors[at]
	for i := range f.Workload.Spec.PodSets {
		spec := &f.Workload.Spec.PodSets[i].Template.Spec
		for key, want := range spec.NodeSelector {
			if has, labelled := flavor.Spec.NodeLabels[key]; labelled && has != want {
				return "nodeSelector[" + key + "] is " + want + ", and the flavor's nodes have " + has
			}
		}
		tolerations := append(slices.Clone(spec.Tolerations), flavor.Spec.Tolerations...)
		for _, taint := range flavor.Spec.NodeTaints {
			if taint.Effect == corev1.TaintEffectPreferNoSchedule {
				continue
			}
			if !slices.ContainsFunc(tolerations, func(t corev1.Toleration) bool { return tolerates(t, taint) }) {
				return "its nodes have taint " + taint.ToString() + ", which the pods don't tolerate"
			}
		}
	}
	return ""
}

func tolerates(t corev1.Toleration, taint corev1.Taint) bool {
	if t.Effect != "" && t.Effect != taint.Effect || t.Key != "" && t.Key != taint.Key {
		return false
	}
	return t.Operator == corev1.TolerationOpExists || t.Key != "" && t.Value == taint.Value
}
