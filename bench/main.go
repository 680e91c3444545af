// Command bench measures on a running control plane. Counts come from the API server's audit log and are exact; times
// are given as medians and as the 95th and 99th of 100. `make bench` runs it.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"time"

	"github.com/spf13/cobra"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
)

func main() {
	ctrl.SetLogger(zap.New(zap.WriteTo(os.Stderr)))
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := command().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func command() *cobra.Command {
	root := &cobra.Command{
		Use: "bench", Short: "Measure on a running control plane", SilenceUsage: true, SilenceErrors: true,
	}
	root.AddCommand(gangsCommand(), loadCommand(), churnCommand(), stormCommand(), largeCommand(), hostileCommand(),
		foreignCommand(), lostCommand(), brokenCommand(), growCommand(), besideCommand(), reportCommand(), compareCommand(),
		traceCommand())
	return root
}

// clusterFlag adds the flag that names the control plane to measure on.
func clusterFlag(c *cobra.Command, dir *string) {
	c.Flags().StringVar(dir, "cluster", os.Getenv("SIGNALBOX_CLUSTER"),
		"folder that the control plane left, .cluster of the repository")
}

// queuesFlag adds the flag for the number of queues.
func queuesFlag(c *cobra.Command, q *queues, usually queues) {
	c.Flags().IntVar((*int)(q), "queues", int(usually),
		fmt.Sprintf("LocalQueues, 1 or a multiple of %d: %d to a ClusterQueue, %d to a cohort",
			localOfCohort, localOfCluster, localOfCohort))
}

func gangsCommand() *cobra.Command {
	var dir, out string
	var jobs, rounds int
	c := &cobra.Command{
		Use: "gangs", Short: "What gang scheduling costs", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if jobs < 1 || rounds < 1 {
				return fmt.Errorf("--jobs is %d and --rounds %d; both must be 1 or more", jobs, rounds)
			}
			g, err := newGround(cmd.Context(), dir)
			if err != nil {
				return err
			}
			result, err := gangs(cmd.Context(), g, jobs, rounds)
			if err != nil {
				return err
			}
			text := result.markdown()
			fmt.Print("\n" + text)
			return write(filepath.Join(out, time.Now().Format(time.DateOnly)+"-gangs"), result, text)
		},
	}
	clusterFlag(c, &dir)
	c.Flags().StringVar(&out, "out", "bench/results", "folder for the results")
	c.Flags().IntVar(&jobs, "jobs", 40, "TrainJobs in each run")
	c.Flags().IntVar(&rounds, "rounds", 3, "runs of each kind, alternating")
	return c
}

func loadCommand() *cobra.Command {
	var o loadOptions
	c := &cobra.Command{
		Use: "load", Short: "Measure one profile: what waits, bursts, and starts while others wait", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return load(cmd.Context(), o) },
	}
	clusterFlag(c, &o.cluster)
	c.Flags().StringVar(&o.profile, "profile", "bundled", "profile that the control plane was started with")
	c.Flags().StringVar(&o.out, "out", "bench/.raw/bundled-1.json", "file for what was measured")
	c.Flags().StringVar(&o.profiles, "pprof", "", "folder for profiles of Signalbox, Kueue and the API server; none by "+
		"default, because they take time themselves")
	c.Flags().IntSliceVar(&o.bursts, "bursts", nil, "TrainJobs of each burst; none by default")
	c.Flags().IntSliceVar(&o.depths, "waiting", nil,
		"TrainJobs that wait while others are started, each as often as it is named; none by default")
	queuesFlag(c, &o.queues, 1)
	c.Flags().BoolVar(&o.few, "few", false,
		"measure what a few tell, too: queued, running, evicted, and what is written after a burst of 100")
	return c
}

