package main

import (
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/signalbox-dev/signalbox/admission/usage"
	configapi "github.com/signalbox-dev/signalbox/api/config/v1alpha1"
	usageapi "github.com/signalbox-dev/signalbox/api/usage/v1alpha1"
)

// usageOptions are the flags of usage.
type usageOptions struct {
	all    bool
	since  string
	by     []string
	output string
	// contexts are of the clusters that are added up.
	contexts []string
}

// dimensions are what usage can be added up by, besides the resource.
var dimensions = []string{"queue", "team", "user", "day", "flavor"}

func usageCommand(c *cli) *cobra.Command {
	var o usageOptions
	cmd := &cobra.Command{
		Use:   "usage",
		Short: "Show who used what, and what of it was lost",
		Args:  cobra.NoArgs,
		Long: "Show what TrainJobs have held of quota, multiplied by the time for which they held it.\n\nUSEFUL is until " +
			"the last checkpoint of a run, or until the end of a TrainJob that has succeeded. LOST is after the last " +
			"checkpoint of a run that was stopped, restarted or has failed. IDLE is while no pod ran. UNKNOWN is if no " +
			"checkpoints are reported, or if the run goes on.\n\nThe table has hours of a GPU or core, or of a GiB; " +
			"csv and json have seconds. Days are in UTC. The cluster has to record usage (usage.enabled of Signalbox's " +
			"configuration).",
		Example: "  kubectl signalbox usage -n vision\n  kubectl signalbox usage -A --since 30d --by team,user -o csv",
		RunE: connected(c, func(ctx context.Context, s *session, _ []string) error {
			return showUsage(ctx, s, o, time.Now())
		}),
	}
	cmd.Flags().BoolVarP(&o.all, "all-namespaces", "A", false, "show the usage of all namespaces")
	cmd.Flags().StringVar(&o.since, "since", "7d",
		"how far to look back, such as 7d or 36h: from the beginning of that day on")
	cmd.Flags().StringSliceVar(&o.by, "by", []string{"queue", "team"},
		"what to add up by: "+strings.Join(dimensions, ","))
	_ = cmd.RegisterFlagCompletionFunc("by", cobra.FixedCompletions(dimensions, cobra.ShellCompDirectiveNoFileComp))
	_ = cmd.RegisterFlagCompletionFunc("since", cobra.FixedCompletions([]string{"1d", "7d", "30d", "90d"},
		cobra.ShellCompDirectiveNoFileComp))
	contextsFlag(cmd, &o.contexts)
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
	members, err := s.members(o.contexts)
	if err != nil {
		return err
	}
	sums := newSums(o, usage.DayOf(now.Add(-since)))
	for _, m := range members {
		if err := m.addUsage(ctx, sums, m.namespaceOf(o.all), now); err != nil {
			return m.failed(err)
		}
	}
	err = sums.print(s, o.output)
	for _, m := range members {
		m.tellMissing()
	}
	return err
}

// addUsage adds what a cluster has recorded, and what runs there now.
func (m member) addUsage(ctx context.Context, to *sums, namespace string, now time.Time) error {
	records, err := m.usageRecords(ctx, namespace)
	if err != nil {
		return err
	}
	var workloads kueue.WorkloadList
	if _, err := m.list(ctx, &workloads, "workloads.kueue.x-k8s.io", client.InNamespace(namespace)); err != nil {
		return err
	}
	to.cluster = m.name
	for i := range records {
		to.add(records[i].Namespace, records[i].Queue, usage.Day(records[i].Day), records[i].Rows)
	}
	to.addRunning(workloads.Items, records, now)
	return nil
}

// lookBack returns how far to look back: a number of days, or a duration.
func lookBack(text string) (time.Duration, error) {
	since, err := time.ParseDuration(text)
	if days, found := strings.CutSuffix(text, "d"); found {
		var n int
		n, err = strconv.Atoi(days)
		since = time.Duration(min(max(n, -1), int(configapi.MaxRetention/24/time.Hour))) * 24 * time.Hour
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
		return nil, errors.New(
			"this cluster doesn't record who used what; its admin can set usage.enabled in Signalbox's " +
				"configuration",
		)
	case apierrors.IsForbidden(err) && namespace == "":
		return nil, told{"you may not list quotausages.usage.signalbox.dev of all namespaces; name one by -n", err}
	case apierrors.IsForbidden(err):
		return nil, told{fmt.Sprintf("you may not list quotausages.usage.signalbox.dev in namespace %s; whoever may view "+
			"the namespace may", namespace), err}
	case err != nil:
		return nil, fmt.Errorf("listing what was used: %w", err)
	}
	return records.Items, nil
}

// sums adds up what was used since a day.
type sums struct {
	columns []string // what it is added up by, and the resource
	first   usage.Day
	cluster string                   // whose usage is added; "" if there is one only
	of      map[string]usageapi.Held // by the values of the columns, one after the other
}

// between separates the values of columns. None of them has it.
const between = "\x00"

