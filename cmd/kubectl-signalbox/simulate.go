package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/cmd/kubectl-signalbox/simulate"
)

type simulateOptions struct {
	file   string
	set    []string
	until  bool
	output string
}

const simulateLong = `Run Kueue's own scheduler, in this process, on a copy of the cluster's queues and Workloads, and say what
becomes of a TrainJob: it is admitted now, and where; or after whose end; or by preempting whom; or never, and what
would make it fit. Nothing in the cluster is changed.

--set changes the TrainJob before: nodes=N, minimum=N (the least number of nodes), queue=NAME, priority=CLASS (a
WorkloadPriorityClass), or resource.NAME=QUANTITY for each node, such as resource.nvidia.com/gpu=4.

A file may have several TrainJobs, and -f may name a directory: all are simulated together, as if they were created in
their order. A TrainJob that is Blocked isn't simulated, unless --set changes it.

--until estimates when it starts, from the progress that runs report, from runs like them that have finished, and from
maximum execution times; it says how sure that is.

It needs the right to list ClusterQueues, and LocalQueues and Workloads of all namespaces; nodes and pods too where a
flavor has a topology.`

func simulateCommand(c *cli) *cobra.Command {
	var o simulateOptions
	cmd := &cobra.Command{
		Use: "simulate TRAINJOB | -f FILE", Short: "Say what Kueue would do with a TrainJob, and when",
		Long: simulateLong,
		Example: "  kubectl signalbox simulate resnet --until\n  kubectl signalbox simulate -f job.yaml\n" +
			"  kubectl signalbox simulate resnet --set nodes=4 --set queue=spot",
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: completeTrainJobs(c),
		RunE: connected(c, func(ctx context.Context, s *session, args []string) error {
			if (len(args) == 1) == (o.file != "") {
				return errors.New("name either a TrainJob or a file with -f")
			}
			return runSimulate(ctx, s, strings.Join(args, ""), o)
		}),
	}
	cmd.Flags().StringVarP(&o.file, "filename", "f", "",
		"a file or directory with TrainJobs that aren't in the cluster; - for standard input")
	cmd.Flags().StringArrayVar(&o.set, "set", nil,
		"change the TrainJob before: nodes=4, minimum=2, queue=NAME, priority=CLASS, resource.NAME=QUANTITY")
	cmd.Flags().BoolVar(&o.until, "until", false, "estimate when it starts")
	outputFlag(cmd, &o.output, "json", "yaml")
	return cmd
}

func runSimulate(ctx context.Context, s *session, name string, o simulateOptions) error {
	jobs, err := s.simulatedJobs(ctx, name, o.file, o.set)
	if err != nil {
		return err
	}
	q, err := s.queues(ctx, s.namespace)
	if err != nil {
		return err
	}
	if err := s.useGates(ctx, q.Config); err != nil {
		return err
	}
	if !q.complete() {
		return fmt.Errorf("a simulation needs all queues and Workloads, and all nodes and pods where a flavor has a "+
			"topology, and you may not %s; ask for these rights (Kueue's ClusterRole kueue-batch-admin-role has those of "+
			"Kueue)", strings.Join(s.missing, ", nor "))
	}
	views, err := s.simulate(ctx, jobs, q, o)
	if err != nil {
		return err
	}
	switch {
	case o.output != "" && len(views) == 1:
		return printAs(s.streams.Out, o.output, views[0])
	case o.output != "":
		return printAs(s.streams.Out, o.output, views)
	}
	for _, view := range views {
		view.write(s)
	}
	s.tellMissing()
	return nil
}

// simulate returns what becomes of TrainJobs, in the cluster with all of them.
func (s *session) simulate(
	ctx context.Context, jobs []*api.TrainJob, q *queues, o simulateOptions,
) ([]*simulated, error) {
	now, changed := time.Now(), len(o.set) > 0
	var known api.TrainJobList
	if _, err := s.list(ctx, &known, "trainjobs.trainer.kubeflow.org"); err != nil {
		return nil, err
	}
	cluster := &q.Cluster
	views, workloads := make([]*simulated, len(jobs)), make([]*kueue.Workload, len(jobs))
	for i, job := range jobs {
		if views[i] = blockedView(job, changed); views[i] != nil {
			continue
		}
		wl, err := s.simulatedWorkload(ctx, job, q, changed)
		if err != nil {
			return nil, fmt.Errorf("TrainJob %s: %w", job.Name, err)
		}
		workloads[i], cluster = wl, cluster.Put(wl)
	}
	estimates := simulate.NewEstimates(q.Workloads, known.Items, now)
	for i, wl := range workloads {
		if wl == nil {
			continue
		}
		answer, err := simulate.Ask(ctx, cluster, client.ObjectKeyFromObject(wl), estimates.Mid(), now)
		if err != nil {
			return nil, err
		}
		views[i] = viewOf(jobs[i], cluster, answer)
		if o.until && answer.Verdict == simulate.Waits {
			if views[i].Start, err = estimateOf(ctx, cluster, wl, estimates, now); err != nil {
				return nil, err
			}
		}
	}
	for _, view := range views {
		view.Missing = s.missing
	}
	return views, nil
}

// estimateOf returns when a Workload starts, if runs end early, as expected, and late.
func estimateOf(
	ctx context.Context, cluster *simulate.Cluster, wl *kueue.Workload, lengths *simulate.Estimates, now time.Time,
) (*estimate, error) {
	key, part := client.ObjectKeyFromObject(wl), cluster.Concerning(wl)
	low, lowErr := simulate.Until(ctx, part, key, lengths.Low(), now)
	mid, midErr := simulate.Until(ctx, part, key, lengths.Mid(), now)
	high, highErr := simulate.Until(ctx, part, key, lengths.High(), now)
	if err := cmp.Or(lowErr, midErr, highErr); err != nil {
		return nil, err
	}
	sure := lengths.Sure(cluster, mid.Ended)
	return &estimate{Earliest: low.At, Likely: mid.At, Latest: high.At, Sure: sure}, nil
}
