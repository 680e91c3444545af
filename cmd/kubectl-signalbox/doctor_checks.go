package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	coordinationv1 "k8s.io/api/coordination/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	kueueconfig "sigs.k8s.io/kueue/apis/config/v1beta2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/signalbox-dev/signalbox/admission/boost"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/cmd/kubectl-signalbox/explain"
	"github.com/signalbox-dev/signalbox/cmd/kubectl-signalbox/simulate"
	"github.com/signalbox-dev/signalbox/integration/installed"
	"github.com/signalbox-dev/signalbox/podsets"
)

// checks are what doctor looks at, in this order.
var checks = []struct {
	name string
	run  func(context.Context, *session, *report) error
}{
	{"versions", checkVersions}, {"Kueue's configuration", checkConfig}, {"webhooks", checkWebhooks},
	{"leaders", checkLeaders}, {"queues", checkQueues}, {"priorities", checkPriorities},
	{"flavors and nodes", checkNodes}, {"avoided nodes", checkAvoided}, {"runtimes", checkRuntimes},
	{"TrainJobs", checkTrainJobs},
}

// checkVersions compares the releases of Kubernetes, Kueue and JobSet with those that Signalbox supports.
func checkVersions(ctx context.Context, s *session, r *report) error {
	const supported = "docs/compatibility.md has the releases that Signalbox supports"
	_, unsupported, err := s.releases(ctx)
	if err != nil {
		r.add(bad, "versions", err.Error(), supported)
	}
	for _, later := range unsupported {
		r.add(poor, later, "it is later than Signalbox was tested with", supported)
	}
	return nil
}

func checkConfig(ctx context.Context, s *session, r *report) error {
	const about = "Kueue's configuration"
	config, err := s.kueueConfig(ctx)
	switch {
	case errors.Is(err, errNoConfig):
		r.add(poor, about, err.Error()+", so that it isn't checked", "name Kueue's namespace by --kueue-namespace")
		return nil
	case err != nil:
		r.add(bad, about, err.Error(), "")
		return nil
	case config == nil:
		return nil
	}
	edit := "kubectl -n " + s.kueueNamespace + " edit configmap kueue-manager-config; kubectl -n " + s.kueueNamespace +
		" rollout restart deployment kueue-controller-manager"
	lists := ptr.Deref(config.Integrations, kueueconfig.Integrations{})
	if slices.Contains(lists.Frameworks, "trainer.kubeflow.org/trainjob") {
		r.add(bad, about, "Kueue runs TrainJobs itself: integrations.frameworks has trainer.kubeflow.org/trainjob; "+
			"take it out", edit)
	}
	if !slices.Contains(lists.ExternalFrameworks, installed.ExternalFramework) { // Kueue compares it by case
		r.add(bad, about, "integrations.externalFrameworks doesn't list "+installed.ExternalFramework+
			": Kueue would queue the JobSets of TrainJobs a second time; add it", edit)
	}
	return nil
}

// checkLeaders looks at whether the leaders of Signalbox and Kueue renew their Leases.
func checkLeaders(ctx context.Context, s *session, r *report) error {
	var leases coordinationv1.LeaseList
	if _, err := s.list(ctx, &leases, "leases.coordination.k8s.io"); err != nil {
		return err
	}
	for _, lease := range leases.Items {
		if lease.Name != leaseName && lease.Name != kueueLease || lease.Spec.RenewTime == nil {
			continue
		}
		limit := time.Duration(ptr.Deref(lease.Spec.LeaseDurationSeconds, 15)) * time.Second
		if seen := lease.Spec.RenewTime.Time; time.Since(seen) > 2*limit {
			r.add(bad, "Lease "+lease.Namespace+"/"+lease.Name, fmt.Sprintf("its leader, %s, was last seen %s ago",
				ptr.Deref(lease.Spec.HolderIdentity, "nobody"), age(seen)), "kubectl -n "+lease.Namespace+" get pods")
		}
	}
	return nil
}