func newSums(o usageOptions, first usage.Day) *sums {
	columns := append(slices.Clone(o.by), "resource")
	if o.all && slices.Contains(o.by, "queue") { // one queue's name may be in each namespace
		columns = slices.Insert(columns, 0, "namespace")
	}
	if len(o.contexts) > 0 {
		columns = slices.Insert(columns, 0, "cluster")
	}
	return &sums{columns: columns, first: first, of: map[string]usageapi.Held{}}
}

// add adds what was held on a day, if it isn't an earlier one.
func (s *sums) add(namespace, queue string, day usage.Day, rows []usageapi.Row) {
	for _, row := range rows {
		if day < s.first || row.Held == (usageapi.Held{}) {
			continue
		}
		values := map[string]string{"cluster": s.cluster, "namespace": namespace,
			"queue": queue, "day": string(day), "team": row.Team,
			"user": row.User, "flavor": row.Flavor, "resource": row.Resource}
		cells := make([]string, 0, len(s.columns))
		for _, column := range s.columns {
			cells = append(cells, printable(values[column]))
		}
		key := strings.Join(cells, between)
		s.of[key] = usage.Plus(s.of[key], row.Held)
	}
}

// noFormula returns a text that a spreadsheet doesn't take for a formula.
func noFormula(text string) string {
	if strings.IndexAny(text, "=+-@") == 0 {
		return "'" + text
	}
	return text
}

// addRunning adds what runs now and isn't in the records: what of it is useful isn't decided yet.
func (s *sums) addRunning(workloads []kueue.Workload, records []usageapi.QuotaUsage, now time.Time) {
	recorded := map[string]time.Time{}
	for i := range records {
		for _, r := range records[i].Recent {
			if r.Until.After(recorded[r.Run]) {
				recorded[r.Run] = r.Until.Time
			}
		}
	}
	for i := range workloads {
		wl := &workloads[i]
		owner := metav1.GetControllerOfNoCopy(wl)
		if owner == nil || owner.Kind != trainerapi.TrainJobKind || wl.Status.ClusterName != nil ||
			len(wl.Status.NominatedClusterNames) > 0 {
			continue // no TrainJob's, or counted where it runs
		}
		run := usage.RunOf(wl, usage.Facts{}, now)
		if run == nil {
			continue
		}
		for _, span := range run.Spans() {
			from := span.From
			if until := recorded[run.Key]; until.After(from) {
				from = until
			}
			s.add(run.Namespace, run.Queue, span.Day, run.Split(from, span.Until))
		}
	}
}

// rows returns the titles, and a row of cells for each sum: first the values of the columns, then amounts.
func (s *sums) rows(named func(string) string, show func(int64) string) (titles []string, rows [][]string) {
	titles, rows = slices.Concat(s.columns, []string{"useful", "lost", "idle", "unknown", "total"}), [][]string{}
	for _, key := range slices.Sorted(maps.Keys(s.of)) {
		row := strings.Split(key, between)
		for i := range row {
			row[i] = named(row[i])
		}
		for _, amount := range amountsOf(s.of[key]) {
			row = append(row, show(amount))
		}
		rows = append(rows, row)
	}
	return titles, rows
}

// amountsOf returns what was useful, lost, idle and unknown, and all together.
func amountsOf(held usageapi.Held) []int64 {
	return []int64{held.Useful, held.Lost, held.Idle, held.Unknown, usage.Total(held)}
}

// objects returns the sums as JSON has them, in seconds.
func (s *sums) objects() []map[string]any {
	titles, rows := s.rows(func(text string) string { return text }, func(int64) string { return "" })
	objects := make([]map[string]any, len(rows))
	for i, key := range slices.Sorted(maps.Keys(s.of)) {
		objects[i] = map[string]any{}
		amounts := amountsOf(s.of[key])
		for j, title := range titles {
			if objects[i][title] = rows[i][j]; j >= len(s.columns) {
				objects[i][title] = float64(amounts[j-len(s.columns)]) / 1000
			}
		}
	}
	return objects
}

// inHours and inSeconds are how amounts are shown.
func inHours(amount int64) string   { return strconv.FormatFloat(float64(amount)/3_600_000, 'f', 1, 64) }
func inSeconds(amount int64) string { return strconv.FormatFloat(float64(amount)/1000, 'f', 3, 64) }

// print writes the sums in a format: the table in hours, and others in seconds.
func (s *sums) print(to *session, format string) error {
	switch {
	case format == "json":
		return printAs(to.streams.Out, format, s.objects())
	case format == "csv":
		titles, rows := s.rows(noFormula, inSeconds)
		return csv.NewWriter(to.streams.Out).WriteAll(append([][]string{titles}, rows...))
	case len(s.of) == 0:
		_, err := fmt.Fprintf(to.streams.ErrOut, "Nothing was recorded since %s; usage.enabled turns it on.\n", s.first)
		return err
	}
	titles, rows := s.rows(orNone, inHours)
	for i := range titles {
		titles[i] = strings.ToUpper(titles[i])
	}
	return table(to.streams.Out, titles, rows)
}
