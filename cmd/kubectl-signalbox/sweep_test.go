package main

import (
	"context"
	"reflect"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/yaml"

	"github.com/signalbox-dev/signalbox/admission/after"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

const sweptManifest = `apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata: {name: resnet, labels: {kueue.x-k8s.io/queue-name: queue}, annotations: {signalbox.dev/after: fetch=ok}}
spec: {runtimeRef: {name: torch}, trainer: {env: [{name: seed, value: "0"}, {name: KEPT, value: a}]}}
`

// TestSweep holds which TrainJobs a sweep creates, that it creates none twice, and that they are stopped together.
func TestSweep(t *testing.T) {
	workloads := 0 // how often they were listed
	tr := newTrial(t, interceptor.Funcs{List: func(
		ctx context.Context, c client.WithWatch, l client.ObjectList, options ...client.ListOption,
	) error {
		if _, is := l.(*kueue.WorkloadList); is {
			workloads++
		}
		return c.List(ctx, l, options...)
	}})
	args := []string{"sweep", "-f", written(t, sweptManifest), "--set", "lr=1e-3,1e-4", "--set", "seed=1..2", "--at-most",
		"1"}
	for _, said := range []string{"would be created", "created", "exists"} {
		tr.out.Reset()
		all := args
		if said == "would be created" {
			all = slices.Concat(args, []string{"--dry-run"})
		}
		if err := tr.try(all...); err != nil {
			t.Fatal(err)
		}
		if want := "TrainJob resnet-3 " + said + " (lr=1e-4,seed=2)\n"; !strings.HasPrefix(tr.out.String(), want) {
			t.Errorf("got %q, want %q", tr.out.String(), want)
		}
	}
	var jobs api.TrainJobList
	if err := tr.client.List(t.Context(), &jobs, client.MatchingLabels{api.SweepLabel: "resnet"}); err != nil {
		t.Fatal(err)
	}
	got := map[string][]string{}
	for _, job := range jobs.Items {
		for _, e := range job.Spec.Trainer.Env {
			got[job.Name] = append(got[job.Name], e.Name+"="+e.Value)
		}
		got[job.Name] = append(got[job.Name], job.Annotations[api.AfterAnnotation], job.Labels["kueue.x-k8s.io/queue-name"])
	}
	if want := map[string][]string{
		"resnet-0": {"KEPT=a", "lr=1e-3", "seed=1", "fetch=ok", "queue"},
		"resnet-1": {"KEPT=a", "lr=1e-3", "seed=2", "resnet-0=any,fetch=ok", "queue"},
		"resnet-2": {"KEPT=a", "lr=1e-4", "seed=1", "resnet-1=any,resnet-0=any,fetch=ok", "queue"},
		"resnet-3": {"KEPT=a", "lr=1e-4", "seed=2", "resnet-2=any,resnet-1=any,resnet-0=any,fetch=ok", "queue"},
	}; !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	stopped := func() (n int) {
		if err := tr.client.List(t.Context(), &jobs, client.MatchingLabels{api.SweepLabel: "resnet"}); err != nil {
			t.Fatal(err)
		}
		for _, job := range jobs.Items {
			if _, is := job.Annotations[api.StopAnnotation]; is {
				n++
			}
		}
		return n
	}
	for _, verb := range []string{"stop", "resume"} {
		want := map[string]int{"stop": 4, "resume": 0}[verb]
		workloads = 0
		if err := tr.try(verb, "-l", api.SweepLabel+"=resnet"); err != nil || stopped() != want || workloads != 1 {
			t.Errorf("%s: %d are stopped, by %d lists of Workloads, %v", verb, stopped(), workloads, err)
		}
	}
	if err := tr.try("stop", "-l", "none=none"); err != nil || !strings.Contains(tr.errs.String(), "No TrainJobs found") {
		t.Errorf("none is said: got %q, %v", tr.errs.String(), err)
	}
}

// TestSwept holds what a manifest and a range may be.
func TestSwept(t *testing.T) {
	if v, err := parseVariable("seed=9223372036854775806..9223372036854775807"); err != nil || len(v.values) != 2 {
		t.Errorf("the greatest numbers: got %v, %v", v.values, err)
	}
	if _, err := parseVariable("seed=-9223372036854775808..9223372036854775807"); err == nil {
		t.Error("all numbers are too many")
	}
	v, err := parseVariable("seed=-1..1")
	if err != nil || !slices.Equal(v.values, []string{"-1", "0", "1"}) {
		t.Errorf("got %v, %v", v.values, err)
	}
	for _, trainer := range []string{"{env: }", "", "{image: i}"} {
		job := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte("metadata: {name: a}\nspec: {trainer: "+trainer+"}"), &job.Object); err != nil {
			t.Fatal(err)
		}
		all, err := swept(job, []variable{v}, 20)
		if err != nil || len(all) != 3 {
			t.Errorf("%q: got %d, %v", trainer, len(all), err)
		}
		job.SetAnnotations(map[string]string{api.AfterAnnotation: strings.Repeat("a=ok,", after.Most-lane) + "b=ok"})
		if _, err := swept(job, []variable{v}, 1); err == nil || !strings.Contains(err.Error(), "too many names") {
			t.Errorf("what can't be created isn't begun: got %v", err)
		}
	}
}

