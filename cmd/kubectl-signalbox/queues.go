package main

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	utilqueue "sigs.k8s.io/kueue/pkg/util/queue"

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
	var namespaces corev1.NamespaceList
	var classes nodev1.RuntimeClassList
	var limits corev1.LimitRangeList
	read := map[client.ObjectList]bool{}
	for _, kind := range []struct {
		name string
		list client.ObjectList
	}{
		{"cohorts.kueue.x-k8s.io", &cohorts}, {"resourceflavors.kueue.x-k8s.io", &flavors},
		{"topologies.kueue.x-k8s.io", &topologies}, {"admissionchecks.kueue.x-k8s.io", &checks},
		{"namespaces", &namespaces}, {"runtimeclasses.node.k8s.io", &classes},
	} {
		if read[kind.list], err = s.list(ctx, kind.list, kind.name); err != nil {
			return nil, err
		}
	}
	limited, err := s.listWide(ctx, &limits, "limitranges", namespace)
	if err != nil {
		return nil, err
	}
	q.Cohorts, q.Flavors, q.Topologies, q.AdmissionChecks = cohorts.Items, flavors.Items, topologies.Items, checks.Items
	q.Namespaces, q.RuntimeClasses, q.LimitRanges = namespaces.Items, classes.Items, limits.Items
	q.assumed = limited == nowhere || slices.Contains(
		[]bool{read[&cohorts], read[&flavors], read[&topologies], read[&namespaces], read[&classes]}, false)
	if !read[&flavors] {
		q.assumeFlavors()
	}
	if !read[&checks] {
		q.assumeChecks()
	}
	if !read[&namespaces] {
		q.assumeNamespaces(namespace)
	}
	if err := s.nodes(ctx, q); err != nil {
		return nil, err
	}
	q.index = explain.NewQueues(q.Cluster)
	return q, nil
}

// assumeFlavors adds the flavors of ClusterQueues, without labels and taints.
func (q *queues) assumeFlavors() {
	names := sets.New[kueue.ResourceFlavorReference]()
	for i := range q.ClusterQueues {
		names = names.Union(utilqueue.AllFlavors(q.ClusterQueues[i].Spec.ResourceGroups))
	}
	for _, name := range sets.List(names) {
		q.Flavors = append(q.Flavors, kueue.ResourceFlavor{ObjectMeta: metav1.ObjectMeta{Name: string(name)}})
	}
}

// assumeChecks adds the admission checks of ClusterQueues, all of them active.
func (q *queues) assumeChecks() {
	names := sets.New[kueue.AdmissionCheckReference]()
	for i := range q.ClusterQueues {
		strategy := ptr.Deref(q.ClusterQueues[i].Spec.AdmissionChecksStrategy, kueue.AdmissionChecksStrategy{})
		for _, rule := range strategy.AdmissionChecks {
			names.Insert(rule.Name)
		}
	}
	active := metav1.Condition{Type: kueue.AdmissionCheckActive, Status: metav1.ConditionTrue}
	for _, name := range sets.List(names) {
		q.AdmissionChecks = append(q.AdmissionChecks, kueue.AdmissionCheck{
			ObjectMeta: metav1.ObjectMeta{Name: string(name)},
			Status:     kueue.AdmissionCheckStatus{Conditions: []metav1.Condition{active}},
		})
	}
}

// assumeNamespaces adds the namespaces of Workloads by their names alone, and has ClusterQueues take all of them: the
// labels that they select by may not be read.
func (q *queues) assumeNamespaces(own string) {
	names := sets.New(own)
	for i := range q.Workloads {
		names.Insert(q.Workloads[i].Namespace)
	}
	for _, name := range sets.List(names) {
		labels := map[string]string{corev1.LabelMetadataName: name}
		q.Namespaces = append(q.Namespaces, corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}})
	}
	for i := range q.ClusterQueues {
		q.ClusterQueues[i].Spec.NamespaceSelector = &metav1.LabelSelector{}
	}
}

// nodes reads the nodes and pods if a flavor has a topology.
func (s *session) nodes(ctx context.Context, q *queues) error {
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
