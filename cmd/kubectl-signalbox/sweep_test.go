package main

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

const sweptManifest = `apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata: {name: resnet, labels: {kueue.x-k8s.io/queue-name: queue}, annotations: {signalbox.dev/after: fetch=ok}}
spec: {runtimeRef: {name: torch}, trainer: {env: [{name: seed, value: "0"}, {name: KEPT, value: a}]}}
`

// TestSweep holds which TrainJobs a sweep creates, that it creates none twice, and that they are stopped together.
func TestSweep(t *testing.T) {
	tr := newTrial(t, interceptor.Funcs{})
	args := []string{"sweep", "-f", written(t, sweptManifest), "--set", "lr=1e-3,1e-4", "--set", "seed=1..2", "--at-most",
		"3"}
	for _, said := range []string{"would be created", "created", "exists"} {
		tr.out.Reset()
		all := args
		if said == "would be created" {
			all = slices.Concat(args, []string{"--dry-run"})
		}
		if err := tr.try(all...); err != nil {
			t.Fatal(err)
		}
		if want := "TrainJob resnet-3 " + said + " (lr=1e-4,seed=2)\n"; !strings.HasSuffix(tr.out.String(), want) {
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
		"resnet-1": {"KEPT=a", "lr=1e-3", "seed=2", "fetch=ok", "queue"},
		"resnet-2": {"KEPT=a", "lr=1e-4", "seed=1", "fetch=ok", "queue"},
		"resnet-3": {"KEPT=a", "lr=1e-4", "seed=2", "resnet-0=any,fetch=ok", "queue"},
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
		if err := tr.try(verb, "-l", api.SweepLabel+"=resnet"); err != nil || stopped() != want {
			t.Errorf("%s: %d are stopped, %v", verb, stopped(), err)
		}
	}
	if err := tr.try("stop", "-l", "none=none"); err != nil || !strings.Contains(tr.errs.String(), "No TrainJobs found") {
		t.Errorf("none is said: got %q, %v", tr.errs.String(), err)
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
