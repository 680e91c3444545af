package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	utilslices "sigs.k8s.io/kueue/pkg/util/slices"

	"github.com/signalbox-dev/signalbox/cmd/kubectl-signalbox/explain"
	"github.com/signalbox-dev/signalbox/cmd/kubectl-signalbox/simulate"
)

func explainCommand(c *cli) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:     "explain TRAINJOB",
		Aliases: []string{"why"},
		Short:   "Say why a TrainJob is in its state, and what to do",
		Long: "Say where a TrainJob stands and since when, what its queue lacks in numbers and who holds it, who is " +
			"ahead of it, what has happened to it, and what to do.\n\nWith the rights of a user of the namespace, it reads " +
			"Kueue's last message. With the right to read ClusterQueues, and LocalQueues and Workloads of all " +
			"namespaces, it runs Kueue's own scheduler in a simulation and shows numbers. It names missing rights.",
		Example:           "  kubectl signalbox explain resnet -n vision",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: completeTrainJobs(c),
		RunE: connected(c, func(ctx context.Context, s *session, args []string) error {
			job, err := s.trainJob(ctx, args[0])
			if err != nil {
				return err
			}
			q, err := s.queues(ctx, s.namespace)
			if err != nil {
				return err
			}
			facts, err := s.facts(ctx, job, q)
			if err != nil {
				return err
			}
			facts.WebhookDown = s.webhookDown(ctx, job)
			e := explain.Explain(facts)
			e.Clusters = s.inClusters(ctx, facts)
			if output != "" {
				return printAs(s.streams.Out, output, e)
			}
			return write(s.streams.Out, e)
		}),
	}
	outputFlag(cmd, &output, "json", "yaml")
	return cmd
}

func write(w io.Writer, e *explain.Explanation) error {
	head := fmt.Sprintf("TrainJob %s/%s is %s", e.Namespace, e.Name, e.State)
	if e.Cause.Since != nil {
		head += fmt.Sprintf(", for %s", age(*e.Cause.Since))
	}
	fmt.Fprintln(w, head+".")
	text := string(e.Cause.Code)
	if e.Cause.Reason != "" && e.Cause.Reason != text {
		text += " (" + e.Cause.Reason + ")"
	}
	fmt.Fprintf(w, "  %s: %s\n", text, plain(e.Cause.Text))
	if e.Queue != "" {
		queue := "LocalQueue " + e.Queue
		if e.ClusterQueue != "" {
			queue += ", ClusterQueue " + e.ClusterQueue
		}
		fmt.Fprintf(w, "  %s, priority %d", queue, e.Priority)
		if e.Place > 0 {
			fmt.Fprintf(w, ", place %d of %d", e.Place, e.Waiting)
		}
		fmt.Fprintln(w)
	}
	if len(e.Cause.Do) > 0 {
		fmt.Fprintln(w, "\nWhat to do:")
		for _, do := range e.Cause.Do {
			fmt.Fprintln(w, "  -", do)
		}
	}
	if err := errors.Join(writeDependencies(w, e), writeQuota(w, e)); err != nil {
		return err
	}
	for _, in := range e.Clusters {
		writeCluster(w, in)
	}
	fmt.Fprintln(w, "\nWhat has happened:")
	rows := utilslices.Map(e.Timeline, func(m *explain.Moment) []string {
		return []string{"  " + m.Time.Local().Format(time.DateTime), m.Source, oneLine(m.Text)}
	})
	if err := table(w, nil, rows); err != nil {
		return err
	}
	if len(e.Missing) > 0 {
		fmt.Fprintf(w, "\nYou lack rights that would show more: %s.\n", strings.Join(e.Missing, "; "))
	}
	return nil
}

// writeCluster says in a few lines what a TrainJob is in another cluster.
func writeCluster(w io.Writer, in explain.InCluster) {
	fmt.Fprintf(w, "\nIn cluster %s:\n", in.Cluster)
	e := in.Explanation
	if e == nil {
		fmt.Fprintln(w, "  It isn't known:", plain(in.Unknown))
		return
	}
	fmt.Fprintf(w, "  It is %s. %s: %s\n", e.State, e.Cause.Code, plain(e.Cause.Text))
	for _, do := range e.Cause.Do {
		fmt.Fprintln(w, "  -", do)
	}
	if len(e.Missing) > 0 {
		fmt.Fprintf(w, "  You lack rights there: %s\n", strings.Join(e.Missing, "; "))
	}
}

func writeDependencies(w io.Writer, e *explain.Explanation) error {
	if len(e.Dependencies) == 0 {
		return nil
	}
	fmt.Fprintln(w, "\nRuns after:")
	return table(w, nil, utilslices.Map(e.Dependencies, func(d *explain.Dependency) []string {
		return []string{strings.Repeat("  ", d.Depth+1) + d.Name, d.When.String(), d.State}
	}))
}

func writeQuota(w io.Writer, e *explain.Explanation) error {
	if len(e.Flavors) > 0 {
		fmt.Fprintln(w, "\nQuota:")
		rows := utilslices.Map(e.Flavors, func(f *simulate.Quota) []string {
			short := "<none>"
			if f.Short.Sign() > 0 {
				short = f.Short.String()
			}
			return []string{"  " + f.Flavor, f.Resource, f.Needed.String(), f.Free.String(), short, f.Nominal.String(),
				f.Most.String(), orNone(oneLine(f.Unsuitable))}
		})
		header := []string{"  FLAVOR", "RESOURCE", "NEEDED", "FREE", "SHORT", "NOMINAL", "MOST", "UNSUITABLE"}
		if err := table(w, header, rows); err != nil {
			return err
		}
	}
	if len(e.Ahead) == 0 {
		return nil
	}
	fmt.Fprintln(w, "\nAhead of it:")
	const most = 10
	rows := utilslices.Map(e.Ahead[:min(most, len(e.Ahead))], func(a *explain.Waiting) []string {
		return []string{"  " + a.Namespace + "/" + a.Name, fmt.Sprintf("priority %d", a.Priority), "waits " + age(a.Since)}
	})
	if len(e.Ahead) > most {
		rows = append(rows, []string{fmt.Sprintf("  and %d more", e.Place-1-most)})
	}
	return table(w, nil, rows)
}

// plain puts what others may have written into one line, without what a terminal would carry out.
func plain(text string) string { return printable(strings.Join(strings.Fields(text), " ")) }

// oneLine puts a text into one line of a table.
func oneLine(text string) string {
	text = plain(text)
	const most = 160
	if r := []rune(text); len(r) > most {
		return string(r[:most]) + "…"
	}
	return text
}
