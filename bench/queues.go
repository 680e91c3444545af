package main

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
)

// How many LocalQueues of a ground share a ClusterQueue, and how many a cohort.
const (
	localOfCluster = 4
	localOfCohort  = 20
)

// queues are the LocalQueues of a ground, and the ClusterQueues behind them. The number of LocalQueues is 1, with a
// ClusterQueue of its own, or a multiple of localOfCohort.
type queues int

func (q queues) validate() error {
	if q != 1 && (q < localOfCohort || q%localOfCohort != 0) {
		return fmt.Errorf("--queues is %d; it must be 1 or a multiple of %d", q, localOfCohort)
	}
	return nil
}

func (q queues) clusters() int { return max(int(q)/localOfCluster, 1) }

func (q queues) cohorts() int { return max(int(q)/localOfCohort, 1) }

// name returns the name of the nth queue of several. One queue alone has the namespace's name.
func (q queues) name(n int) string {
	if q == 1 {
		return namespace
	}
	return fmt.Sprintf("%s-%d", namespace, n)
}

// of returns the name of the LocalQueue of the ith TrainJob.
func (q queues) of(i int) string { return q.name(i % int(q)) }

// objects returns the ClusterQueues and LocalQueues. The cohorts have the quota between them, so that as many TrainJobs
// of two GPUs as there is quota for fit into them in turns.
func (q queues) objects() []client.Object {
	var all []client.Object
	for n := range q.clusters() {
		cohort, member := n%q.cohorts(), n/q.cohorts()
		cq := &kueue.ClusterQueue{
			ObjectMeta: metav1.ObjectMeta{Name: q.name(n)},
			Spec: kueue.ClusterQueueSpec{
				NamespaceSelector: &metav1.LabelSelector{},
				ResourceGroups: []kueue.ResourceGroup{{
					CoveredResources: []corev1.ResourceName{gpu},
					Flavors: []kueue.FlavorQuotas{
						quota("a100", share(q.pairs(cohort)*2, q.clusters()/q.cohorts(), member)),
						quota("h100", share(q.pairs(cohort+q.cohorts()-pairsOfFlavor%q.cohorts())*2,
							q.clusters()/q.cohorts(), member)),
					},
				}},
			},
		}
		if q > 1 {
			cq.Spec.CohortName = kueue.CohortReference(fmt.Sprintf("%s-%d", namespace, cohort))
		}
		all = append(all, cq)
	}
	for n := range int(q) {
		all = append(all, &kueue.LocalQueue{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: q.name(n)},
			Spec:       kueue.LocalQueueSpec{ClusterQueue: kueue.ClusterQueueReference(q.name(n % q.clusters()))},
		})
	}
	return all
}

// pairsOfFlavor is how many TrainJobs of two GPUs a flavor has quota for.
const pairsOfFlavor = quotaOfFlavor / 2

// pairs returns for how many TrainJobs of two GPUs a cohort has quota of a flavor.
func (q queues) pairs(cohort int) int { return share(pairsOfFlavor, q.cohorts(), cohort%q.cohorts()) }

// share returns the nth of the nearly equal shares of a whole.
func share(whole, shares, n int) int {
	if n < whole%shares {
		return whole/shares + 1
	}
	return whole / shares
}

func quota(flavor kueue.ResourceFlavorReference, gpus int) kueue.FlavorQuotas {
	return kueue.FlavorQuotas{Name: flavor, Resources: []kueue.ResourceQuota{{
		Name: gpu, NominalQuota: *resource.NewQuantity(int64(gpus), resource.DecimalSI),
	}}}
}

// preempting returns a ClusterQueue in which priority preempts, and the LocalQueue of its name.
func preempting(name string, resource corev1.ResourceName, quotas ...kueue.FlavorQuotas) []client.Object {
	return []client.Object{
		&kueue.ClusterQueue{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: kueue.ClusterQueueSpec{
				NamespaceSelector: &metav1.LabelSelector{},
				Preemption:        &kueue.ClusterQueuePreemption{WithinClusterQueue: kueue.PreemptionPolicyLowerPriority},
				ResourceGroups: []kueue.ResourceGroup{{
					CoveredResources: []corev1.ResourceName{resource}, Flavors: quotas,
				}},
			},
		},
		&kueue.LocalQueue{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
			Spec:       kueue.LocalQueueSpec{ClusterQueue: kueue.ClusterQueueReference(name)},
		},
	}
}

// active reports whether all ClusterQueues are active.
func (g *ground) active(ctx context.Context) (bool, error) {
	var all kueue.ClusterQueueList
	if err := g.client.List(ctx, &all); err != nil {
		return false, err
	}
	for i := range all.Items {
		if !apimeta.IsStatusConditionTrue(all.Items[i].Status.Conditions, kueue.ClusterQueueActive) {
			return false, nil
		}
	}
	return true, nil
}

// hold sets the stop policy of all ClusterQueues.
func (g *ground) hold(ctx context.Context, policy kueue.StopPolicy) error {
	var all kueue.ClusterQueueList
	if err := g.client.List(ctx, &all); err != nil {
		return err
	}
	return atOnce(len(all.Items), func(i int) error {
		before := all.Items[i].DeepCopy()
		all.Items[i].Spec.StopPolicy = ptr.To(policy)
		return g.client.Patch(ctx, &all.Items[i], client.MergeFrom(before))
	})
}
