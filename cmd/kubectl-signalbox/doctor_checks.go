package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/utils/ptr"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/cmd/kubectl-signalbox/explain"
	"github.com/signalbox-dev/signalbox/integration/installed"
	"github.com/signalbox-dev/signalbox/overrides"
	"github.com/signalbox-dev/signalbox/podsets"
)

// checks are what doctor looks at, in this order.
var checks = []struct {
	name string
	run  func(context.Context, *session) ([]finding, error)
}{
	{"versions", checkVersions}, {"Kueue's configuration", checkConfig}, {"webhooks", checkWebhooks},
	{"leaders", checkLeaders}, {"queues", checkQueues}, {"priorities", checkPriorities},
	{"flavors and nodes", checkNodes}, {"runtimes", checkRuntimes}, {"TrainJobs", checkTrainJobs},
}

// checkVersions compares the releases of Kubernetes, Kueue and JobSet with those that Signalbox supports.
func checkVersions(ctx context.Context, s *session) ([]finding, error) {
	releases, err := installed.FindReleases(ctx, s.client, s.clients.Discovery(), installed.Releases{})
	if err != nil {
		return []finding{
			{bad, "versions", err.Error(), "docs/compatibility.md has the releases that Signalbox supports"},
		}, nil
	}
	if releases.Kueue == "" || releases.JobSet == "" {
		s.lacks("get customresourcedefinitions.apiextensions.k8s.io")
		return nil, nil
	}
	var found []finding
	for _, later := range releases.Unsupported() {
		found = append(found, finding{poor, later, "it is later than Signalbox was tested with",
			"docs/compatibility.md has the releases that Signalbox supports"})
	}
	return found, nil
}

// externalFramework is the name of TrainJob in Kueue's configuration.
const externalFramework = "TrainJob.v1alpha1.trainer.kubeflow.org"

// checkConfig looks at Kueue's configuration.
func checkConfig(ctx context.Context, s *session) ([]finding, error) {
	config, err := s.kueueConfig(ctx)
	if errors.Is(err, errNoConfig) {
		return []finding{{poor, "Kueue's configuration", err.Error() + ", so that it isn't checked",
			"name Kueue's namespace by --kueue-namespace"}}, nil
	}
	if err != nil {
		return []finding{{bad, "Kueue's configuration", err.Error(), ""}}, nil
	}
	if config == nil {
		return nil, nil
	}
	edit := "kubectl -n " + s.kueueNamespace + " edit configmap kueue-manager-config; kubectl -n " + s.kueueNamespace +
		" rollout restart deployment kueue-controller-manager"
	var found []finding
	frameworks, external := []string{}, []string{}
	if config.Integrations != nil {
		frameworks, external = config.Integrations.Frameworks, config.Integrations.ExternalFrameworks
	}
	if slices.Contains(frameworks, "trainer.kubeflow.org/trainjob") {
		found = append(
			found,
			finding{bad, "Kueue's configuration", "Kueue runs TrainJobs itself: integrations.frameworks has " +
				"trainer.kubeflow.org/trainjob; take it out", edit},
		)
	}
	if !slices.Contains(external, externalFramework) { // Kueue compares it by case
		found = append(found, finding{bad, "Kueue's configuration", "integrations.externalFrameworks doesn't list " +
			externalFramework + ": Kueue would queue the JobSets of TrainJobs a second time; add it", edit})
	}
	return found, nil
}

// signalboxLease is the name of the Lease of Signalbox's leader.
const signalboxLease = "signalbox.signalbox.dev"

// checkLeaders looks at whether the leaders of Signalbox and Kueue renew their Leases.
func checkLeaders(ctx context.Context, s *session) ([]finding, error) {
	var leases coordinationv1.LeaseList
	read, err := s.list(ctx, &leases, "leases.coordination.k8s.io")
	if err != nil || !read {
		return nil, err
	}
	var found []finding
	for _, lease := range leases.Items {
		if lease.Name != signalboxLease && lease.Name != kueueLease || lease.Spec.RenewTime == nil {
			continue
		}
		late := time.Since(lease.Spec.RenewTime.Time)
		limit := time.Duration(ptr.Deref(lease.Spec.LeaseDurationSeconds, 15)) * time.Second
		if late > 2*limit {
			found = append(
				found,
				finding{bad, "Lease " + lease.Namespace + "/" + lease.Name, fmt.Sprintf("its leader, %s, was "+
					"last seen %s ago", ptr.Deref(lease.Spec.HolderIdentity, "nobody"), age(lease.Spec.RenewTime.Time)),
					"kubectl -n " + lease.Namespace + " get pods"},
			)
		}
	}
	return found, nil
}

