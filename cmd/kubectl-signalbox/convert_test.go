package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	trainerconfig "github.com/kubeflow/trainer/v2/pkg/apis/config/v1alpha1"
	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/yaml"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides"
	"github.com/signalbox-dev/signalbox/trainer"
)

// run converts a file and returns what is written and said.
func run(t *testing.T, o options, text string) (out, said string, err error) {
	t.Helper()
	if o.path == "" {
		o.path = filepath.Join(t.TempDir(), "job.yaml")
		if err := os.WriteFile(o.path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var written, errs bytes.Buffer
	err = convert(context.Background(), o, nil, genericiooptions.IOStreams{In: strings.NewReader(text), Out: &written,
		ErrOut: &errs})
	return written.String(), errs.String(), err
}

const head = `# A job of ours.
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata: {name: job, namespace: ns} # in one line
spec:
  runtimeRef: {name: torch}
`

func TestConvert(t *testing.T) {
	cases := map[string]struct {
		reason  string
		in, out string
		said    []string
		lost    bool
	}{
		"nothing to do": {
			reason: "what needs no conversion stays as it stands, byte for byte",
			in:     head + "  # a comment\n  suspend:   true\n", out: head + "  # a comment\n  suspend:   true\n",
			said: []string{"TrainJob ns/job: nothing to convert"},
		},
		"something else": {
			reason: "other kinds stay as they stand",
			in:     "# x\nkind: ConfigMap\napiVersion: v1\ndata: {a:   b}\n---\n# nothing\n",
			out:    "# x\nkind: ConfigMap\napiVersion: v1\ndata: {a:   b}\n---\n# nothing\n",
		},
		"comments and order": {
			reason: "the comments, the order of keys and the quotes of what is converted come along; the rest of the file stays",
			in: head + `  # why
  podTemplateOverrides:   # ours
    # for the nodes
    - targetJobs:
        - name: node
      spec:
        tolerations: [{key: spot, operator: Exists}] # they are cheap
        # on fast disks
        nodeSelector:
          zone: "east" # near the data
          disk: fast
      metadata:
        labels: {team: a}

  # it waits
  suspend: true
`,
			out: head + `  # why
  runtimePatches:
    # ours
    - manager: signalbox.dev/converted
      trainingRuntimeSpec:
        template:
          spec:
            replicatedJobs:
              # for the nodes
              - name: node
                template:
                  spec:
                    template:
                      metadata:
                        labels: {team: a}
                      spec:
                        tolerations: [{key: spot, operator: Exists}] # they are cheap
                        # on fast disks
                        nodeSelector:
                          zone: "east" # near the data
                          disk: fast

  # it waits
  suspend: true
`,
			said: []string{"spec.podTemplateOverrides (1) became the entry of signalbox.dev/converted in spec.runtimePatches",
				"note: nodeSelector of replicatedJob node"},
		},
		"entries that are there": {
			reason: "they stay last, where they win, and as they are",
			in: head + "  runtimePatches:\n  - manager: example.com/team # ours\n    trainingRuntimeSpec: {template: " +
				"{metadata: {labels: {a:   b}}}}\n  podTemplateOverrides:\n  - targetJobs: [{name: node}]\n    spec: " +
				"{serviceAccountName: sa}\n",
			out: head + `  runtimePatches:
    - manager: signalbox.dev/converted
      trainingRuntimeSpec:
        template:
          spec:
            replicatedJobs:
              - name: node
                template:
                  spec:
                    template:
                      spec: {serviceAccountName: sa}
    - manager: example.com/team # ours
      trainingRuntimeSpec: {template: {metadata: {labels: {a: b}}}}
`,
		},
		"v2.0": {
			reason: "podSpecOverrides, the JobSet's labels, and a word for a number",
			in: head + "  labels: {a: b}\n  trainer:\n    numProcPerNode: auto\n    numNodes: 2\n  podSpecOverrides:\n  " +
				"- targetJobs: [{name: node}]\n    nodeSelector: {gpu: a}\n",
			out: head + `  runtimePatches:
    - manager: signalbox.dev/converted
      trainingRuntimeSpec:
        template:
          metadata:
            labels: {a: b}
          spec:
            replicatedJobs:
              - name: node
                template:
                  spec:
                    template:
                      spec:
                        nodeSelector: {gpu: a}
  trainer:
    numNodes: 2
`,
			said: []string{"spec.labels and spec.annotations became", "spec.podSpecOverrides (1) became",
				`spec.trainer.numProcPerNode "auto" is left out`},
		},
		"a word that means something": {
			reason: "what a later Trainer doesn't know is lost, and said",
			in:     head + "  trainer:\n    numProcPerNode: gpu\n", out: head + "  trainer: {}\n", lost: true,
			said: []string{`LOST: spec.trainer.numProcPerNode: "gpu" is not known`},
		},
		"a number in quotes": {
			reason: "is a number", in: head + "  trainer:\n    numProcPerNode: \"4\"\n", out: head +
				"  trainer:\n    numProcPerNode: 4\n",
			said: []string{"spec.trainer.numProcPerNode is 4, a number"},
		},
		"a history": {
			reason: "the later wins; the manager is the same",
			in: head + "  templateOverrides:\n  - manager: example.com/team\n    pod:\n    - {time: " +
				"\"2026-02-01T00:00:00Z\", targetJobs: [{name: node}], spec: {nodeSelector: {a: late}}}\n    - {time: " +
				"\"2026-01-01T00:00:00Z\", targetJobs: [{name: node}], spec: {nodeSelector: {a: early, b: early}}}\n    job:\n " +
				"   - {time: \"2026-01-01T00:00:00Z\", metadata: {labels: {l: m}}}\n",
			out: head + `  runtimePatches:
    - manager: example.com/team
      time: "2026-02-01T00:00:00Z"
      trainingRuntimeSpec:
        template:
          metadata: {labels: {l: m}}
          spec:
            replicatedJobs:
              - name: node
                template:
                  spec:
                    template:
                      spec: {nodeSelector: {a: late, b: early}}
`,
			said: []string{"what was overridden within it is no longer there to be read"},
		},
		"an unknown field": {
			reason: "is lost, and said",
			in: head + "  podTemplateOverrides:\n  - targetJobs: [{name: node}]\n    spec: {serviceAccountName: sa, " +
				"priorityClassName: high}\n",
			lost: true, said: []string{
				`LOST: unknown field "spec.podTemplateOverrides[0].spec.priorityClassName", which runtimePatches have none ` +
					`for; set it in the runtime`},
		},
		"a volume mounted twice": {
			reason: "an entry can't say it",
			in: head + "  podTemplateOverrides:\n  - targetJobs: [{name: node}]\n    spec: {containers: [{name: side, " +
				"volumeMounts: [{name: v, mountPath: /a}, {name: v, mountPath: /b}]}]}\n",
			lost: true, said: []string{"LOST: container side of replicatedJob node mounts volume v at /a and at /b"},
		},
		"JSON": {
			reason: "a document in flow style is written anew",
			in: `{"apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainJob", "metadata": {"name": "job"},
  "spec": {"runtimeRef": {"name": "torch"}, "podTemplateOverrides": [{"targetJobs": [{"name": "node"}],
    "spec": {"serviceAccountName": "sa"}}]}}` + "\n",
			said: []string{"TrainJob job: spec.podTemplateOverrides (1) became"},
		},
		"a document that ends, and another": {
			reason: "each is converted",
			in: "kind: ConfigMap\n...\n" + head + "  podTemplateOverrides:\n  - targetJobs: [{name: node}]\n    spec: " +
				"{serviceAccountName: sa}\n...\n# x\n%YAML 1.1\n---\nkind: Secret\n",
			out: "kind: ConfigMap\n...\n" + head + `  runtimePatches:
    - manager: signalbox.dev/converted
      trainingRuntimeSpec:
        template:
          spec:
            replicatedJobs:
              - name: node
                template:
                  spec:
                    template:
                      spec: {serviceAccountName: sa}
` + "...\n# x\n%YAML 1.1\n---\nkind: Secret\n",
		},
		"the same comment twice, and one in between": {
			reason: "each comes along, or stays, once",
			in: head + `  podTemplateOverrides:
  - targetJobs: [{name: node}] # required
    spec: {serviceAccountName: sa} # required
  # of what follows
  suspend: true
  runtimePatches: # ours
  - manager: example.com/team
`,
			out: head + `  runtimePatches: # ours
    # required
    - manager: signalbox.dev/converted
      trainingRuntimeSpec:
        template:
          spec:
            replicatedJobs:
              - name: node
                template:
                  spec:
                    template:
                      spec: {serviceAccountName: sa} # required
    - manager: example.com/team
  # of what follows
  suspend: true
`,
		},
		"lines that end as elsewhere": {
			reason: "they end so in what is written too",
			in:     strings.ReplaceAll(head+"  podTemplateOverrides: []\n  labels: {a: b}\n", "\n", "\r\n"),
			out: strings.ReplaceAll(
				head+"  runtimePatches:\n    - manager: signalbox.dev/converted\n      trainingRuntimeSpec:\n        "+
					"template:\n          metadata:\n            labels: {a: b}\n          spec: {}\n", "\n", "\r\n"),
		},
		"metadata that nobody takes": {
			reason: "is lost, and said",
			in:     head + "  podTemplateOverrides:\n  - targetJobs: [{name: node}]\n    metadata: {name: x, labels: {a: b}}\n",
			lost:   true, said: []string{
				"LOST: spec.podTemplateOverrides[0].metadata.name: only labels and annotations can be changed"},
		},
		"what says nothing": {
			reason: "is lost, and said",
			in:     head + "  podTemplateOverrides:\n  - targetJobs: [{name: node}]\n    spec: {}\n", lost: true,
			said: []string{"LOST: spec.podTemplateOverrides[0] and what follows it says nothing"},
		},
		"converted before": {
			reason: "the entry of before stays the one that wins",
			in: head + "  labels: {a: b}\n  runtimePatches:\n  - manager: signalbox.dev/converted\n    " +
				"trainingRuntimeSpec: {template: {metadata: {labels: {a: c}}}}\n",
			said: []string{"became the template's metadata in the entry of signalbox.dev/converted-2"},
		},
		"the integration's history": {
			reason: "is nobody's to write",
			in: head + "  templateOverrides:\n  - manager: kueue.x-k8s.io/manager\n    job: [{metadata: {labels: {a: " +
				"b}}}]\n",
			lost: true, said: []string{"LOST: spec.templateOverrides[kueue.x-k8s.io/manager] is the integration's"},
		},
		"a list": {
			reason: "its TrainJobs are converted, the rest of it stays",
			in: "apiVersion: v1\nkind: List\nitems:\n- kind: ConfigMap\n  apiVersion: v1\n  data: {a:   b}\n- " +
				"apiVersion: trainer.kubeflow.org/v1alpha1\n  kind: TrainJob\n  metadata: {name: job}\n  spec:\n    " +
				"podTemplateOverrides:\n    - targetJobs: [{name: node}]\n      spec: {serviceAccountName: sa}\n    suspend:   " +
				"true\n",
			out: "apiVersion: v1\nkind: List\nitems:\n- kind: ConfigMap\n  apiVersion: v1\n  data: {a:   b}\n- apiVersion: " +
				"trainer.kubeflow.org/v1alpha1\n  kind: TrainJob\n  metadata: {name: job}\n  spec:\n" + `    runtimePatches:
      - manager: signalbox.dev/converted
        trainingRuntimeSpec:
          template:
            spec:
              replicatedJobs:
                - name: node
                  template:
                    spec:
                      template:
                        spec: {serviceAccountName: sa}
    suspend:   true
`,
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			out, said, err := run(t, options{}, c.in)
			if c.lost != (err != nil) {
				t.Errorf("%s: error %v", c.reason, err)
			}
			if c.out != "" && out != c.out {
				t.Errorf("%s: got\n%s\nwant\n%s", c.reason, out, c.out)
			}
			if strings.Contains(out, "podTemplateOverrides") || strings.Contains(out, "podSpecOverrides") ||
				strings.Contains(out, "templateOverrides") {
				t.Errorf("%s: something is left:\n%s", c.reason, out)
			}
			for _, words := range c.said {
				if !strings.Contains(said, words) {
					t.Errorf("%s: said\n%swant %q", c.reason, said, words)
				}
			}
			if again, _, err := run(t, options{}, out); err != nil || again != out {
				t.Errorf("%s: what was converted is not converted again: %v\n%s", c.reason, err, again)
			}
		})
	}
}

func TestConvertRefuses(t *testing.T) {
	cases := map[string]struct{ reason, in, want string }{
		"not YAML": {"the file is named", "a: [", "job.yaml: yaml"},
		"a wrong type": {"the TrainJob and its line are named", head + "  podTemplateOverrides: {a: b}\n",
			"job.yaml: TrainJob job (line 2): json: cannot unmarshal object"},
		"an alias": {"it would not survive",
			strings.Replace(head, "spec:", "x: &base {suspend: true}\nspec:\n  <<: *base", 1), "TrainJob job (line 2): line " +
				"5 has an anchor, an alias or a merge key of YAML, which would not survive; write out what it stands for"},
		"the same twice": {"nobody can tell which is meant", head + "  suspend: true\n  suspend: false\n", "job.yaml: "},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			if _, _, err := run(t, options{}, c.in); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: got %v, want %q", c.reason, err, c.want)
			}
		})
	}
	if _, _, err := run(t, options{path: t.TempDir()}, ""); err == nil ||
		!strings.Contains(err.Error(), "name a directory of manifests") {
		t.Errorf("an empty directory is refused: got %v", err)
	}
	if _, _, err := run(t, options{path: "nothing.yaml"}, ""); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file that isn't there is refused: got %v", err)
	}
}

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
	_, js, err := p.builder.Build(context.Background(), job, p.runtime)
	if err != nil {
		return err.Error()
	}
	return plainly(t, js)
}

