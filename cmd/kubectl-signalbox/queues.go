package main

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/signalbox-dev/signalbox/cmd/kubectl-signalbox/explain"
	"github.com/signalbox-dev/signalbox/cmd/kubectl-signalbox/simulate"
)

// queues is what a user sees of the queues.
type queues struct {
	simulate.Cluster
	// index is of the cluster.
	index *explain.Queues
	// clusterQueues is set if all ClusterQueues were read, nodes if all nodes and pods were, or aren't needed. assumed is
	// set if the user may not read all that Kueue decides on, so that something is assumed.
	clusterQueues, nodes, assumed bool
	// localQueues and workloads say which were read.
	localQueues, workloads scope
}

// complete reports whether a simulation is possible.
func (q *queues) complete() bool {
	return q.clusterQueues && q.localQueues == everywhere && q.workloads == everywhere && q.nodes
}

// lines reads the queues and what waits in them, as far as the user may.
func (s *session) lines(ctx context.Context, namespace string) (*queues, error) {
	q := &queues{}
	var clusterQueues kueue.ClusterQueueList
	var localQueues kueue.LocalQueueList
	var workloads kueue.WorkloadList
	var err error
	if q.clusterQueues, err = s.list(ctx, &clusterQueues, "clusterqueues.kueue.x-k8s.io"); err != nil {
		return nil, err
	}
	if q.localQueues, err = s.listWide(ctx, &localQueues, "localqueues.kueue.x-k8s.io", namespace); err != nil {
		return nil, err
	}
	if q.workloads, err = s.listWide(ctx, &workloads, "workloads.kueue.x-k8s.io", namespace); err != nil {
		return nil, err
	}
	if q.Config, err = s.kueueConfig(ctx); errors.Is(err, errConfig) {
		fmt.Fprintf(s.streams.ErrOut, "Kueue's defaults are assumed: %v\n", err)
	} else if err != nil && !errors.Is(err, errNoConfig) {
		return nil, err
	}
	q.ClusterQueues, q.LocalQueues, q.Workloads = clusterQueues.Items, localQueues.Items, workloads.Items
	q.index = explain.NewQueues(q.Cluster)
	return q, nil
}

// queues reads all that Kueue decides on, as far as the user may.
func (s *session) queues(ctx context.Context, namespace string) (*queues, error) {
	q, err := s.lines(ctx, namespace)
	if err != nil {
		return nil, err
	}
	var cohorts kueue.CohortList
	var flavors kueue.ResourceFlavorList
	var topologies kueue.TopologyList
	var checks kueue.AdmissionCheckList
	read := map[client.ObjectList]bool{}
	for what, list := range map[string]client.ObjectList{
		"cohorts.kueue.x-k8s.io": &cohorts, "resourceflavors.kueue.x-k8s.io": &flavors,
		"topologies.kueue.x-k8s.io": &topologies, "admissionchecks.kueue.x-k8s.io": &checks,
	} {
		if read[list], err = s.list(ctx, list, what); err != nil {
			return nil, err
		}
	}
	q.Cohorts, q.Flavors, q.Topologies, q.AdmissionChecks = cohorts.Items, flavors.Items, topologies.Items, checks.Items
	q.assumed = !read[&cohorts] || !read[&flavors] || !read[&topologies]
	q.assume(read[&flavors], read[&checks])
	if err := s.surroundings(ctx, q, namespace); err != nil {
		return nil, err
	}
	q.index = explain.NewQueues(q.Cluster)
	return q, nil
}

// assume adds what ClusterQueues refer to and the user may not read: flavors without labels and taints, and admission
// checks that are active.
func (q *queues) assume(flavors, checks bool) {
	for i := range q.ClusterQueues {
		for _, group := range q.ClusterQueues[i].Spec.ResourceGroups {
			for _, fq := range group.Flavors {
				if !flavors {
					q.Flavors = appendNamed(q.Flavors, string(fq.Name))
				}
			}
		}
		strategy := q.ClusterQueues[i].Spec.AdmissionChecksStrategy
		if checks || strategy == nil {
			continue
		}
		for _, rule := range strategy.AdmissionChecks {
			q.AdmissionChecks = appendNamed(q.AdmissionChecks, string(rule.Name))
		}
	}
	for i := range q.AdmissionChecks {
		if !checks {
			q.AdmissionChecks[i].Status.Conditions = []metav1.Condition{
				{Type: kueue.AdmissionCheckActive, Status: metav1.ConditionTrue},
			}
		}
	}
}

// appendNamed appends an object of a name, once.
func appendNamed[T any, P interface {
	*T
	client.Object
}](all []T, name string) []T {
	for i := range all {
		if P(&all[i]).GetName() == name {
			return all
		}
	}
	var o T
	P(&o).SetName(name)
	return append(all, o)
}

// surroundings reads what a simulation needs in addition.
func (s *session) surroundings(ctx context.Context, q *queues, namespace string) error {
	var namespaces corev1.NamespaceList
	var limits corev1.LimitRangeList
	var classes nodev1.RuntimeClassList
	read, err := s.list(ctx, &namespaces, "namespaces")
	if err != nil {
		return err
	}
	if q.Namespaces = namespaces.Items; !read {
		q.assumed = true
		q.Namespaces = namespacesOf(q.Workloads, namespace)
		for i := range q.ClusterQueues { // which namespaces a selector takes can't be known
			q.ClusterQueues[i].Spec.NamespaceSelector = &metav1.LabelSelector{}
		}
	}
	limited, err := s.listWide(ctx, &limits, "limitranges", namespace)
	if err != nil {
		return err
	}
	if read, err = s.list(ctx, &classes, "runtimeclasses.node.k8s.io"); err != nil {
		return err
	}
	q.assumed = q.assumed || limited == nowhere || !read
	q.LimitRanges, q.RuntimeClasses = limits.Items, classes.Items
	if q.nodes = len(q.Topologies) == 0; q.nodes {
		return nil
	}
	var nodes corev1.NodeList
	var pods corev1.PodList
	nodesRead, err := s.list(ctx, &nodes, "nodes")
	if err != nil {
		return err
	}
	podsRead, err := s.list(ctx, &pods, "pods")
	q.Nodes, q.Pods, q.nodes = nodes.Items, pods.Items, nodesRead && podsRead
	return err
}

// namespacesOf returns the namespaces of Workloads by their names alone: their labels, which ClusterQueues select by,
// may not be read.
func namespacesOf(workloads []kueue.Workload, own string) []corev1.Namespace {
	names := []string{own}
	for i := range workloads {
		names = append(names, workloads[i].Namespace)
	}
	slices.Sort(names)
	var namespaces []corev1.Namespace
	for _, name := range slices.Compact(names) {
		namespace := corev1.Namespace{}
		namespace.Name, namespace.Labels = name, map[string]string{corev1.LabelMetadataName: name}
		namespaces = append(namespaces, namespace)
	}
	return namespaces
}