// checkQueues looks for queues that admit nobody.
func checkQueues(ctx context.Context, s *session) ([]finding, error) {
	q, err := s.queues(ctx, s.namespace)
	if err != nil || !q.clusterQueues {
		return nil, err
	}
	var found []finding
	names := map[string]bool{}
	for i := range q.ClusterQueues {
		cq := &q.ClusterQueues[i]
		names[cq.Name] = true
		for _, c := range cq.Status.Conditions {
			if c.Type == kueue.ClusterQueueActive && c.Status != "True" &&
				c.Reason != kueue.ClusterQueueActiveReasonStopped {
				found = append(
					found,
					finding{bad, "ClusterQueue " + cq.Name, c.Message, "kubectl describe clusterqueue " + cq.Name},
				)
			}
		}
	}
	for i := range q.LocalQueues {
		lq := &q.LocalQueues[i]
		if !names[string(lq.Spec.ClusterQueue)] {
			found = append(found, finding{bad, "LocalQueue " + lq.Namespace + "/" + lq.Name, "its ClusterQueue " +
				string(
					lq.Spec.ClusterQueue,
				) + " doesn't exist", "kubectl -n " + lq.Namespace + " delete localqueue " + lq.Name})
		}
	}
	return found, nil
}

// checkRuntimes looks for runtimes whose TrainJobs can't be queued.
func checkRuntimes(ctx context.Context, s *session) ([]finding, error) {
	var cluster api.ClusterTrainingRuntimeList
	var own api.TrainingRuntimeList
	if _, err := s.list(ctx, &cluster, "clustertrainingruntimes.trainer.kubeflow.org"); err != nil {
		return nil, err
	}
	if _, err := s.listWide(ctx, &own, "trainingruntimes.trainer.kubeflow.org", s.namespace); err != nil {
		return nil, err
	}
	trainer, err := s.dialect(ctx)
	if err != nil {
		return nil, err
	}
	var found []finding
	check := func(about string, spec *trainerapi.TrainingRuntimeSpec) {
		if err := queueable(trainer, spec); err != nil {
			found = append(
				found,
				finding{bad, about, "its TrainJobs can't be queued: " + err.Error(), "kubectl edit " + about},
			)
		}
	}
	for i := range cluster.Items {
		check("clustertrainingruntime/"+cluster.Items[i].Name, &cluster.Items[i].Spec)
	}
	for i := range own.Items {
		check("trainingruntime/"+own.Items[i].Name+" -n "+own.Items[i].Namespace, &own.Items[i].Spec)
	}
	return found, nil
}

// queueable returns why a TrainJob that changes nothing of a runtime can't be queued; nil if it can.
func queueable(trainer *overrides.Dialect, spec *trainerapi.TrainingRuntimeSpec) error {
	job := &api.TrainJob{}
	job.Name = "doctor"
	effective, err := trainer.Compute(job, spec, nil)
	if err != nil {
		return err
	}
	_, err = podsets.Of(effective, podsets.Features{TopologyAware: true})
	return err
}

// stuck are the causes that don't pass by themselves.
var stuck = map[explain.Code]severity{
	explain.CodeBlocked: bad, explain.CodeNoQueue: bad, explain.CodeNoCQ: bad, explain.CodeCQInactive: bad,
	explain.CodeNamespace: bad, explain.CodeNoWorkload: bad, explain.CodeKueueDown: bad, explain.CodeNoFlavor: bad,
	explain.CodeNoResource: bad, explain.CodeTooLarge: bad, explain.CodeInvalid: bad, explain.CodeRejected: bad,
	explain.CodeImage: bad, explain.CodeCrash: bad, explain.CodeOverdue: bad, explain.CodeGang: poor,
	explain.CodeNoNode: poor, explain.CodeTopology: poor,
}

// mostSimulated returns how many TrainJobs are simulated. A simulation of 1,000 Workloads takes half a second if they
// are of few kinds, and two if they are of 200; one of 10,000 takes two to three.
func mostSimulated(workloads int) int { return max(1, 20000/max(workloads, 200)) }

// young is for how long a TrainJob may be in such a state.
const young = time.Minute

// checkTrainJobs looks for TrainJobs that are stuck.
func checkTrainJobs(ctx context.Context, s *session) ([]finding, error) {
	var jobs api.TrainJobList
	if _, err := s.listWide(ctx, &jobs, "trainjobs.trainer.kubeflow.org", s.namespace); err != nil {
		return nil, err
	}
	q, err := s.queues(ctx, s.namespace)
	if err != nil {
		return nil, err
	}
	var found []finding
	simulated := 0
	for i := range jobs.Items {
		job := &jobs.Items[i]
		if time.Since(job.CreationTimestamp.Time) < young {
			continue
		}
		f := q.factsOf(job)
		cause := explain.Brief(f).Cause
		if f.Unsure(cause) && simulated < mostSimulated(len(q.Workloads)) {
			simulated++
			if err := s.decide(ctx, f, q); err != nil {
				return nil, err
			}
			cause = explain.Brief(f).Cause
		}
		if severity := stuck[cause.Code]; severity != "" {
			found = append(
				found,
				finding{severity, "TrainJob " + job.Namespace + "/" + job.Name, string(cause.Code) + ": " +
					cause.Text, "kubectl signalbox explain " + job.Name + " -n " + job.Namespace},
			)
		}
	}
	return found, nil
}
