package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/signalbox-dev/signalbox/admission"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides"
)

const convertLong = `Rewrite what TrainJobs change of their runtimes to spec.runtimePatches, from every earlier shape:
podTemplateOverrides (Kubeflow Trainer v2.1 and its operator guide), podSpecOverrides (v2.0), templateOverrides (a
proposal), and spec.labels and spec.annotations (before v2.2).

The manifests are written to standard output, everything else in them as it stands; what became of each TrainJob is
written to standard error. runtimePatches are merged with what the runtime says, where podTemplateOverrides of the guide
take its place. Whether that makes a difference depends on the runtime: it is compared where the runtime is among the
files, or in the cluster with --server-dry-run, and is only pointed out where it is not.

The exit code is not 0 if anything was lost.`

// options are the flags of convert.
type options struct {
	path      string
	output    string
	strategic bool
	dryRun    bool
}

func convertCommand(flags *genericclioptions.ConfigFlags, streams genericiooptions.IOStreams) *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use: "convert -f FILE_OR_DIRECTORY", Short: "Rewrite the overrides of TrainJobs to spec.runtimePatches", Long: convertLong,
		Example: "  kubectl signalbox convert -f job.yaml > converted.yaml\n  kubectl signalbox convert -f jobs/ --server-dry-run > /dev/null",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.output != "yaml" {
				return fmt.Errorf("--output is %q; only yaml is written, which a file of JSON is too", o.output)
			}
			var cluster *server
			if o.dryRun {
				var err error
				if cluster, err = connect(flags); err != nil {
					return err
				}
			}
			return convert(cmd.Context(), o, cluster, streams)
		},
	}
	cmd.Flags().StringVarP(&o.path, "filename", "f", "", "a file of manifests, a directory with such (*.yaml, *.yml, *.json), or - for standard input")
	cmd.Flags().StringVarP(&o.output, "output", "o", "yaml", "the format of what is written: yaml")
	cmd.Flags().BoolVar(&o.strategic, "strategic", false, "take podTemplateOverrides as Kubeflow Trainer v2.1 merges them, strategically, and not as its operator guide says")
	cmd.Flags().BoolVar(&o.dryRun, "server-dry-run", false, "have the cluster check the result, without storing it, and compare with the runtimes there")
	if err := cmd.MarkFlagRequired("filename"); err != nil {
		panic(err) // the flag is defined above
	}
	return cmd
}

// convert writes the converted manifests to streams.Out and what became of each TrainJob to streams.ErrOut.
func convert(ctx context.Context, o options, cluster *server, streams genericiooptions.IOStreams) error {
	files, err := read(o.path, streams.In)
	if err != nil {
		return err
	}
	known := runtimes{}
	for _, f := range files {
		if err := known.collect(f); err != nil {
			return fmt.Errorf("%s: %w", f.name, err)
		}
	}
	var lost, refused int
	for i, f := range files {
		if i > 0 && !strings.HasPrefix(f.text, "---") {
			fmt.Fprintln(streams.Out, "---")
		}
		for _, doc := range documents(f.text) {
			result, err := rewrite(doc, overrides.Manifests(o.strategic))
			if err != nil {
				return fmt.Errorf("%s: %w", f.name, err)
			}
			for _, job := range result.jobs {
				problems, notes, err := compare(ctx, job, known, cluster, overrides.Manifests(o.strategic))
				if err != nil {
					return fmt.Errorf("%s: TrainJob %s: %w", f.name, job.name(), err)
				}
				lost += len(problems)
				report(streams.ErrOut, f.name, job, problems, notes)
				if cluster != nil {
					if err := cluster.check(ctx, job.converted); err != nil {
						refused++
						fmt.Fprintf(streams.ErrOut, "%s: TrainJob %s: refused by the cluster: %v\n", f.name, job.name(), err)
					}
				}
			}
			if _, err := io.WriteString(streams.Out, result.text); err != nil {
				return err
			}
		}
		if !strings.HasSuffix(f.text, "\n") {
			fmt.Fprintln(streams.Out)
		}
	}
	switch {
	case lost > 0 && refused > 0:
		return fmt.Errorf("lost: %d, refused by the cluster: %d; each is named above", lost, refused)
	case lost > 0:
		return fmt.Errorf("lost: %d; each is named above, with what to do", lost)
	case refused > 0:
		return fmt.Errorf("refused by the cluster: %d; each is named above", refused)
	}
	return nil
}

func report(w io.Writer, file string, job *conversion, problems, notes []string) {
	prefix := fmt.Sprintf("%s: TrainJob %s: ", file, job.name())
	if len(job.changes)+len(problems) == 0 {
		fmt.Fprintln(w, prefix+"nothing to convert")
		return
	}
	for _, text := range job.changes {
		fmt.Fprintln(w, prefix+text)
	}
	for _, text := range problems {
		fmt.Fprintln(w, prefix+"LOST: "+text)
	}
	for _, text := range notes {
		fmt.Fprintln(w, prefix+"note: "+text)
	}
}