func churnCommand() *cobra.Command {
	var o churnOptions
	var out string
	c := &cobra.Command{
		Use: "churn", Short: "Measure what preemptions and edits cost, and what of them stays in the manager",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.out = filepath.Join(out, time.Now().Format(time.DateOnly)+"-churn")
			return churn(cmd.Context(), o)
		},
	}
	clusterFlag(c, &o.cluster)
	queuesFlag(c, &o.queues, localOfCohort)
	c.Flags().StringVar(&out, "out", "bench/results", "folder for the results")
	c.Flags().IntVar(&o.waiting, "waiting", 1000, "TrainJobs that wait")
	c.Flags().IntVar(&o.rounds, "rounds", 4, "rounds, at the least")
	c.Flags().DurationVar(&o.over, "for", 0, "how long rounds are begun, if that is longer")
	return c
}

func stormCommand() *cobra.Command {
	var o stormOptions
	var out string
	c := &cobra.Command{
		Use: "storm", Short: "Measure what it takes that all that run are preempted and run again", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.out = filepath.Join(out, time.Now().Format(time.DateOnly)+"-storm-"+o.profile)
			return storm(cmd.Context(), o)
		},
	}
	clusterFlag(c, &o.cluster)
	c.Flags().StringVar(&o.profile, "profile", "bundled", "profile that the control plane was started with")
	c.Flags().StringVar(&out, "out", "bench/results", "folder for the results")
	c.Flags().IntVar(&o.jobs, "jobs", 1000, "TrainJobs that run")
	c.Flags().IntVar(&o.storms, "storms", 2, "how often all of them are preempted")
	return c
}

func largeCommand() *cobra.Command {
	var dir, only, out string
	c := &cobra.Command{
		Use: "large", Short: "Measure TrainJobs of thousands of pods", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return large(cmd.Context(), dir, only, filepath.Join(out, time.Now().Format(time.DateOnly)+"-large"))
		},
	}
	clusterFlag(c, &dir)
	c.Flags().StringVar(&only, "only", "", "part of the names of the shapes to measure; all by default")
	c.Flags().StringVar(&out, "out", "bench/results", "folder for the results")
	return c
}

func hostileCommand() *cobra.Command {
	var o hostileOptions
	var out string
	c := &cobra.Command{
		Use: "hostile", Short: "Measure starts on real nodes while hostile requests are sent", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.out = filepath.Join(out, time.Now().Format(time.DateOnly)+"-hostile")
			return hostileBench(cmd.Context(), o)
		},
	}
	clusterFlag(c, &o.cluster)
	c.Flags().StringVar(&out, "out", "bench/results", "folder for the results")
	c.Flags().StringVar(&o.only, "only", "", "regular expression of the kinds to measure, such as ^dry; all by default")
	c.Flags().IntVar(&o.rounds, "rounds", 3, "rounds, in each of which each kind is measured")
	return c
}

func foreignCommand() *cobra.Command {
	var o foreignOptions
	var out string
	c := &cobra.Command{
		Use: "foreign", Short: "Measure what JobSets and Jobs cost Signalbox that Kueue's own integrations queue",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.out = filepath.Join(out, time.Now().Format(time.DateOnly)+"-foreign")
			return foreign(cmd.Context(), o)
		},
	}
	clusterFlag(c, &o.cluster)
	c.Flags().StringVar(&out, "out", "bench/results", "folder for the results")
	c.Flags().IntVar(&o.jobs, "jobs", 1000, "JobSets, and Jobs, that run")
	c.Flags().IntVar(&o.waiting, "waiting", 10000, "JobSets that wait")
	return c
}

// trainCommand returns a command that measures trainings, with the flags that all have.
func trainCommand(name, says string, o *trainOptions, jobs int, run func(context.Context) error) *cobra.Command {
	c := &cobra.Command{
		Use: name, Short: "Measure " + says, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return run(cmd.Context()) },
	}
	clusterFlag(c, &o.cluster)
	c.Flags().StringVar(&o.profile, "profile", "bundled", "profile that the control plane was started with")
	c.Flags().StringVar(&o.out, "out", "bench/.raw/"+name+"/bundled-1.json", "file for what was measured")
	c.Flags().IntVar(&o.jobs, "jobs", jobs, "TrainJobs that train")
	c.Flags().DurationVar(&o.over, "for", time.Hour, "how long it is measured, at most")
	c.Flags().Uint64Var(&o.seed, "seed", 1, "what the sizes of TrainJobs, and what happens to them, depend on")
	return c
}

