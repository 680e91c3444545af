package main

import (
	"fmt"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	utilslices "sigs.k8s.io/kueue/pkg/util/slices"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// completion completes the names of TrainJobs.
type completion = func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective)

func completeTrainJobs(c *cli) completion {
	return func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		s, err := c.connect()
		if err != nil || len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		var jobs api.TrainJobList
		if err := s.pages(cmd.Context(), &jobs, client.InNamespace(s.namespace)); err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		names := utilslices.Map(jobs.Items, func(job *api.TrainJob) string { return job.Name })
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}

// watchFrom returns the options of a watch that goes on after a list.
func watchFrom(version string) *metav1.ListOptions {
	return &metav1.ListOptions{ResourceVersion: version}
}

// errExit ends the program with a code and without a message.
type errExit int

func (e errExit) Error() string { return fmt.Sprintf("exit code %d", int(e)) }
