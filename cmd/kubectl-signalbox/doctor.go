package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

const doctorLong = `Look for everything that keeps Signalbox from working or makes it wrong: versions, CRDs, Kueue's
configuration, webhooks and their certificates, leaders, runtimes that can't be queued, flavors whose labels no node
has, quota above what nodes have, and TrainJobs that are stuck. Each finding comes with the command that mends it.

It needs an admin's rights for all of it, and says what it could not check. The exit code is 1 if there are errors, and
0 if there are only warnings.`

func doctorCommand(c *cli) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use: "doctor", Short: "Find what keeps Signalbox from working", Long: doctorLong, Args: cobra.NoArgs,
		Example: "  kubectl signalbox doctor",
		RunE: connected(c, func(ctx context.Context, s *session, _ []string) error {
			return doctor(ctx, s, output)
		}),
	}
	outputFlag(cmd, &output, "json", "yaml")
	return cmd
}

// report is all that doctor says.
type report struct {
	Findings []finding `json:"findings"`
	// Checked are the checks that were made.
	Checked []string `json:"checked"`
	// Missing are the rights that the user lacks, so that something was not checked.
	Missing []string `json:"missingRights,omitempty"`
}

func doctor(ctx context.Context, s *session, output string) error {
	r := report{Findings: []finding{}}
	for _, check := range checks {
		found, err := check.run(ctx, s)
		if err != nil {
			return fmt.Errorf("%s: %w", check.name, err)
		}
		r.Checked = append(r.Checked, check.name)
		r.Findings = append(r.Findings, found...)
	}
	r.Missing = s.missing
	errors := 0
	for _, f := range r.Findings {
		if f.Severity == bad {
			errors++
		}
	}
	if output != "" {
		if err := printAs(s.streams.Out, output, r); err != nil {
			return err
		}
	} else {
		r.write(s)
	}
	if errors > 0 {
		return errExit(1)
	}
	return nil
}

func (r *report) write(s *session) {
	for _, f := range r.Findings {
		fmt.Fprintf(s.streams.Out, "%s: %s: %s\n", strings.ToUpper(string(f.Severity)), f.About, f.Text)
		if f.Do != "" {
			fmt.Fprintf(s.streams.Out, "    %s\n", f.Do)
		}
	}
	if len(r.Findings) == 0 {
		fmt.Fprintln(s.streams.Out, "Nothing was found.")
	}
	fmt.Fprintf(s.streams.Out, "Checked: %s.\n", strings.Join(r.Checked, ", "))
	if len(r.Missing) > 0 {
		fmt.Fprintf(s.streams.Out, "Not fully checked, for lack of rights: %s.\n", strings.Join(r.Missing, "; "))
	}
}
