package main

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/cmd/kubectl-signalbox/explain"
	"github.com/signalbox-dev/signalbox/cmd/kubectl-signalbox/simulate"
)

// waitOptions are the flags of wait.
type waitOptions struct {
	state   string
	timeout time.Duration
}

func waitCommand(c *cli) *cobra.Command {
	var o waitOptions
	var names []string
	for _, state := range api.States {
		names = append(names, strings.ToLower(string(state)))
	}
	cmd := &cobra.Command{
		Use:   "wait TRAINJOB --for=STATE",
		Short: "Wait until a TrainJob is in a state",
		Long: "Wait until a TrainJob is in a state: " + strings.Join(
			names,
			", ",
		) + ".\n\nThe exit code is 1 if the TrainJob " +
			"ends in another way, and 2 if the time is over.",
		Example:           "  kubectl signalbox wait resnet --for=running --timeout=1h",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: completeTrainJobs(c),
		RunE: connected(c, func(ctx context.Context, s *session, args []string) error {
			if !slices.Contains(names, strings.ToLower(o.state)) {
				return fmt.Errorf("--for is %q; it can be %s", o.state, strings.Join(names, ", "))
			}
			return s.wait(ctx, args[0], o)
		}),
	}
	cmd.Flags().StringVar(&o.state, "for", "running", "the state to wait for")
	cmd.Flags().DurationVar(&o.timeout, "timeout", 0, "how long to wait; 0 for no limit")
	_ = cmd.RegisterFlagCompletionFunc("for", cobra.FixedCompletions(names, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// ends are the states that a TrainJob doesn't leave.
var ends = []api.TrainJobState{api.StateComplete, api.StateFailed}

// wait waits for a state. It prints each that comes before.
func (s *session) wait(ctx context.Context, name string, o waitOptions) error {
	if o.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, o.timeout)
		defer cancel()
	}
	last := ""
	err := s.follow(ctx, name, func(job *api.TrainJob, state api.TrainJobState) (bool, error) {
		if text := string(state); text != last {
			fmt.Fprintf(s.streams.Out, "TrainJob %s is %s\n", name, text)
			last = text
		}
		switch {
		case strings.EqualFold(string(state), o.state):
			return true, nil
		case job == nil:
			return true, fmt.Errorf("TrainJob %s was deleted", name)
		case slices.Contains(ends, state):
			return true, fmt.Errorf("TrainJob %s is %s, and won't be %s", name, state, o.state)
		}
		return false, nil
	})
	if ctx.Err() == context.DeadlineExceeded {
		fmt.Fprintf(
			s.streams.ErrOut,
			"Error: TrainJob %s is %s after %s; kubectl signalbox explain %s says why\n",
			name,
			last,
			o.timeout,
			name,
		)
		return errExit(2)
	}
	return err
}

// follow calls f with a TrainJob, nil when it is deleted, each time that it or its Workload changes, until f is done.
func (s *session) follow(
	ctx context.Context, name string, f func(job *api.TrainJob, state api.TrainJobState) (done bool, err error),
) error {
	for ctx.Err() == nil {
		var list api.TrainJobList
		if err := s.client.List(
			ctx,
			&list,
			client.InNamespace(s.namespace),
			client.MatchingFields{"metadata.name": name},
		); err != nil {
			return fmt.Errorf("reading TrainJob %s: %w", name, err)
		}
		if len(list.Items) == 0 {
			return fmt.Errorf("there is no TrainJob %s in namespace %s", name, s.namespace)
		}
		state, err := s.stateOf(ctx, &list.Items[0])
		if err != nil {
			return err
		}
		if done, err := f(&list.Items[0], state); done || err != nil {
			return err
		}
		done, err := s.followFrom(ctx, name, list.ResourceVersion, f)
		if done || err != nil {
			return err
		}
	}
	return ctx.Err()
}

// followFrom follows one watch until it ends.
func (s *session) followFrom(
	ctx context.Context, name, version string, f func(*api.TrainJob, api.TrainJobState) (bool, error),
) (done bool, err error) {
	w, err := s.client.Watch(ctx, &api.TrainJobList{}, client.InNamespace(s.namespace),
		client.MatchingFields{"metadata.name": name}, &client.ListOptions{Raw: watchFrom(version)})
	if err != nil {
		return false, fmt.Errorf("watching TrainJob %s: %w", name, err)
	}
	defer w.Stop()
	for event := range received(ctx, w) {
		job, is := event.Object.(*api.TrainJob)
		if !is {
			return false, nil // the API server wants a new list
		}
		if event.Type == "DELETED" {
			return f(nil, "deleted")
		}
		state, err := s.stateOf(ctx, job)
		if err != nil {
			return false, err
		}
		if done, err := f(job, state); done || err != nil {
			return done, err
		}
	}
	return false, nil
}

// received returns the events of a watch, until it or the context ends.
func received(ctx context.Context, w watch.Interface) iter.Seq[watch.Event] {
	return func(yield func(watch.Event) bool) {
		for {
			select {
			case <-ctx.Done():
				return
			case event, open := <-w.ResultChan():
				if !open || !yield(event) {
					return
				}
			}
		}
	}
}

// stateOf returns the state of a TrainJob. Kubeflow Trainer's CRD has none; it follows from the Workload then.
func (s *session) stateOf(ctx context.Context, job *api.TrainJob) (api.TrainJobState, error) {
	if job.Status.State != "" {
		return job.Status.State, nil
	}
	var list kueue.WorkloadList
	if _, err := s.list(ctx, &list, "workloads.kueue.x-k8s.io", client.InNamespace(job.Namespace)); err != nil {
		return "", err
	}
	q := &queues{index: explain.NewQueues(simulate.Cluster{Workloads: list.Items})}
	return q.factsOf(job).State(), nil
}
