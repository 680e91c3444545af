package main

import (
	"fmt"
	"maps"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	ctrl "sigs.k8s.io/controller-runtime"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/cmd/signalbox/audit"
)

// auditEvery is how often the audit compares; reads are from watches.
const auditEvery = time.Second

func auditCommand() *cobra.Command {
	var watch bool
	lasting := &audit.Lasting{}
	cmd := &cobra.Command{
		Use: "audit", Short: "Compare what runs with what was admitted, and print what differs",
		Long: `audit follows the owners of every pod of a TrainJob and compares what runs with what Kueue admitted: pods that no
Workload holds quota for, pods that use more than was counted, pods on nodes of another flavor than the admitted one,
Workloads that hold quota for nothing, and Jobs that differ from their JobSet. It needs rights to list and watch pods,
Jobs, JobSets, Workloads, TrainJobs, ResourceFlavors and nodes.

It prints what lasts for --for or --idle, and exits with an error when it finds something. It ends after at most twice
the longer of the two, and prints to stderr what had not lasted yet. With --watch it runs until it is interrupted.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
			defer stop()
			ctrl.SetLogger(logr.Discard()) // findings are what it prints
			config, err := ctrl.GetConfig()
			if err != nil {
				return fmt.Errorf("finding the cluster: %w", err)
			}
			scheme, err := newScheme(api.AddToScheme)
			if err != nil {
				return err
			}
			watcher, err := audit.NewWatcher(config, scheme)
			if err != nil {
				return err
			}
			found := 0
			report := func(f audit.Finding) {
				found++
				fmt.Fprintln(cmd.OutOrStdout(), f)
			}
			done := audit.Once()
			if watch {
				done = nil
			}
			if err := watcher.Run(ctx, auditEvery, lasting, report, done); err != nil {
				return err
			}
			if !watch {
				printPending(cmd, lasting)
			}
			if found > 0 {
				return fmt.Errorf("%d findings", found)
			}
			fmt.Fprintln(cmd.OutOrStdout(), "nothing found")
			return nil
		},
	}
	cmd.Flags().BoolVar(&watch, "watch", false, "look until interrupted")
	cmd.Flags().DurationVar(&lasting.Other, "for", 5*time.Second,
		"how long something must differ to be printed: reads of several kinds are never of one moment")
	cmd.Flags().DurationVar(&lasting.Idle, "idle", time.Minute, "how long quota must be held for nothing to be printed")
	return cmd
}

// printPending prints the findings that had not lasted when the audit ended, to stderr.
func printPending(cmd *cobra.Command, lasting *audit.Lasting) {
	pending := slices.SortedFunc(maps.Keys(lasting.Pending()), audit.Finding.Compare)
	for _, f := range pending {
		fmt.Fprintln(cmd.ErrOrStderr(), "pending, it has not lasted yet:", f)
	}
}
