package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	trainerconfig "github.com/kubeflow/trainer/v2/pkg/apis/config/v1alpha1"
	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/yaml"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides/dialect"
	"github.com/signalbox-dev/signalbox/overrides/legacy"
	"github.com/signalbox-dev/signalbox/trainer"
)

// pods builds TrainJobs as the bundled Trainer does, and computes what any shape gives.
type pods struct {
	builder *trainer.Builder
	runtime *trainerapi.TrainingRuntimeSpec
}

func newPods(t testing.TB, text string) pods {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), api.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	builder, err := trainer.NewBuilder(context.Background(), fake.NewClientBuilder().WithScheme(scheme).Build(),
		&trainerconfig.Configuration{})
	if err != nil {
		t.Fatal(err)
	}
	var rt api.ClusterTrainingRuntime
	if err := yaml.UnmarshalStrict([]byte(text), &rt); err != nil {
		t.Fatal(err)
	}
	return pods{builder, &rt.Spec}
}

// of returns the JobSet of a TrainJob, in a form in which the order of named things doesn't matter, or why there is
// none.
func (p pods) of(t testing.TB, job *api.TrainJob) any {
	t.Helper()
	children, err := p.builder.Build(context.Background(), job, p.runtime)
	if err != nil {
		return err.Error()
	}
	return plainly(t, children.JobSet)
}

// merged returns what a TrainJob in any shape makes of the runtime.
func (p pods) merged(t testing.TB, job *api.TrainJob, strategic bool) any {
	t.Helper()
	d := &dialect.Dialect{Rules: dialect.Kubeflow23.Rules, Reader: legacy.Manifests(strategic)}
	e, err := d.Compute(job, p.runtime, d.Entries(job))
	if err != nil {
		return err.Error()
	}
	return plainly(t, e.Built)
}

func plainly(t testing.TB, v any) any {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	var plain any
	if err := json.Unmarshal(data, &plain); err != nil {
		t.Fatal(err)
	}
	return unordered(plain)
}

func unordered(v any) any {
	switch c := v.(type) {
	case map[string]any:
		for k := range c {
			c[k] = unordered(c[k])
		}
	case []any:
		for i := range c {
			c[i] = unordered(c[i])
		}
		slices.SortFunc(c, func(a, b any) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
	}
	return v
}

func jobsOf(t testing.TB, text string) []*api.TrainJob {
	t.Helper()
	var jobs []*api.TrainJob
	for _, doc := range documents(text) {
		u := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(doc), &u.Object); err != nil {
			t.Fatalf("%v in\n%s", err, doc)
		}
		if u.GetKind() != "TrainJob" {
			continue
		}
		job := &api.TrainJob{}
		if err := yaml.Unmarshal([]byte(doc), job); err != nil {
			t.Fatal(err)
		}
		jobs = append(jobs, job)
	}
	return jobs
}

func readFile(t testing.TB, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestConvertGuides holds that every manifest of the guides gives the same pods when it is converted.
func TestConvertGuides(t *testing.T) {
	rt := readFile(t, "testdata/runtime.yaml")
	p, seen := newPods(t, rt), 0
	for _, path := range []string{"../../test/e2e/testdata/guide.yaml", "testdata/fragments.yaml"} {
		text := readFile(t, path)
		out, said, err := run(t, options{}, text+"---\n"+rt)
		if err != nil || strings.Contains(said, "note:") {
			t.Fatalf("%s: %v\n%s", path, err, said)
		}
		before, after := jobsOf(t, text), jobsOf(t, out)
		if len(before) != len(after) {
			t.Fatalf("%s: %d TrainJobs became %d", path, len(before), len(after))
		}
		for i := range before {
			seen++
			if legacy.Needed(after[i]) || !legacy.Needed(before[i]) {
				t.Errorf("%s: TrainJob %s is not converted", path, before[i].Name)
			}
			was, is := p.of(t, before[i]), p.of(t, after[i])
			if _, isText := was.(string); isText || !reflect.DeepEqual(was, is) {
				t.Errorf("%s: TrainJob %s: other pods:\n%v\n%v", path, before[i].Name, was, is)
			}
		}
		if n := strings.Count(text, "#"); strings.Count(out, "#") != n {
			t.Errorf("%s: %d comments became %d", path, n, strings.Count(out, "#"))
		}
	}
	if seen != 19 {
		t.Errorf("%d manifests", seen)
	}
}

// TestConvertGivesTheSamePods converts generated manifests, on a runtime that sets little and on one that sets all. A
// manifest that is converted without a loss gives the same pods as before; one that gives other pods is reported as a
// loss.
func TestConvertGivesTheSamePods(t *testing.T) {
	little := readFile(t, "testdata/runtime.yaml")
	all := strings.Replace(strings.Replace(little, "                  tolerations:\n",
		`                  nodeSelector: {a: x, d: r}
                  schedulingGates: [{name: r}]
                  imagePullSecrets: [{name: r}]
                  affinity: {podAntiAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [{weight: 1,
                    podAffinityTerm: {topologyKey: r}}]}}
                  volumes: [{name: v, hostPath: {path: /r}}]
                  tolerations:
`, 1), "image: example.com/beside:1", "image: example.com/beside:1\n                      env: [{name: A, value: "+
		"r}]\n                      volumeMounts: [{name: v, mountPath: /r}]", 1)
	same, lost := map[string]int{}, map[string]int{}
	for name, rt := range map[string]string{"little": little, "all": all} {
		p := newPods(t, rt)
		for seed := range uint64(300) {
			c := chance{rand.New(rand.NewPCG(seed, 1))}
			strategic := seed%4 == 0
			in := c.manifest(fmt.Sprintf("job-%d", seed))
			out, said, err := run(t, options{strategic: strategic}, in+"---\n"+rt)
			if out == "" {
				t.Fatalf("seed %d: %v\n%s", seed, err, in)
			}
			before, after := jobsOf(t, in)[0], jobsOf(t, out)[0]
			if legacy.Needed(after) {
				t.Fatalf("seed %d: something is left:\n%s", seed, out)
			}
			was, is := p.merged(t, before, strategic), p.merged(t, after, strategic)
			if bundled := len(before.Spec.PodSpecOverrides)+len(before.Spec.Labels) == 0 && !strategic; bundled {
				was, is = p.of(t, before), p.of(t, after)
			}
			if err == nil && !reflect.DeepEqual(was, is) {
				t.Fatalf("seed %d on the runtime that sets %s: other pods, and nothing said:\n%s\n%s\n%v\n%v", seed, name, in, out,
					was, is)
			}
			if err != nil && !strings.Contains(said, "LOST: ") {
				t.Fatalf("seed %d: %v, without saying what:\n%s", seed, err, said)
			}
			if err == nil {
				same[name]++
			} else {
				lost[name]++
			}
		}
	}
	t.Logf("the same pods: %v; said to be lost: %v", same, lost)
	if same["little"] < 150 || lost["all"] < 50 {
		t.Errorf("the property says little: the same %v, lost %v", same, lost)
	}
}
