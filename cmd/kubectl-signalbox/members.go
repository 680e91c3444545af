package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/ptr"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// clusterOptions are the flags of commands that show several clusters.
type clusterOptions struct {
	clusters bool
	contexts []string
}

// addTo adds --clusters and --contexts.
func (o *clusterOptions) addTo(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&o.clusters, "clusters", false, "show what MultiKueue runs in other clusters as it is there")
	contextsFlag(cmd, &o.contexts)
}

// shown reports whether there is a column for the cluster.
func (o *clusterOptions) shown() bool { return o.clusters || len(o.contexts) > 0 }

// contextsFlag adds --contexts.
func contextsFlag(cmd *cobra.Command, to *[]string) {
	cmd.Flags().StringSliceVar(to, "contexts", nil, "contexts of the kubeconfig whose clusters are shown together")
}

// member is one of several clusters that a command shows. Its name is "" if it is the only one.
type member struct {
	name string
	*session
}

// failed returns an error that names the cluster.
func (m member) failed(err error) error {
	if err == nil || m.name == "" {
		return err
	}
	return fmt.Errorf("%s: %w", m.name, err)
}

// members returns the clusters of --contexts, or the session's own.
func (s *session) members(contexts []string) ([]member, error) {
	if len(contexts) == 0 {
		return []member{{"", s}}, nil
	}
	var all []member
	for i, context := range contexts {
		if slices.Contains(contexts[:i], context) {
			return nil, fmt.Errorf("--contexts has %q twice", context)
		}
		in, err := s.open(context)
		if err != nil {
			return nil, fmt.Errorf("--contexts: %w", err)
		}
		all = append(all, member{context, in})
	}
	return all, nil
}

// dispatched reports whether MultiKueue runs a TrainJob in another cluster.
func dispatched(job *api.TrainJob) bool {
	return ptr.Deref(job.Spec.ManagedBy, "") == kueue.MultiKueueControllerName
}

// clustersOf returns the clusters that run a Workload, or that MultiKueue has asked to.
func clustersOf(wl *kueue.Workload) []string {
	switch {
	case wl == nil:
		return nil
	case wl.Status.ClusterName != nil:
		return []string{*wl.Status.ClusterName}
	}
	return wl.Status.NominatedClusterNames
}

// workers returns the clusters that MultiKueue dispatches to, as far as the user may read which these are.
func (m member) workers(ctx context.Context, q *queues) ([]member, error) {
	names := sets.New[string]()
	for i := range q.Workloads {
		names.Insert(clustersOf(&q.Workloads[i])...)
	}
	var clusters kueue.MultiKueueClusterList
	if _, err := m.list(ctx, &clusters, "multikueueclusters.kueue.x-k8s.io"); err != nil {
		return nil, err
	}
	for i := range clusters.Items {
		names.Insert(clusters.Items[i].Name)
	}
	var all []member
	var failed []error
	for _, name := range sets.List(names) {
		in, err := m.at(name)
		if err == nil {
			all = append(all, member{strings.Trim(m.name+"/"+name, "/"), in})
		}
		failed = append(failed, err)
	}
	return all, errors.Join(failed...)
}
