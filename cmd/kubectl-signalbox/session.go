package main

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/simulate"
)

// session is a cluster, as one user sees it.
type session struct {
	config    *rest.Config
	client    client.WithWatch
	clients   kubernetes.Interface
	namespace string
	// kueueNamespace is where Kueue runs.
	kueueNamespace string
	streams        genericiooptions.IOStreams
	// missing are the rights that the user lacks, such as "list nodes".
	missing []string
}

// newSession connects to the cluster that the flags name.
func newSession(
	flags *genericclioptions.ConfigFlags, kueueNamespace string, streams genericiooptions.IOStreams,
) (*session, error) {
	config, err := flags.ToRESTConfig()
	if err != nil {
		return nil, fmt.Errorf("finding the cluster: %w", err)
	}
	config.QPS, config.Burst = 50, 100 // a command makes a few dozen requests at once
	namespace, _, err := flags.ToRawKubeConfigLoader().Namespace()
	if err != nil {
		return nil, fmt.Errorf("reading the kubeconfig: %w", err)
	}
	scheme, err := newScheme()
	if err != nil {
		return nil, err
	}
	c, err := client.NewWithWatch(config, client.Options{Scheme: scheme})
	if err != nil {
		return nil, fmt.Errorf("connecting: %w", err)
	}
	clients, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("connecting: %w", err)
	}
	return &session{config: config, client: c, clients: clients, namespace: namespace, kueueNamespace: kueueNamespace,
		streams: streams}, nil
}

// newScheme returns the kinds that the commands read.
func newScheme() (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), api.AddToScheme(scheme), kueue.AddToScheme(scheme),
		jobset.AddToScheme(scheme), apiextensionsv1.AddToScheme(scheme), admissionv1.AddToScheme(scheme)); err != nil {
		return nil, err
	}
	return scheme, nil
}

// cli is what all commands share.
type cli struct {
	streams genericiooptions.IOStreams
	// connect returns a session with the cluster that the flags name.
	connect func() (*session, error)
}

// connected returns a cobra function that runs with a session.
func connected(
	c *cli, run func(ctx context.Context, s *session, args []string) error,
) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		s, err := c.connect()
		if err != nil {
			return err
		}
		return run(cmd.Context(), s, args)
	}
}

// lacks notes that the user lacks a right, once.
func (s *session) lacks(right string) {
	if !slices.Contains(s.missing, right) {
		s.missing = append(s.missing, right)
	}
}

// list reads objects. It reports whether they could be read: what the user may not read is noted, and kinds that the
// cluster doesn't have are none.
func (s *session) list(
	ctx context.Context,
	list client.ObjectList,
	what string,
	options ...client.ListOption,
) (bool, error) {
	err := s.client.List(ctx, list, options...)
	switch {
	case err == nil:
		return true, nil
	case apimeta.IsNoMatchError(err) || apierrors.IsNotFound(err):
		return true, nil
	case apierrors.IsForbidden(err):
		s.lacks("list " + what)
		return false, nil
	}
	return false, fmt.Errorf("listing %s: %w", what, err)
}

// scope is of which namespaces objects were read.
type scope int

const (
	nowhere scope = iota
	ownNamespace
	everywhere
)

// listWide reads objects of all namespaces, or of the user's own if that isn't allowed.
func (s *session) listWide(ctx context.Context, list client.ObjectList, what, namespace string) (scope, error) {
	if read, err := s.list(ctx, list, what); err != nil || read {
		return everywhere, err
	}
	read, err := s.list(ctx, list, what+" in namespace "+namespace, client.InNamespace(namespace))
	if err != nil || !read {
		return nowhere, err
	}
	return ownNamespace, nil
}

// queues is what a user sees of the queues.
type queues struct {
	simulate.Cluster
	// clusterQueues is set if all ClusterQueues were read, nodes if all nodes and pods were, or aren't needed.
	clusterQueues, nodes bool
	// localQueues and workloads say which were read.
	localQueues, workloads scope
}

// queues reads all that Kueue decides on, as far as the user may.
func (s *session) queues(ctx context.Context, namespace string) (*queues, error) {
	q := &queues{}
	var clusterQueues kueue.ClusterQueueList
	var localQueues kueue.LocalQueueList
	var cohorts kueue.CohortList
	var flavors kueue.ResourceFlavorList
	var topologies kueue.TopologyList
	var checks kueue.AdmissionCheckList
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
	read := map[client.ObjectList]bool{}
	for what, list := range map[string]client.ObjectList{
		"cohorts.kueue.x-k8s.io": &cohorts, "resourceflavors.kueue.x-k8s.io": &flavors,
		"topologies.kueue.x-k8s.io": &topologies, "admissionchecks.kueue.x-k8s.io": &checks,
	} {
		if read[list], err = s.list(ctx, list, what); err != nil {
			return nil, err
		}
	}
	q.ClusterQueues, q.LocalQueues, q.Cohorts = clusterQueues.Items, localQueues.Items, cohorts.Items
	q.Flavors, q.Topologies, q.AdmissionChecks = flavors.Items, topologies.Items, checks.Items
	q.Workloads = workloads.Items
	q.assume(read[&flavors], read[&checks])
	if q.Config, err = s.kueueConfig(ctx); errors.Is(err, errConfig) {
		fmt.Fprintf(s.streams.ErrOut, "Kueue's defaults are assumed: %v\n", err)
	} else if err != nil && !errors.Is(err, errNoConfig) {
		return nil, err
	}
	return q, s.surroundings(ctx, q, namespace)
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
		q.Namespaces = namespacesOf(q.Workloads, namespace)
		for i := range q.ClusterQueues { // which namespaces a selector takes can't be known
			q.ClusterQueues[i].Spec.NamespaceSelector = &metav1.LabelSelector{}
		}
	}
	if _, err := s.listWide(ctx, &limits, "limitranges", namespace); err != nil {
		return err
	}
	if _, err := s.list(ctx, &classes, "runtimeclasses.node.k8s.io"); err != nil {
		return err
	}
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

// trainJob reads a TrainJob of the session's namespace.
func (s *session) trainJob(ctx context.Context, name string) (*api.TrainJob, error) {
	job := &api.TrainJob{}
	if err := s.client.Get(ctx, client.ObjectKey{Namespace: s.namespace, Name: name}, job); err != nil {
		return nil, fmt.Errorf("reading TrainJob %s in namespace %s: %w", name, s.namespace, err)
	}
	return job, nil
}

// workloadOf returns a TrainJob's Workload: the one that isn't finished, or else the last; nil if there is none.
func workloadOf(job *api.TrainJob, workloads []kueue.Workload) *kueue.Workload {
	var found *kueue.Workload
	for i := range workloads {
		wl := &workloads[i]
		if wl.Namespace != job.Namespace || !slices.ContainsFunc(wl.OwnerReferences, ownedBy(job)) {
			continue
		}
		if found == nil || isFinished(found) || found.CreationTimestamp.Before(&wl.CreationTimestamp) && !isFinished(wl) {
			found = wl
		}
	}
	return found
}
