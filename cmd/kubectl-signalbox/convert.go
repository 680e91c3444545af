package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/klog/v2"

	"github.com/signalbox-dev/signalbox/overrides/legacy"
	"github.com/signalbox-dev/signalbox/store"
)

const convertLong = `Rewrite what TrainJobs change of their runtimes to spec.runtimePatches, from every earlier shape:
podTemplateOverrides (Kubeflow Trainer v2.1 and its operator guide), podSpecOverrides (v2.0), templateOverrides (a
proposal), and spec.labels and spec.annotations (before v2.2).

The manifests are written to standard output, everything else in them as it stands; what became of each TrainJob is
written to standard error. runtimePatches are merged with what the runtime says, where podTemplateOverrides of the guide
take its place. Whether that makes a difference depends on the runtime: it is compared where the runtime is among the
files, or in the cluster with --server-dry-run, and is only pointed out where it is not.

The exit code is not 0 if anything was lost.`

type options struct {
	path      string
	output    string
	strategic bool
	dryRun    bool
}

func convertCommand(c *cli) *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use: "convert -f FILE_OR_DIRECTORY", Short: "Rewrite the overrides of TrainJobs to spec.runtimePatches",
		Long: convertLong,
		Example: "  kubectl signalbox convert -f job.yaml > converted.yaml\n  kubectl signalbox convert -f jobs/ " +
			"--server-dry-run > /dev/null",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.output != "yaml" {
				return fmt.Errorf("--output is %q; only yaml is written, which a file of JSON is too", o.output)
			}
			var cluster *session
			if o.dryRun {
				var err error
				if cluster, err = c.connect(); err != nil {
					return err
				}
			}
			return convert(cmd.Context(), o, cluster, c.streams)
		},
	}
	cmd.Flags().StringVarP(&o.path, "filename", "f", "",
		"a file of manifests, a directory with such (*.yaml, *.yml, *.json), or - for standard input")
	cmd.Flags().StringVarP(&o.output, "output", "o", "yaml", "the format of what is written: yaml")
	cmd.Flags().BoolVar(&o.strategic, "strategic", false,
		"take podTemplateOverrides as Kubeflow Trainer v2.1 merges them, strategically, and not as its operator guide says")
	cmd.Flags().BoolVar(&o.dryRun, "server-dry-run", false,
		"have the cluster check the result, without storing it, and compare with the runtimes there")
	_ = cmd.MarkFlagRequired("filename") // the flag is defined above
	return cmd
}

// converter converts files of manifests. It counts what was lost, and the TrainJobs that the cluster refused.
type converter struct {
	dialect legacy.Reader
	known   runtimes
	cluster *session // nil without --server-dry-run
	streams genericiooptions.IOStreams

	lost, refused int
}

// convert writes the converted manifests to streams.Out, and the changes of each TrainJob to streams.ErrOut.
func convert(ctx context.Context, o options, cluster *session, streams genericiooptions.IOStreams) error {
	files, err := read(o.path, streams.In)
	if err != nil {
		return err
	}
	c := &converter{dialect: legacy.Manifests(o.strategic), known: runtimes{}, cluster: cluster, streams: streams}
	for _, f := range files {
		if err := c.known.collect(f); err != nil {
			return fmt.Errorf("%s: %w", f.name, err)
		}
	}
	for i, f := range files {
		if i > 0 && !strings.HasPrefix(f.text, "---") {
			fmt.Fprintln(streams.Out, "---")
		}
		if err := c.file(ctx, f); err != nil {
			return fmt.Errorf("%s: %w", f.name, err)
		}
	}
	return c.result()
}

// file converts the documents of a file.
func (c *converter) file(ctx context.Context, f file) error {
	for _, doc := range documents(f.text) {
		text, jobs, err := rewrite(doc, c.dialect)
		if err != nil {
			return err
		}
		for _, job := range jobs {
			if err := c.report(ctx, f.name, job); err != nil {
				return fmt.Errorf("TrainJob %s: %w", klog.KObj(job.before), err)
			}
		}
		if _, err := io.WriteString(c.streams.Out, text); err != nil {
			return err
		}
	}
	if !strings.HasSuffix(f.text, "\n") {
		fmt.Fprintln(c.streams.Out)
	}
	return nil
}

// report writes the changes of a TrainJob, what was lost of it, and whether the cluster refuses it.
func (c *converter) report(ctx context.Context, file string, job *conversion) error {
	problems, notes, err := c.compare(ctx, job)
	if err != nil {
		return err
	}
	say := func(kind string, texts ...string) {
		for _, text := range texts {
			fmt.Fprintf(c.streams.ErrOut, "%s: TrainJob %s: %s%s\n", file, klog.KObj(job.before), kind, text)
		}
	}
	if len(job.changes)+len(problems) == 0 {
		say("", "nothing to convert")
	} else {
		say("", job.changes...)
		say("LOST: ", problems...)
		say("note: ", notes...)
	}
	c.lost += len(problems)
	if c.cluster == nil {
		return nil
	}
	if err := c.cluster.check(ctx, job.converted); err != nil {
		c.refused++
		say("refused by the cluster: ", err.Error())
	}
	return nil
}

// result returns an error where anything was lost or refused.
func (c *converter) result() error {
	switch {
	case c.lost > 0 && c.refused > 0:
		return fmt.Errorf("lost: %d, refused by the cluster: %d; each is named above", c.lost, c.refused)
	case c.lost > 0:
		return fmt.Errorf("lost: %d; each is named above, with what to do", c.lost)
	case c.refused > 0:
		return fmt.Errorf("refused by the cluster: %d; each is named above", c.refused)
	}
	return nil
}

// compare returns what is lost of a TrainJob, and notes of what may be.
func (c *converter) compare(ctx context.Context, job *conversion) (lost, notes []string, err error) {
	lost = slices.Clone(job.lost)
	if job.plan == nil {
		return lost, nil, nil
	}
	rt := c.known.of(job.before)
	if rt == nil && c.cluster != nil {
		rt, err = c.cluster.runtime(ctx, job.before)
		if errors.Is(err, store.ErrUnknownKind) {
			return lost, nil, nil // the cluster refuses it, with the reason
		}
		if err != nil {
			return nil, nil, err
		}
	}
	if rt == nil {
		for _, what := range job.plan.Depends {
			notes = append(notes, fmt.Sprintf("%s took the place of the runtime's, and is merged with it now; %s is not among "+
				"the files, so that it can't be compared", what, store.Describe(job.before)))
		}
		return lost, notes, nil
	}
	different, err := legacy.Differences(c.dialect, job.before, job.plan, rt)
	return append(lost, different...), nil, err
}
