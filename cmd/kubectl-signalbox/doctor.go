package main

import (
	"context"
	"fmt"
	"slices"

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

func doctor(ctx context.Context, s *session, output string) error {
	r := &report{Findings: []finding{}}
	for _, check := range checks {
		if err := check.run(ctx, s, r); err != nil {
			return fmt.Errorf("%s: %w", check.name, err)
		}
		r.Checked = append(r.Checked, check.name)
	}
	r.Missing = s.missing
	if output == "" {
		r.write(s)
	} else if err := printAs(s.streams.Out, output, r); err != nil {
		return err
	}
	if slices.ContainsFunc(r.Findings, func(f finding) bool { return f.Severity == bad }) {
		return errExit(1)
	}
	return nil
}
