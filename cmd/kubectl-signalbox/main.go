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
	c := &cli{streams: streams, connect: func() (*session, error) { return newSession(flags, kueueNamespace, streams) }}
	cmd := &cobra.Command{
		Use: "kubectl-signalbox", Short: "Work with TrainJobs on Kueue's quota",
		Annotations:  map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl signalbox"},
		SilenceUsage: true, SilenceErrors: true,
	}
	flags.AddFlags(cmd.PersistentFlags())
	cmd.PersistentFlags().StringVar(&kueueNamespace, "kueue-namespace", kueueNamespace, "namespace that Kueue runs in")
	cmd.SetOut(streams.Out)
	cmd.SetErr(streams.ErrOut)
	cmd.AddCommand(c.commands()...)
	cmd.AddCommand(convertCommand(c), deleteGangsCommand(c))
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
