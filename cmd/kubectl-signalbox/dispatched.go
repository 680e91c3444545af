package main

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/signalbox-dev/signalbox/cmd/kubectl-signalbox/explain"
)

// inClusters explains what a TrainJob waits for, or how it runs, in the clusters that MultiKueue has asked to run it.
func (s *session) inClusters(ctx context.Context, f *explain.Facts) (all []explain.InCluster) {
	if !dispatched(f.Job) {
		return nil
	}
	for _, cluster := range clustersOf(f.Workload) {
		in := explain.InCluster{Cluster: cluster}
		there, err := s.at(cluster)
		if err == nil {
			there.namespace = f.Job.Namespace
			in.Explanation, err = there.asDispatched(ctx, f)
		}
		if err != nil {
			in.Unknown = err.Error()
		}
		all = append(all, in)
	}
	return all
}

// asDispatched explains a TrainJob in a cluster that it was dispatched to. There it is made when it has quota; before,
// there is its Workload.
func (s *session) asDispatched(ctx context.Context, from *explain.Facts) (*explain.Explanation, error) {
	q, err := s.queues(ctx, s.namespace)
	if err != nil {
		return nil, err
	}
	job, err := s.trainJob(ctx, from.Job.Name)
	if err == nil && job.Labels[kueue.MultiKueueOriginLabel] != "" { // else it is another of the name
		facts, err := s.facts(ctx, job, q)
		if err != nil {
			return nil, err
		}
		return explain.Explain(facts), nil
	}
	if apierrors.IsForbidden(err) {
		return nil, fmt.Errorf("you lack the right to get trainjobs.trainer.kubeflow.org in namespace %s there", s.namespace)
	}
	if client.IgnoreNotFound(err) != nil {
		return nil, err
	}
	facts := q.factsOf(from.Job.DeepCopy())
	facts.Job.Spec.ManagedBy = nil
	for i := range q.Workloads {
		if wl := &q.Workloads[i]; wl.Namespace == s.namespace && wl.Name == from.Workload.Name {
			facts.Workload = wl
		}
	}
	err = s.decide(ctx, facts, q)
	facts.Missing = s.missing
	return explain.Explain(facts), err
}