// checkQueues looks for queues that admit nobody.
func checkQueues(ctx context.Context, s *session, r *report) error {
	q, err := s.queues(ctx, s.namespace)
	if err != nil || !q.clusterQueues {
		return err
	}
	names := map[string]bool{}
	for i := range q.ClusterQueues {
		cq := &q.ClusterQueues[i]
		names[cq.Name] = true
		c := apimeta.FindStatusCondition(cq.Status.Conditions, kueue.ClusterQueueActive)
		if c != nil && c.Status != metav1.ConditionTrue && c.Reason != kueue.ClusterQueueActiveReasonStopped {
			r.add(bad, "ClusterQueue "+cq.Name, c.Message, "kubectl describe clusterqueue "+cq.Name)
		}
	}
	for i := range q.LocalQueues {
		lq := &q.LocalQueues[i]
		if name := string(lq.Spec.ClusterQueue); !names[name] {
			r.add(bad, "LocalQueue "+lq.Namespace+"/"+lq.Name, "its ClusterQueue "+name+" doesn't exist",
				"kubectl -n "+lq.Namespace+" delete localqueue "+lq.Name)
		}
	}
	return nil
}

// checkRuntimes looks for runtimes whose TrainJobs can't be queued.
func checkRuntimes(ctx context.Context, s *session, r *report) error {
	var cluster api.ClusterTrainingRuntimeList
	var own api.TrainingRuntimeList
	if _, err := s.list(ctx, &cluster, "clustertrainingruntimes.trainer.kubeflow.org"); err != nil {
		return err
	}
	if _, err := s.listWide(ctx, &own, "trainingruntimes.trainer.kubeflow.org", s.namespace); err != nil {
		return err
	}
	trainer, err := s.dialect(ctx)
	if err != nil {
		return err
	}
	unchanged := &api.TrainJob{ObjectMeta: metav1.ObjectMeta{Name: "doctor"}}
	check := func(about string, spec *trainerapi.TrainingRuntimeSpec) {
		effective, err := trainer.Compute(unchanged, spec, nil)
		if err == nil {
			_, err = podsets.Of(effective, podsets.Features{TopologyAware: true})
		}
		if err != nil {
			r.add(bad, about, "its TrainJobs can't be queued: "+err.Error(), "kubectl edit "+about)
		}
	}
	for i := range cluster.Items {
		check("clustertrainingruntime/"+cluster.Items[i].Name, &cluster.Items[i].Spec)
	}
	for i := range own.Items {
		check("trainingruntime/"+own.Items[i].Name+" -n "+own.Items[i].Namespace, &own.Items[i].Spec)
	}
	return nil
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
func checkTrainJobs(ctx context.Context, s *session, r *report) error {
	var jobs api.TrainJobList
	if _, err := s.listWide(ctx, &jobs, "trainjobs.trainer.kubeflow.org", s.namespace); err != nil {
		return err
	}
	q, err := s.queues(ctx, s.namespace)
	if err != nil {
		return err
	}
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
				return err
			}
			cause = explain.Brief(f).Cause
		}
		if severity := stuck[cause.Code]; severity != "" {
			r.add(severity, "TrainJob "+job.Namespace+"/"+job.Name, string(cause.Code)+": "+cause.Text,
				"kubectl signalbox explain "+job.Name+" -n "+job.Namespace)
		}
	}
	return nil
}

// priority is one in use, by its class.
type priority struct {
	name  string
	value int32
}

// checkPriorities looks for priorities that are so close to each other that a minimum runtime has no effect between
// them. It does so where Kueue counts boosts, without which the manager accepts none.
func checkPriorities(ctx context.Context, s *session, r *report) error {
	config, err := s.kueueConfig(ctx)
	if err != nil {
		config = nil // checkConfig says so
	}
	if err := s.useGates(ctx, config); err != nil || !simulate.CountsBoosts() {
		return err
	}
	var classes kueue.WorkloadPriorityClassList
	if read, err := s.list(ctx, &classes, "workloadpriorityclasses.kueue.x-k8s.io"); err != nil || !read {
		return err
	}
	inUse := []priority{{"no class", 0}}
	for i := range classes.Items {
		inUse = append(inUse, priority{"class " + classes.Items[i].Name, classes.Items[i].Value})
	}
	slices.SortFunc(inUse, func(a, b priority) int {
		return cmp.Or(cmp.Compare(a.value, b.value), cmp.Compare(a.name, b.name))
	})
	for i, above := range inUse[1:] {
		below := inUse[i]
		if gap := int64(above.value) - int64(below.value); gap > 0 && gap <= int64(boost.Highest) {
			r.add(poor, "WorkloadPriorityClasses", fmt.Sprintf("the priorities of %s (%d) and of %s (%d) differ by %d: "+
				"TrainJobs of the lower one have no minimum runtime, and aren't weighed against equals",
				below.name, below.value, above.name, above.value, gap),
				fmt.Sprintf("set values that differ by %d or more", boost.Highest+1))
		}
	}
	return nil
}
