package main

import (
	"cmp"
	"fmt"
	"runtime"
	"runtime/debug"
	"slices"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	configapi "github.com/signalbox-dev/signalbox/api/config/v1alpha1"
)

// version, commit and date of a release are set by the linker (Makefile); of any other build Go knows the last two.
var version, commit, date = "development", "", ""

func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version, the commit and its date", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			commit, date := built()
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "signalbox %s\ncommit %s\ndate %s\n%s %s/%s\n",
				version, commit, date, runtime.Version(), runtime.GOOS, runtime.GOARCH)
			return err
		},
	}
}

// built returns the commit that the program was built from, and its date.
func built() (commitOf, dateOf string) {
	var settings []debug.BuildSetting
	if info, found := debug.ReadBuildInfo(); found {
		settings = info.Settings
	}
	return cmp.Or(commit, setting(settings, "vcs.revision"), "unknown"),
		cmp.Or(date, setting(settings, "vcs.time"), "unknown")
}

// setting returns what Go has recorded in a build under a key; "" for nothing.
func setting(settings []debug.BuildSetting, key string) string {
	at := slices.IndexFunc(settings, func(s debug.BuildSetting) bool { return s.Key == key })
	if at < 0 {
		return ""
	}
	return settings[at].Value
}

func configCommand() *cobra.Command {
	config := &cobra.Command{Use: "config", Short: "Check or print a configuration file"}
	config.AddCommand(&cobra.Command{
		Use: "check FILE", Short: "Say what is wrong with a configuration file, or print it with its defaults",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, _, err := load(args[0])
			if err != nil {
				return err
			}
			c.APIVersion, c.Kind = configapi.APIVersion, configapi.Kind
			text, err := yaml.Marshal(c)
			if err != nil {
				return err
			}
			_, err = cmd.OutOrStdout().Write(text)
			return err
		},
	})
	return config
}
