package main

import (
	"fmt"

	"k8s.io/apimachinery/pkg/api/resource"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
)

// lender is quota of a ClusterQueue.
type lender struct{ queue, flavor, resource string }

// lent is how much of it others in its cohort tree have borrowed. Kueue keeps what a cohort's ClusterQueues have
// borrowed together, not of whom; so there is a least and a most.
type lent struct{ least, most resource.Quantity }

// String says it; "" for nothing.
func (l lent) String() string {
	switch {
	case l.most.Sign() <= 0:
		return ""
	case l.least.Cmp(l.most) == 0:
		return l.most.String() + " lent"
	}
	return fmt.Sprintf("between %s and %s lent", l.least.String(), l.most.String())
}

// share is a flavor's resource in a cohort tree.
type share struct {
	root             kueue.CohortReference
	flavor, resource string
}

// lentBy returns what the ClusterQueues have lent.
func lentBy(q *queues) map[lender]lent {
	borrowed, unused := map[share]resource.Quantity{}, map[share]resource.Quantity{}
	spare, in := map[lender]resource.Quantity{}, map[lender]share{}
	plus := func(to map[share]resource.Quantity, s share, amount resource.Quantity) {
		sum := to[s]
		sum.Add(amount)
		to[s] = sum
	}
	for i := range q.ClusterQueues {
		cq := &q.ClusterQueues[i]
		if cq.Spec.CohortName == "" {
			continue
		}
		root := q.Root(cq.Spec.CohortName)
		eachQuota(cq.Spec.ResourceGroups, func(fq kueue.ResourceFlavorReference, rq *kueue.ResourceQuota) {
			usage := usageOf(cq, fq, rq.Name)
			s := share{root, string(fq), string(rq.Name)}
			plus(borrowed, s, usage.Borrowed)
			left := rq.NominalQuota.DeepCopy()
			left.Sub(usage.Total)
			if rq.LendingLimit != nil && left.Cmp(*rq.LendingLimit) > 0 {
				left = rq.LendingLimit.DeepCopy()
			}
			if left.Sign() < 0 {
				left = resource.Quantity{}
			}
			l := lender{cq.Name, s.flavor, s.resource}
			spare[l], in[l] = left, s
			plus(unused, s, left)
		})
	}
	for i := range q.Cohorts {
		root := q.Root(kueue.CohortReference(q.Cohorts[i].Name))
		eachQuota(q.Cohorts[i].Spec.ResourceGroups, func(fq kueue.ResourceFlavorReference, rq *kueue.ResourceQuota) {
			plus(unused, share{root, string(fq), string(rq.Name)}, rq.NominalQuota)
		})
	}
	all := map[lender]lent{}
	for l, own := range spare {
		lends := lent{least: borrowed[in[l]].DeepCopy(), most: borrowed[in[l]].DeepCopy()}
		others := unused[in[l]].DeepCopy()
		others.Sub(own)
		lends.least.Sub(others)
		if lends.least.Sign() < 0 {
			lends.least = resource.Quantity{}
		}
		if lends.most.Cmp(own) > 0 {
			lends.most = own
		}
		if lends.least.Cmp(lends.most) > 0 {
			lends.least = lends.most
		}
		all[l] = lends
	}
	return all
}

// eachQuota calls a function for each quota of resource groups.
func eachQuota(groups []kueue.ResourceGroup, f func(kueue.ResourceFlavorReference, *kueue.ResourceQuota)) {
	for _, group := range groups {
		for i := range group.Flavors {
			for j := range group.Flavors[i].Resources {
				f(group.Flavors[i].Name, &group.Flavors[i].Resources[j])
			}
		}
	}
}