// merged returns what a TrainJob in any shape makes of the runtime.
func (p pods) merged(t testing.TB, job *api.TrainJob, strategic bool) any {
	t.Helper()
	d := overrides.Manifests(strategic)
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
			if overrides.Needed(after[i]) || !overrides.Needed(before[i]) {
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

// chance generates manifests from a seed.
type chance struct{ *rand.Rand }

func (c chance) one(of ...string) string { return of[c.IntN(len(of))] }

func (c chance) some(max int, of ...func() string) string {
	var parts []string
	for _, i := range c.Perm(len(of))[:c.IntN(min(max, len(of))+1)] {
		parts = append(parts, of[i]())
	}
	return strings.Join(parts, ", ")
}

func (c chance) pairs() string {
	keys := []string{"a", "b", "c"}
	var parts []string
	for _, i := range c.Perm(3)[:1+c.IntN(2)] {
		parts = append(parts, keys[i]+": "+c.one("x", "z", `"1"`))
	}
	return "{" + strings.Join(parts, ", ") + "}"
}

func (c chance) metadata() string {
	return "{" + c.some(2, func() string { return "labels: " + c.pairs() }, func() string {
		return "annotations: " +
			c.pairs()
	}) + "}"
}

func (c chance) named(max int, names []string, rest func() string) string {
	var parts []string
	for _, i := range c.Perm(len(names))[:c.IntN(min(max, len(names))+1)] {
		parts = append(parts, "{name: "+names[i]+rest()+"}")
	}
	return "[" + strings.Join(parts, ", ") + "]"
}

func (c chance) containers(names ...string) string {
	return c.named(2, names, func() string {
		env := c.named(2, []string{"A", "B", "C"}, func() string {
			return c.one(", value: x", ", value: z", ", valueFrom: {secretKeyRef: {name: s, key: k}}")
		})
		mounts := "[" + c.some(2, func() string { return "{name: v, mountPath: /v}" },
			func() string { return "{name: w, mountPath: /w, readOnly: true}" },
			func() string { return "{name: v, mountPath: /x}" }) + "]"
		return ", env: " + env + ", volumeMounts: " + mounts
	})
}

// spec is of the pods; more are fields that only some shapes have.
func (c chance) spec(more ...func() string) string {
	return c.some(5, append([]func() string{
		func() string { return "serviceAccountName: " + c.one("sa", "sb") },
		func() string { return "nodeSelector: " + c.pairs() },
		func() string { return "tolerations: [{key: " + c.one("p", "q") + ", operator: Exists}]" },
		func() string {
			return "volumes: " + c.named(2, []string{"v", "w"}, func() string {
				return c.one(", emptyDir: {}", ", emptyDir: {medium: Memory}", ", persistentVolumeClaim: {claimName: p}")
			})
		},
		func() string { return "initContainers: " + c.containers("fetch-identity") },
		func() string { return "containers: " + c.containers("trainer") },
		func() string {
			return "schedulingGates: " + c.named(2, []string{"g", "h"}, func() string { return "" })
		},
	}, more...)...)
}

func (c chance) affinity() string {
	return c.one("affinity: {podAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [{weight: 1, "+
		"podAffinityTerm: {topologyKey: a}}]}}",
		"affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: "+
			"[{matchExpressions: [{key: a, operator: Exists}]}]}}}")
}

func (c chance) targets() string {
	return c.one("[{name: node}]", "[{name: node}]", "[{name: dataset-initializer}]",
		"[{name: dataset-initializer}, {name: node}]")
}

func (c chance) repeated(n int, of func() string) string {
	var parts []string
	for range 1 + c.IntN(n) {
		parts = append(parts, of())
	}
	return "[" + strings.Join(parts, ",\n    ") + "]"
}

// manifest is a TrainJob in one or more of the shapes.
func (c chance) manifest(name string) string {
	var fields []string
	secrets := func() string {
		return "imagePullSecrets: " + c.named(2, []string{"p", "q"}, func() string { return "" })
	}
	if c.IntN(5) == 0 {
		fields = append(fields, "podSpecOverrides: "+
			c.repeated(1, func() string { return "{targetJobs: " + c.targets() + comma(c.spec()) + "}" }))
		if c.IntN(2) == 0 {
			fields = append(fields, "labels: "+c.pairs())
		}
	} else {
		if c.IntN(4) > 0 {
			fields = append(fields, "podTemplateOverrides: "+c.repeated(3, func() string {
				return "{targetJobs: " + c.targets() + ", metadata: " + c.metadata() + ", spec: {" + c.spec(secrets, c.affinity) +
					"}}"
			}))
		}
		if c.IntN(3) == 0 {
			fields = append(fields, "templateOverrides: [{manager: example.com/team, pod: "+c.repeated(3, func() string {
				return fmt.Sprintf(`{time: "2026-01-0%dT00:00:00Z", targetJobs: %s, metadata: %s, spec: {%s}}`, 1+c.IntN(9),
					c.targets(), c.metadata(),
					c.spec(secrets, c.affinity, func() string { return "securityContext: {runAsUser: 5}" },
						func() string { return "terminationGracePeriodSeconds: 0" }))
			})+", job: "+c.repeated(2, func() string {
				return fmt.Sprintf(`{time: "2026-01-0%dT00:00:00Z", metadata: %s%s}`, 1+c.IntN(9), c.metadata(),
					c.one("", ", targetJobs: [{name: node}]"))
			})+"}]")
		}
	}
	if c.IntN(3) == 0 {
		fields = append(fields, "runtimePatches: [{manager: example.com/"+c.one("team", "other")+
			", trainingRuntimeSpec: {template: {metadata: "+c.metadata()+
			", spec: {replicatedJobs: [{name: node, template: {spec: {template: {metadata: "+c.metadata()+
			", spec: {nodeSelector: "+c.pairs()+"}}}}}]}}}}]")
	}
	fields = append(fields, "suspend: true")
	c.Shuffle(len(fields), func(i, j int) { fields[i], fields[j] = fields[j], fields[i] })
	return "apiVersion: trainer.kubeflow.org/v1alpha1\nkind: TrainJob\nmetadata:\n  name: " + name +
		"\nspec:\n  runtimeRef: {name: pytorch-distributed-gpu}\n  " + strings.Join(fields, "\n  ") + "\n"
}

func comma(text string) string {
	if text == "" {
		return ""
	}
	return ", " + text
}

// TestConvertGivesTheSamePods holds, of generated manifests on a runtime that sets little and on one that sets all,
// that what is converted without a loss gives the same pods as the original shape does, and that what gives others is
// said to be lost.
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
			if overrides.Needed(after) {
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
