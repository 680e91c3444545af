package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/signalbox-dev/signalbox/admission/after"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// sweepOptions are the flags of sweep.
type sweepOptions struct {
	file   string
	set    []string
	atMost int
	dryRun bool
}

func sweepCommand(c *cli) *cobra.Command {
	var o sweepOptions
	cmd := &cobra.Command{
		Use: "sweep -f FILE --set NAME=VALUES", Short: "Create a TrainJob for each combination of values", Args: cobra.NoArgs,
		Long: "Create a TrainJob for each combination of values, from the manifest of one. Each value is an environment " +
			"variable of the trainer, so that command and args may have it as $(NAME).\n\nValues are separated by commas; " +
			"1..4 is the whole numbers from 1 to 4. The TrainJobs have the manifest's name with a number, and label " +
			api.SweepLabel + "; their values are in annotation " + api.SweepValuesAnnotation + ".\n\nWith --at-most, each " +
			"waits until another one has ended (annotation " + api.AfterAnnotation + "), also after this command has. The " +
			"same command again creates what is missing.",
		Example: "  kubectl signalbox sweep -f job.yaml --set lr=1e-3,1e-4 --set seed=1..4 --at-most 2\n" +
			"  kubectl signalbox list -l " + api.SweepLabel + "=resnet\n" +
			"  kubectl signalbox stop -l " + api.SweepLabel + "=resnet",
		RunE: connected(c, func(ctx context.Context, s *session, _ []string) error { return s.sweep(ctx, o) }),
	}
	cmd.Flags().StringVarP(&o.file, "filename", "f", "", "manifest of the TrainJob; - for standard input")
	cmd.Flags().StringArrayVar(&o.set, "set", nil, "name of a variable and its values, such as lr=1e-3,1e-4 or seed=1..4")
	cmd.Flags().IntVar(&o.atMost, "at-most", 0, "how many of them run at a time; 0 for as many as get quota")
	cmd.Flags().BoolVar(&o.dryRun, "dry-run", false, "have the API server check them, and create none")
	return cmd
}

// mostSwept is how many TrainJobs one sweep may have.
const mostSwept = 1000

// variable is a name with the values that it takes.
type variable struct {
	name   string
	values []string
}

// sweep creates the TrainJobs, or has them checked.
func (s *session) sweep(ctx context.Context, o sweepOptions) error {
	job, err := s.sweptFrom(o.file)
	if err != nil {
		return err
	}
	var variables []variable
	for _, set := range o.set {
		v, err := parseVariable(set)
		if err != nil {
			return err
		}
		if slices.ContainsFunc(variables, func(o variable) bool { return o.name == v.name }) {
			return fmt.Errorf("--set has %s twice; give all its values at once, separated by commas", v.name)
		}
		variables = append(variables, v)
	}
	jobs, err := swept(job, variables, o.atMost)
	if err != nil {
		return err
	}
	there, err := s.sweptBefore(ctx, job)
	if err != nil {
		return err
	}
	order := inLanes(jobs, there, o.atMost)
	options, done := []client.CreateOption{fieldOwner}, "created"
	if o.dryRun {
		options, done = append(options, client.DryRunAll), "would be created"
	}
	for _, i := range slices.Backward(order) { // those that wait first: they see how all others have ended
		job := jobs[i]
		values := job.GetAnnotations()[api.SweepValuesAnnotation]
		err := s.client.Create(ctx, job.DeepCopy(), options...)
		said := done
		if apierrors.IsAlreadyExists(err) {
			said, err = "exists", s.sameSweep(ctx, job)
		}
		if err != nil {
			return fmt.Errorf("creating TrainJob %s (%s), %d of %d: %w", job.GetName(), values, i+1, len(jobs), err)
		}
		fmt.Fprintf(s.streams.Out, "TrainJob %s %s (%s)\n", job.GetName(), said, values)
	}
	return nil
}

// sameSweep returns an error unless the TrainJob that is there is the same one of the same sweep.
func (s *session) sameSweep(ctx context.Context, job *unstructured.Unstructured) error {
	there := &api.TrainJob{}
	if err := s.client.Get(ctx, client.ObjectKeyFromObject(job), there); err != nil {
		return err
	}
	if there.Labels[api.SweepLabel] != job.GetLabels()[api.SweepLabel] ||
		there.Annotations[api.SweepValuesAnnotation] != job.GetAnnotations()[api.SweepValuesAnnotation] {
		return errors.New("there is another of that name; delete it, or give the manifest another name")
	}
	return nil
}

