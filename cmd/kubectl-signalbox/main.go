// Command kubectl-signalbox is a plugin of kubectl: kubectl signalbox.
package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	ctrl "sigs.k8s.io/controller-runtime"
)

func main() {
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
	cmd := &cobra.Command{
		Use: "kubectl-signalbox", Short: "Work with TrainJobs on Kueue's quota",
		Annotations:  map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl signalbox"},
		SilenceUsage: true, SilenceErrors: true,
	}
	flags.AddFlags(cmd.PersistentFlags())
	cmd.SetOut(streams.Out)
	cmd.SetErr(streams.ErrOut)
	cmd.AddCommand(
		listCommand(
			flags,
			streams,
		),
		topCommand(flags, streams),
		explainCommand(flags, streams),
		simulateCommand(flags, streams),
		logsCommand(
			flags,
			streams,
		),
		waitCommand(flags, streams),
		doctorCommand(flags, streams),
		versionCommand(flags, streams),
		convertCommand(flags, streams),
		deleteGangsCommand(flags, streams),
	)
	for _, v := range verbs {
		cmd.AddCommand(controlCommand(flags, streams, v))
	}
	return cmd
}