func withinFlag(c *cobra.Command, o *trainOptions) {
	c.Flags().DurationVar(&o.within, "within", 30*time.Second, "Signalbox's preemption.checkpointWithin")
}

func lostCommand() *cobra.Command {
	var o trainOptions
	c := trainCommand("lost", "the work that is lost to preemptions", &o, 100,
		func(ctx context.Context) error { return lost(ctx, o) })
	withinFlag(c, &o)
	return c
}

func brokenCommand() *cobra.Command {
	var o brokenOptions
	c := trainCommand("broken", "the tries that are lost to broken nodes", &o.trainOptions, 300,
		func(ctx context.Context) error { return broken(ctx, o) })
	c.Flags().IntVar(&o.nodes, "nodes", 200, "nodes")
	c.Flags().IntVar(&o.broken, "broken", 5, "nodes that reject each pod")
	c.Flags().DurationVar(&o.work, "work", leastWork, "the least work of a TrainJob; the most is twice that")
	return c
}

func growCommand() *cobra.Command {
	var o growOptions
	c := trainCommand("grow", "what TrainJobs gain that grow", &o.trainOptions, 50,
		func(ctx context.Context) error { return growing(ctx, o) })
	withinFlag(c, &o.trainOptions)
	c.Flags().DurationVar(&o.every, "every", time.Minute, "Signalbox's grow.every; 0 and nothing grows")
	c.Flags().StringVar(&o.policies, "policies", "bench/.raw/policies.yaml", "file of what the chart renders")
	return c
}

func besideCommand() *cobra.Command {
	var out string
	c := &cobra.Command{
		Use: "beside FOLDER", Short: "Compare what runs of lost, broken or grow have measured", Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			runs, err := runsIn[trainRun](args[0])
			if err != nil {
				return err
			}
			c, text := beside(runs)
			fmt.Print("\n" + text)
			return write(filepath.Join(out, time.Now().Format(time.DateOnly)+"-"+filepath.Base(args[0])), c, text)
		},
	}
	c.Flags().StringVar(&out, "out", "bench/results", "folder for the results")
	return c
}

func reportCommand() *cobra.Command {
	var out, suffix string
	c := &cobra.Command{
		Use: "report FOLDER", Short: "Compare what runs of load have measured", Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			return report(args[0], filepath.Join(out, time.Now().Format(time.DateOnly)+suffix))
		},
	}
	c.Flags().StringVar(&out, "out", "bench/results", "folder for the results")
	c.Flags().StringVar(&suffix, "suffix", "", "end of the page's name after the day, such as -kubernetes-1.37")
	return c
}

func compareCommand() *cobra.Command {
	return &cobra.Command{
		Use: "compare BEFORE.json AFTER.json", Short: "Name what got worse between two pages by more than noise",
		Args: cobra.ExactArgs(2),
		RunE: func(_ *cobra.Command, args []string) error { return comparePages(os.Stdout, args[0], args[1]) },
	}
}

func traceCommand() *cobra.Command {
	return &cobra.Command{
		Use: "trace AUDIT.log", Short: "Lay out the way of TrainJobs from submission to a running pod, by an audit log",
		Args: cobra.ExactArgs(1), RunE: func(_ *cobra.Command, args []string) error { return trace(os.Stdout, args[0]) },
	}
}

// write leaves a result as a page and as JSON.
func write(base string, result any, text string) error {
	if err := os.MkdirAll(filepath.Dir(base), 0o755); err != nil {
		return err
	}
	data, err := json.MarshalIndent(result, "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(base+".json", append(data, '\n'), 0o644); err != nil {
		return err
	}
	if err := os.WriteFile(base+".md", []byte(text), 0o644); err != nil {
		return err
	}
	fmt.Printf("\nWritten to %s.md and .json.\n", base)
	return nil
}

// machine is what a result was measured on.
func machine() string { return fmt.Sprintf("%d cores, %s", runtime.NumCPU(), runtime.Version()) }
