package main

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"
	utilslices "sigs.k8s.io/kueue/pkg/util/slices"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/cmd/kubectl-signalbox/explain"
)

type waitOptions struct {
	state   string
	timeout time.Duration
}

func waitCommand(c *cli) *cobra.Command {
	var o waitOptions
	names := utilslices.Map(api.States, func(state *api.TrainJobState) string { return strings.ToLower(string(*state)) })
	cmd := &cobra.Command{
		Use:   "wait TRAINJOB --for=STATE",
		Short: "Wait until a TrainJob is in a state",
		Long: "Wait until a TrainJob is in a state: " + strings.Join(names, ", ") + ".\n\nThe exit code is 1 if the " +
			"TrainJob ends in another way, and 2 if the time is over.",
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
		fmt.Fprintf(s.streams.ErrOut, "Error: TrainJob %s is %s after %s; kubectl signalbox explain %s says why\n", name,
			last, o.timeout, name)
		return errExit(2)
	}
	return err
}

// follower is called with a TrainJob, nil when it is deleted, and its state. It reports whether that is enough.
type follower = func(job *api.TrainJob, state api.TrainJobState) (done bool, err error)

// follow calls f each time that a TrainJob or its Workload changes, until f is done.
func (s *session) follow(ctx context.Context, name string, f follower) error {
	for ctx.Err() == nil {
		var list api.TrainJobList
		if err := s.client.List(ctx, &list, s.named(name)...); err != nil {
			return fmt.Errorf("reading TrainJob %s: %w", name, err)
		}
		if len(list.Items) == 0 {
			return fmt.Errorf("there is no TrainJob %s in namespace %s", name, s.namespace)
		}
		done, err := s.show(ctx, &list.Items[0], f)
		if !done && err == nil {
			done, err = s.followFrom(ctx, name, list.ResourceVersion, f)
		}
		if done || err != nil {
			return err
		}
	}
	return ctx.Err()
}

func (s *session) named(name string) []client.ListOption {
	return []client.ListOption{client.InNamespace(s.namespace), client.MatchingFields{"metadata.name": name}}
}

// show calls f with a TrainJob and its state. Kubeflow Trainer's CRD has none; it follows from the Workload then.
func (s *session) show(ctx context.Context, job *api.TrainJob, f follower) (done bool, err error) {
	state := job.Status.State
	if state == "" {
		wl, err := s.workload(ctx, job)
		if err != nil {
			return false, err
		}
		state = (&explain.Facts{Job: job, Workload: wl}).State()
	}
	return f(job, state)
}

// followFrom follows one watch until it ends.
func (s *session) followFrom(ctx context.Context, name, version string, f follower) (done bool, err error) {
	from := &client.ListOptions{Raw: watchFrom(version)}
	w, err := s.client.Watch(ctx, &api.TrainJobList{}, append(s.named(name), from)...)
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
		if done, err := s.show(ctx, job, f); done || err != nil {
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

// watchFrom returns the options of a watch that goes on after a list.
func watchFrom(version string) *metav1.ListOptions {
	return &metav1.ListOptions{ResourceVersion: version}
}
