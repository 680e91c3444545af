// Command kubectl-signalbox is a plugin of kubectl: kubectl signalbox.
package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	ctrl "sigs.k8s.io/controller-runtime"
)

func main() {
	ctrl.SetLogger(logr.Discard()) // what Kueue logs in a simulation
	streams := genericiooptions.IOStreams{In: os.Stdin, Out: os.Stdout, ErrOut: os.Stderr}
	if err := command(streams).ExecuteContext(ctrl.SetupSignalHandler()); err != nil {
		if code := errExit(0); errors.As(err, &code) {
			os.Exit(int(code))
		}
		fmt.Fprintln(os.Stderr, "Error:", err)
		os.Exit(1)
	}
}

func command(streams genericiooptions.IOStreams) *cobra.Command {
	flags := genericclioptions.NewConfigFlags(true)
	kueueNamespace := defaultKueueNamespace
	others := elsewhere{contexts: map[string]string{}}
	open := func(flags *genericclioptions.ConfigFlags) (*session, error) {
		s, err := newSession(flags, kueueNamespace, streams)
		if err == nil {
			s.elsewhere = others
		}
		return s, err
	}
	others.open = opens(flags, open)
	c := &cli{streams: streams, connect: func() (*session, error) { return open(flags) }}
	cmd := &cobra.Command{
		Use: "kubectl-signalbox", Short: "Work with TrainJobs on Kueue's quota",
		Annotations:  map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl signalbox"},
		SilenceUsage: true, SilenceErrors: true,
	}
	cluster := clusterFlag{&flags.ClusterName, others.contexts}
	flags.ClusterName = nil // the flag is the plugin's own
	flags.AddFlags(cmd.PersistentFlags())
	cmd.PersistentFlags().Var(cluster, "cluster", "the name of the kubeconfig cluster to use, or how a cluster of "+
		"MultiKueue is reached: its name and a context, such as worker-1=context; by default the context of its name")
	cmd.PersistentFlags().StringVar(&kueueNamespace, "kueue-namespace", kueueNamespace, "namespace that Kueue runs in")
	cmd.SetOut(streams.Out)
	cmd.SetErr(streams.ErrOut)
	cmd.AddCommand(c.commands()...)
	cmd.AddCommand(dashboardCommand(c, flags), convertCommand(c), deleteGangsCommand(c))
	return cmd
}

// commands returns the commands that work with TrainJobs of a cluster.
func (c *cli) commands() []*cobra.Command {
	all := []*cobra.Command{
		listCommand(c), topCommand(c), nodesCommand(c), explainCommand(c), simulateCommand(c), logsCommand(c), waitCommand(c),
		sweepCommand(c), usageCommand(c), doctorCommand(c), versionCommand(c),
	}
	for _, v := range verbs {
		all = append(all, controlCommand(c, v))
	}
	return all
}
