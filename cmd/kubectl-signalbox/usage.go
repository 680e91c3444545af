package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/signalbox-dev/signalbox/admission/usage"
	usageapi "github.com/signalbox-dev/signalbox/api/usage/v1alpha1"
)

func usageCommand(c *cli) *cobra.Command {
	var o usageOptions
	cmd := &cobra.Command{
		Use: "usage", Short: "Show who used what, and what of it was lost", Args: cobra.NoArgs,
		Long: "Show what TrainJobs have held of quota, multiplied by the time for which they held it.\n\nUSEFUL is until " +
			"the last checkpoint of a run, or until the end of a TrainJob that has succeeded. LOST is after the last " +
			"checkpoint of a run that was stopped or has failed. IDLE is while no pod ran. UNKNOWN is if no checkpoints are " +
			"reported, or if the run goes on.\n\nThe table has hours of a GPU or core, or of a GiB; csv and json have " +
			"seconds. Days are in UTC. The cluster has to record usage (usage.enabled of Signalbox's configuration).",
		Example: "  kubectl signalbox usage -n vision\n  kubectl signalbox usage -A --since 30d --by team,user -o csv",
		RunE: connected(c, func(ctx context.Context, s *session, _ []string) error {
			return showUsage(ctx, s, o, time.Now())
		}),
	}
	cmd.Flags().BoolVarP(&o.all, "all-namespaces", "A", false, "show the usage of all namespaces")
	cmd.Flags().StringVar(&o.since, "since", "7d",
		"how far to look back, such as 7d or 36h: from the beginning of that day on")
	cmd.Flags().StringSliceVar(&o.by, "by", []string{"queue", "team"}, "what to add up by: "+strings.Join(dimensions, ","))
	_ = cmd.RegisterFlagCompletionFunc("by", cobra.FixedCompletions(dimensions, cobra.ShellCompDirectiveNoFileComp))
	_ = cmd.RegisterFlagCompletionFunc("since", cobra.FixedCompletions([]string{"1d", "7d", "30d", "90d"},
		cobra.ShellCompDirectiveNoFileComp))
	outputFlag(cmd, &o.output, "table", "csv", "json")
	return cmd
}

func showUsage(ctx context.Context, s *session, o usageOptions, now time.Time) error {
	since, err := lookBack(o.since)
	if err != nil {
		return err
	}
	for i, d := range o.by {
		if !slices.Contains(dimensions, d) || slices.Contains(o.by[:i], d) {
			return fmt.Errorf("--by has %q; it can have each of %s once", d, strings.Join(dimensions, ", "))
		}
	}
	namespace := s.namespace
	if o.all {
		namespace = ""
	}
	records, err := s.usageRecords(ctx, namespace)
	if err != nil {
		return err
	}
	var workloads kueue.WorkloadList
	if _, err := s.list(ctx, &workloads, "workloads.kueue.x-k8s.io", client.InNamespace(namespace)); err != nil {
		return err
	}
	sums := newSums(o, usage.DayOf(now.Add(-since)))
	sums.addRecords(records)
	sums.addRunning(workloads.Items, records, now)
	defer s.tellMissing()
	return sums.print(s)
}

// lookBack returns how far to look back: a number of days, or a duration.
func lookBack(text string) (time.Duration, error) {
	since, err := time.ParseDuration(text)
	if days, found := strings.CutSuffix(text, "d"); found {
		var n int
		n, err = strconv.Atoi(days)
		since = time.Duration(min(max(n, -1), int(usage.MaxRetention/24/time.Hour))) * 24 * time.Hour
	}
	if err != nil || since < 0 {
		return 0, fmt.Errorf("--since is %q; it must be a number of days or a duration, such as 7d or 36h", text)
	}
	return since, nil
}

// usageRecords reads the records of a namespace, of all if it is "".
func (s *session) usageRecords(ctx context.Context, namespace string) ([]usageapi.QuotaUsage, error) {
	var records usageapi.QuotaUsageList
	err := s.pages(ctx, &records, client.InNamespace(namespace))
	switch {
	case apimeta.IsNoMatchError(err) || apierrors.IsNotFound(err):
		return nil, errors.New("this cluster doesn't record who used what; its admin can set usage.enabled in Signalbox's " +
			"configuration")
	case apierrors.IsForbidden(err) && namespace == "":
		return nil, errors.New("you may not list quotausages.usage.signalbox.dev of all namespaces; name one by -n")
	case apierrors.IsForbidden(err):
		return nil, fmt.Errorf("you may not list quotausages.usage.signalbox.dev in namespace %s; whoever may view the "+
			"namespace may", namespace)
	case err != nil:
		return nil, fmt.Errorf("listing what was used: %w", err)
	}
	return records.Items, nil
}