// sweptFrom reads the manifest of one TrainJob.
func (s *session) sweptFrom(path string) (*unstructured.Unstructured, error) {
	if path == "" {
		return nil, errors.New("--filename is missing: name the manifest of a TrainJob")
	}
	files, err := read(path, s.streams.In)
	if err != nil {
		return nil, err
	}
	var found []unstructured.Unstructured
	for _, f := range files {
		objects, err := f.objects()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", f.name, err)
		}
		found = append(found, objects...)
	}
	kind := trainerapi.GroupVersion.WithKind(trainerapi.TrainJobKind)
	if len(found) != 1 || found[0].GroupVersionKind() != kind || found[0].GetName() == "" {
		return nil, fmt.Errorf("%s must have one TrainJob (%s) with a name, and nothing else", path, kind.GroupVersion())
	}
	job := &found[0]
	if job.GetNamespace() == "" {
		job.SetNamespace(s.namespace)
	}
	return job, nil
}

// parseVariable reads a --set.
func parseVariable(set string) (v variable, err error) {
	name, values, _ := strings.Cut(set, "=")
	if errs := validation.IsCIdentifier(name); len(errs) > 0 || values == "" {
		return v, fmt.Errorf("--set is %q; it must be the name of an environment variable and its values, such as "+
			"lr=1e-3,1e-4 or seed=1..4", set)
	}
	v.name = name
	for value := range strings.SplitSeq(values, ",") {
		first, last, isRange := strings.Cut(value, "..")
		from, err := strconv.Atoi(first)
		to, lastErr := strconv.Atoi(last)
		switch {
		case !isRange || errors.Join(err, lastErr) != nil:
			v.values = append(v.values, value)
			continue
		case to < from || to-from < 0 || to-from >= mostSwept:
			return v, fmt.Errorf("--set %s has %s; it must be at most %d whole numbers, the smallest first", name, value,
				mostSwept)
		}
		for n := range to - from + 1 {
			v.values = append(v.values, strconv.Itoa(from+n))
		}
	}
	return v, nil
}

// swept returns a TrainJob for each combination of values, the last variable's changing first.
func swept(job *unstructured.Unstructured, variables []variable, atMost int) ([]*unstructured.Unstructured, error) {
	if len(variables) == 0 {
		return nil, errors.New("--set is missing: name a variable and its values, such as lr=1e-3,1e-4")
	}
	if atMost < 0 {
		return nil, fmt.Errorf("--at-most is %d; it must be 0 or more", atMost)
	}
	count := 1
	for _, v := range variables {
		if count *= len(v.values); count > mostSwept {
			return nil, fmt.Errorf("that are more than %d TrainJobs; set fewer values", mostSwept)
		}
	}
	ofSweep := labels.Set{api.SweepLabel: job.GetName()}
	before := job.GetAnnotations()[api.AfterAnnotation]
	if atMost > 0 && strings.Count(before, ",") > after.Most-lane-1 {
		return nil, fmt.Errorf("the manifest's annotation %s has too many names; with --at-most it may have %d",
			api.AfterAnnotation, after.Most-lane)
	}
	var all []*unstructured.Unstructured
	for i := range count {
		var chosen []string
		var env []any
		for rest, at := i, len(variables)-1; at >= 0; at-- {
			v := variables[at]
			value := v.values[rest%len(v.values)]
			rest /= len(v.values)
			chosen = append(chosen, v.name+"="+value)
			env = append(env, map[string]any{"name": v.name, "value": value})
		}
		slices.Reverse(chosen)
		slices.Reverse(env)
		one := job.DeepCopy()
		one.SetName(nameOf(job, i))
		one.SetLabels(labels.Merge(one.GetLabels(), ofSweep))
		one.SetAnnotations(labels.Merge(one.GetAnnotations(), labels.Set{
			api.SweepValuesAnnotation: strings.Join(chosen, ",")}))
		if err := setEnv(one, env); err != nil {
			return nil, err
		}
		all = append(all, one)
	}
	return all, nil
}

func nameOf(job *unstructured.Unstructured, i int) string {
	return fmt.Sprintf("%s-%d", job.GetName(), i)
}

// setEnv adds variables to the trainer's environment, in place of those of the same names.
func setEnv(job *unstructured.Unstructured, env []any) error {
	if spec, is := job.Object["spec"].(map[string]any); is { // "env:" without a value is none
		if trainer, is := spec["trainer"].(map[string]any); is && trainer["env"] == nil {
			delete(trainer, "env")
		} else if spec["trainer"] == nil {
			delete(spec, "trainer")
		}
	}
	there, _, err := unstructured.NestedSlice(job.Object, "spec", "trainer", "env")
	if err != nil {
		return fmt.Errorf("reading spec.trainer.env: %w", err)
	}
	all := slices.DeleteFunc(there, func(old any) bool {
		return slices.ContainsFunc(env, func(set any) bool {
			named, is := old.(map[string]any)
			return is && named["name"] == set.(map[string]any)["name"]
		})
	})
	return unstructured.SetNestedSlice(job.Object, append(all, env...), "spec", "trainer", "env")
}
