package main

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/cli-runtime/pkg/printers"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	workloadfinish "sigs.k8s.io/kueue/pkg/workload/finish"
	"sigs.k8s.io/yaml"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// outputFlag adds -o with the formats that a command has.
func outputFlag(cmd *cobra.Command, to *string, formats ...string) {
	cmd.Flags().StringVarP(to, "output", "o", "", "output format: "+strings.Join(formats, "|"))
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(formats, cobra.ShellCompDirectiveNoFileComp))
	before := cmd.PreRunE
	cmd.PreRunE = func(cmd *cobra.Command, args []string) error {
		if *to != "" && !slices.Contains(formats, *to) {
			return fmt.Errorf("--output is %q; it can be %s", *to, strings.Join(formats, ", "))
		}
		if before != nil {
			return before(cmd, args)
		}
		return nil
	}
}

// printAs writes a value as JSON or YAML.
func printAs(w io.Writer, format string, value any) error {
	data, err := json.MarshalIndent(value, "", "    ")
	if err == nil && format == "yaml" {
		data, err = yaml.JSONToYAML(data)
	}
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(w, strings.TrimRight(string(data), "\n"))
	return err
}

// table writes rows in columns, as kubectl does.
func table(w io.Writer, header []string, rows [][]string) error {
	tabs := printers.GetNewTabWriter(w)
	if header != nil {
		fmt.Fprintln(tabs, strings.Join(header, "\t"))
	}
	for _, row := range rows {
		fmt.Fprintln(tabs, strings.Join(row, "\t"))
	}
	return tabs.Flush()
}

// tellMissing says which rights would show more.
func (s *session) tellMissing() {
	if len(s.missing) > 0 {
		fmt.Fprintf(s.streams.ErrOut, "You lack rights that would show more: %s.\n", strings.Join(s.missing, "; "))
	}
}

func age(since time.Time) string {
	if since.IsZero() {
		return "<unknown>"
	}
	return duration.HumanDuration(time.Since(since))
}

// orNone returns a text for a column.
func orNone(text string) string {
	if text == "" {
		return "<none>"
	}
	return text
}

func ownedBy(job *api.TrainJob) func(metav1.OwnerReference) bool {
	return func(ref metav1.OwnerReference) bool { return ref.UID == job.UID }
}

func isFinished(wl *kueue.Workload) bool { return workloadfinish.IsFinished(wl) }
