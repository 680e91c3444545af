package main

import (
	"context"
	"fmt"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"
	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/signalbox-dev/signalbox/integration/installed"
)

type versions struct {
	Client string `json:"client"`
	// Server is the release of Signalbox's Deployment; "" if it isn't known.
	Server     string `json:"server,omitempty"`
	Kubernetes string `json:"kubernetes,omitempty"`
	Kueue      string `json:"kueue,omitempty"`
	JobSet     string `json:"jobSet,omitempty"`
	// Skew says what doesn't go together; "" if all does.
	Skew    string   `json:"skew,omitempty"`
	Missing []string `json:"missingRights,omitempty"`
}

func versionCommand(c *cli) *cobra.Command {
	var output string
	var clientOnly bool
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the versions of the plugin, of Signalbox, Kueue, JobSet and Kubernetes",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			v := versions{Client: buildVersion()}
			if !clientOnly {
				s, err := c.connect()
				if err != nil {
					return err
				}
				if err := v.read(cmd.Context(), s); err != nil {
					return err
				}
			}
			if output != "" {
				return printAs(c.streams.Out, output, v)
			}
			return v.write(c.streams)
		},
	}
	cmd.Flags().BoolVar(&clientOnly, "client", false, "print the plugin's version alone, and ask no cluster")
	outputFlag(cmd, &output, "json", "yaml")
	return cmd
}

// buildVersion returns the version that the plugin was built from.
func buildVersion() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	for _, setting := range info.Settings {
		if setting.Key == "vcs.revision" && info.Main.Version == "(devel)" {
			return setting.Value
		}
	}
	return info.Main.Version
}

func (v *versions) read(ctx context.Context, s *session) error {
	var deployments appsv1.DeploymentList
	ours := client.MatchingLabels{"app.kubernetes.io/name": "signalbox"}
	if _, err := s.list(ctx, &deployments, "deployments.apps", ours); err != nil {
		return err
	}
	if len(deployments.Items) > 0 {
		v.Server = deployments.Items[0].Labels["app.kubernetes.io/version"]
	}
	releases, later, err := s.releases(ctx)
	v.Kubernetes, v.Kueue, v.JobSet = releases.Kubernetes, releases.Kueue, releases.JobSet
	if err != nil {
		v.Skew = err.Error()
	} else if len(later) > 0 {
		v.Skew = fmt.Sprintf("%v later than Signalbox was tested with", later)
	}
	v.Missing = s.missing
	return nil
}

// releases returns the cluster's releases, and which of them are later than Signalbox was tested with. It finds none of
// these if the user may not read the CRDs.
func (s *session) releases(ctx context.Context) (found installed.Releases, later []string, err error) {
	found, err = installed.FindReleases(ctx, s.client, s.clients.Discovery(), installed.Releases{})
	switch {
	case err != nil:
		return found, nil, err
	case found.Kueue == "" || found.JobSet == "":
		s.lacks("get customresourcedefinitions.apiextensions.k8s.io")
		return found, nil, nil
	}
	return found, found.Unsupported(), nil
}

func (v *versions) write(streams genericiooptions.IOStreams) error {
	rows := [][]string{
		{"kubectl-signalbox", v.Client},
		{"Signalbox", orNone(v.Server)},
		{"Kubernetes", orNone(v.Kubernetes)},
		{"Kueue", orNone(v.Kueue)},
		{"JobSet", orNone(v.JobSet)},
	}
	if err := table(streams.Out, nil, rows); err != nil {
		return err
	}
	if len(v.Missing) > 0 {
		fmt.Fprintf(streams.ErrOut, "You may not %s, which would show more.\n", strings.Join(v.Missing, ", nor "))
	}
	if v.Skew != "" {
		fmt.Fprintln(streams.Out, "Skew:", v.Skew)
	}
	return nil
}