// compare returns what is lost of a TrainJob, and what may be.
func compare(ctx context.Context, job *conversion, known runtimes, cluster *server, d overrides.Dialect) (lost, notes []string, err error) {
	lost = slices.Clone(job.lost)
	if job.plan == nil {
		return lost, nil, nil
	}
	rt := known.of(job.before)
	if rt == nil && cluster != nil {
		stored := cluster.defaulted(job.before)
		live, err := admission.LiveRuntime(ctx, cluster.client, stored)
		if errors.Is(err, admission.ErrUnknownKind) {
			return lost, nil, nil // the cluster refuses it, with the reason
		}
		if err != nil {
			return nil, nil, fmt.Errorf("reading %s: %w", admission.Describe(stored), err)
		}
		if live != nil {
			rt = &live.Spec
		}
	}
	if rt == nil {
		for _, what := range job.plan.Depends {
			notes = append(notes, what+" took the place of the runtime's, and is merged with it now; "+admission.Describe(job.before)+" is not among the files, so that it can't be compared")
		}
		return lost, notes, nil
	}
	different, err := d.Differences(job.before, job.plan, rt)
	return append(lost, different...), nil, err
}

// file is a file of manifests.
type file struct{ name, text string }

func read(path string, in io.Reader) ([]file, error) {
	if path == "-" {
		text, err := io.ReadAll(in)
		return []file{{"standard input", string(text)}}, err
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	var files []file
	take := func(path string) error {
		text, err := os.ReadFile(path)
		files = append(files, file{path, string(text)})
		return err
	}
	if !info.IsDir() {
		err := take(path)
		return files, err
	}
	err = filepath.WalkDir(path, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(path)) {
			return err
		}
		return take(path)
	})
	if err == nil && len(files) == 0 {
		err = fmt.Errorf("%s has no *.yaml, *.yml or *.json; name a directory of manifests, or a file", path)
	}
	return files, err
}

// runtimes are those among the files, by kind, namespace and name.
type runtimes map[string]*trainerapi.TrainingRuntimeSpec

func (r runtimes) collect(f file) error {
	for _, doc := range documents(f.text) {
		u := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(doc), &u.Object); err != nil || u.Object == nil {
			continue // rewrite says what is wrong with it
		}
		objects := []unstructured.Unstructured{*u}
		if u.IsList() {
			list, err := u.ToList()
			if err != nil {
				return err
			}
			objects = list.Items
		}
		for _, o := range objects {
			if o.GroupVersionKind().Group != trainerapi.GroupVersion.Group || !strings.HasSuffix(o.GetKind(), "TrainingRuntime") {
				continue
			}
			rt := &api.ClusterTrainingRuntime{}
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, rt); err != nil {
				return fmt.Errorf("%s %s: %w", o.GetKind(), o.GetName(), err)
			}
			r[o.GetKind()+"/"+o.GetNamespace()+"/"+o.GetName()] = &rt.Spec
		}
	}
	return nil
}

func (r runtimes) of(job *api.TrainJob) *trainerapi.TrainingRuntimeSpec {
	if kind := job.Spec.RuntimeRef.Kind; kind != nil && *kind == trainerapi.TrainingRuntimeKind {
		return r[*kind+"/"+job.Namespace+"/"+job.Spec.RuntimeRef.Name]
	}
	return r[trainerapi.ClusterTrainingRuntimeKind+"//"+job.Spec.RuntimeRef.Name]
}

// server is a cluster that checks what was converted.
type server struct {
	client    client.Client
	namespace string
}

func connect(flags *genericclioptions.ConfigFlags) (*server, error) {
	config, err := flags.ToRESTConfig()
	if err != nil {
		return nil, fmt.Errorf("finding the cluster: %w", err)
	}
	namespace, _, err := flags.ToRawKubeConfigLoader().Namespace()
	if err != nil {
		return nil, err
	}
	scheme := runtime.NewScheme()
	if err := api.AddToScheme(scheme); err != nil {
		return nil, err
	}
	c, err := client.New(config, client.Options{Scheme: scheme})
	return &server{client: c, namespace: namespace}, err
}

// defaulted returns a TrainJob as the cluster would store it, as far as its runtime is concerned.
func (s *server) defaulted(job *api.TrainJob) *api.TrainJob {
	job = job.DeepCopy()
	job.Namespace = cmp.Or(job.Namespace, s.namespace)
	ref := &job.Spec.RuntimeRef
	if ref.APIGroup == nil {
		ref.APIGroup = ptr.To(trainerapi.GroupVersion.Group)
	}
	if ref.Kind == nil {
		ref.Kind = ptr.To(trainerapi.ClusterTrainingRuntimeKind)
	}
	return job
}

// check has the cluster check a TrainJob as if it were created, or applied over the one that is there.
func (s *server) check(ctx context.Context, job *unstructured.Unstructured) error {
	job = job.DeepCopy()
	if job.GetNamespace() == "" {
		job.SetNamespace(s.namespace)
	}
	strict := client.WithFieldValidation(s.client, metav1.FieldValidationStrict)
	err := strict.Create(ctx, job.DeepCopy(), client.DryRunAll)
	if !apierrors.IsAlreadyExists(err) {
		return err
	}
	for _, field := range []string{"resourceVersion", "uid", "creationTimestamp", "generation", "managedFields"} {
		unstructured.RemoveNestedField(job.Object, "metadata", field)
	}
	unstructured.RemoveNestedField(job.Object, "status")
	return s.client.Apply(ctx, client.ApplyConfigurationFromUnstructured(job), client.FieldOwner("kubectl-signalbox"), client.ForceOwnership, client.DryRunAll)
}