// TestSweepRefused holds what is said of an invalid sweep.
func TestSweepRefused(t *testing.T) {
	one := written(t, sweptManifest)
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"no file":      {nil, "--filename is missing"},
		"no such file": {[]string{"-f", one + "x"}, "no such file"},
		"no variable":  {[]string{"-f", one}, "--set is missing"},
		"no values":    {[]string{"-f", one, "--set", "lr"}, `--set is "lr"; it must be`},
		"no name":      {[]string{"-f", one, "--set", "1r=2"}, "the name of an environment variable"},
		"a range": {[]string{"-f", one, "--set", "seed=4..1"},
			"--set seed has 4..1; it must be at most 1000 whole numbers"},
		"twice":    {[]string{"-f", one, "--set", "a=1", "--set", "a=2"}, "--set has a twice"},
		"too many": {[]string{"-f", one, "--set", "a=1..1000", "--set", "b=1,2"}, "more than 1000 TrainJobs"},
		"at most":  {[]string{"-f", one, "--set", "a=1", "--at-most", "-1"}, "--at-most is -1; it must be 0 or more"},
		"two": {[]string{"-f", written(t, sweptManifest+"---\n"+sweptManifest), "--set", "a=1"},
			"must have one TrainJob"},
		"another kind": {[]string{"-f", written(t, runtimeManifest), "--set", "a=1"}, "must have one TrainJob"},
		"no YAML":      {[]string{"-f", written(t, "{"), "--set", "a=1"}, "job.yaml: "},
		"no environment": {[]string{"-f", written(t, strings.Replace(sweptManifest, "env: [", "env: 1, x: [", 1)), "--set",
			"a=1"}, "spec.trainer.env"},
		"another's name": {[]string{"-f", written(t, strings.Replace(sweptManifest, "resnet", "taken", 1)), "--set", "a=1"},
			"creating TrainJob taken-0 (a=1), 1 of 1: there is another of that name"},
		"a selector":      {[]string{"stop", "-l", "=="}, "--selector"},
		"a name and many": {[]string{"resume", "-l", "a=b", "first"}, "unknown command"},
		"no name at all":  {[]string{"stop"}, "accepts 1 arg(s)"},
	} {
		tr := newTrial(t, interceptor.Funcs{}, `apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata: {name: taken-0, namespace: team, uid: taken}
spec: {runtimeRef: {name: torch}}`)
		args := c.args
		if len(args) == 0 || strings.HasPrefix(args[0], "-") {
			args = append([]string{"sweep"}, args...)
		}
		if err := tr.try(args...); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
	}
}
