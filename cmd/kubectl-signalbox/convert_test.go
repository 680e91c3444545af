package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/cli-runtime/pkg/genericiooptions"
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
  # ours
  runtimePatches:
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
			out: head + `  # required
  runtimePatches: # ours
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
			out:  head + "  runtimePatches: []\n",
			said: []string{"LOST: spec.podTemplateOverrides[0] and what follows it set no field"},
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
		"not YAML": {"the file is named", "a: [", "job.yaml: error converting YAML to JSON: yaml: line 1"},
		"a wrong type": {"the TrainJob and its line are named", head + "  podTemplateOverrides: {a: b}\n",
			"job.yaml: TrainJob job (line 2): json: cannot unmarshal object"},
		"an alias": {"it would not survive",
			strings.Replace(head, "spec:", "x: &base {suspend: true}\nspec:\n  <<: *base", 1), "TrainJob job (line 2): line " +
				"5 has an anchor, an alias or a merge key of YAML, which would not survive; write out what it refers to"},
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
