package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/spf13/cobra"
	apitable "k8s.io/apimachinery/pkg/api/meta/table"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/printers"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	workloadfinish "sigs.k8s.io/kueue/pkg/workload/finish"
	"sigs.k8s.io/yaml"
)

// outputFlag adds -o with the formats that a command has.
func outputFlag(cmd *cobra.Command, to *string, formats ...string) {
	cmd.Flags().StringVarP(to, "output", "o", "", "output format: "+strings.Join(formats, "|"))
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(formats, cobra.ShellCompDirectiveNoFileComp))
	cmd.PreRunE = func(*cobra.Command, []string) error {
		if *to != "" && !slices.Contains(formats, *to) {
			return fmt.Errorf("--output is %q; it can be %s", *to, strings.Join(formats, ", "))
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
	return apitable.ConvertToHumanReadableDateType(metav1.NewTime(since))
}

// orNone returns a text for a column.
func orNone(text string) string { return cmp.Or(text, "<none>") }

func isFinished(wl *kueue.Workload) bool { return workloadfinish.IsFinished(wl) }

// told is an error of the API server in users' terms.
type told struct {
	text string
	err  error
}

func (t told) Error() string { return t.text }

// Unwrap returns what the API server has said.
func (t told) Unwrap() error { return t.err }

// errExit ends the program with a code and without a message.
type errExit int

func (e errExit) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

// printable returns a text without control characters: those of a user's name would be carried out by a terminal.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return unicode.ReplacementChar
		}
		return r
	}, text)
}
