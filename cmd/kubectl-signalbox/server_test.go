package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/yaml"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

const (
	selected = `apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata: {name: job, resourceVersion: "7"}
spec:
  runtimeRef: {name: torch}
  podTemplateOverrides:
  - targetJobs: [{name: node}]
    spec: {nodeSelector: {gpu: a100}}
`
	runtimeManifest = `apiVersion: trainer.kubeflow.org/v1alpha1
kind: ClusterTrainingRuntime
metadata: {name: torch}
spec:
  mlPolicy: {numNodes: 1, torch: {}}
  template:
    spec:
      replicatedJobs:
      - name: node
        template: {spec: {template: {spec: {nodeSelector: {zone: east}, containers: [{name: node, image: i}]}}}}
`
)

// written writes a file and returns its path.
func written(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "job.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestCommand(t *testing.T) {
	job := written(t, selected)
	cases := map[string]struct {
		reason string
		args   []string
		out    string
		err    string
	}{
		"converted":        {"the manifest is written", []string{"-f", job}, "runtimePatches:", ""},
		"another format":   {"only YAML is written", []string{"-f", job, "-o", "json"}, "", `--output is "json"`},
		"no file":          {"a file is needed", nil, "", `required flag(s) "filename" not set`},
		"no such file":     {"the error names it", []string{"-f", job + "x"}, "", "job.yamlx"},
		"no configuration": {"the error names it", dryRun(job, "--kubeconfig", job+"x"), "", "finding the cluster"},
		"no namespace":     {"the error names the file", dryRun(job, "--kubeconfig", job), "", "finding the cluster"},
		"no cluster":       {"the runtime can't be read", dryRun(job, "--server", "http://127.0.0.1:1"), "", "reading "},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "none"))
			var out, errs bytes.Buffer
			cmd := command(genericiooptions.IOStreams{In: strings.NewReader(""), Out: &out, ErrOut: &errs})
			cmd.SetArgs(append([]string{"convert"}, c.args...))
			err := cmd.ExecuteContext(context.Background())
			if c.err == "" && err != nil || c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) {
				t.Errorf("%s: got %v, want %q", c.reason, err, c.err)
			}
			if !strings.Contains(out.String(), c.out) {
				t.Errorf("%s: got %q, want %q", c.reason, out.String(), c.out)
			}
		})
	}
}

func dryRun(file string, more ...string) []string {
	return append([]string{"-f", file, "--server-dry-run"}, more...)
}

// cluster returns a session with the given objects whose requests are answered by the functions.
func cluster(t *testing.T, funcs interceptor.Funcs, objects ...client.Object) *session {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := api.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).WithInterceptorFuncs(funcs).Build()
	return &session{client: c, namespace: "team"}
}

func clusterRuntime(t *testing.T) *api.ClusterTrainingRuntime {
	t.Helper()
	rt := &api.ClusterTrainingRuntime{}
	if err := yaml.Unmarshal([]byte(runtimeManifest), rt); err != nil {
		t.Fatal(err)
	}
	return rt
}

// creates answers a creation with an error, nil for none.
func creates(err error) interceptor.Funcs {
	return interceptor.Funcs{
		Create: func(context.Context, client.WithWatch, client.Object, ...client.CreateOption) error { return err },
	}
}

func TestServer(t *testing.T) {
	refused := errors.New("admission webhook denied the request")
	broken := interceptor.Funcs{
		Get: func(context.Context, client.WithWatch, client.ObjectKey, client.Object, ...client.GetOption) error {
			return errors.New("connection refused")
		},
	}
	merged := strings.Replace(selected, "{gpu: a100}", "{zone: west}", 1)
	cases := map[string]struct {
		reason  string
		job     string
		cluster func(t *testing.T) *session
		said    string
		err     string
	}{
		"the same": {"nothing is lost", merged, with(creates(nil)), "became the entry", ""},
		"lost":     {"compared with the cluster's", selected, with(creates(nil)), "LOST: template", "lost: 1"},
		"refused": {"the reason is named", merged, with(creates(refused)), "refused by the cluster: adm",
			"refused by"},
		"lost and refused": {"both count", selected, with(creates(refused)), "LOST", "lost: 1, refused by the cluster: 1"},
		"no runtime":       {"it can't be compared", selected, without(creates(nil)), "note: nodeSelector", ""},
		"unreadable":       {"that is no answer", selected, with(broken), "", "connection refused"},
		"an unknown kind": {"the cluster refuses it", ofKind(selected, "Other"), with(creates(refused)), "refused",
			"refused by"},
		"a runtime of a kind": {"it is looked up", ofKind(selected, "TrainingRuntime"), with(creates(nil)), "note: ", ""},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			var out, errs bytes.Buffer
			streams := genericiooptions.IOStreams{Out: &out, ErrOut: &errs}
			err := convert(context.Background(), options{path: written(t, c.job)}, c.cluster(t), streams)
			if c.err == "" && err != nil || c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) {
				t.Errorf("%s: got %v, want %q", c.reason, err, c.err)
			}
			if !strings.Contains(errs.String(), c.said) {
				t.Errorf("%s: got %q, want %q", c.reason, errs.String(), c.said)
			}
		})
	}
}

func with(funcs interceptor.Funcs) func(t *testing.T) *session {
	return func(t *testing.T) *session { return cluster(t, funcs, clusterRuntime(t)) }
}

func without(funcs interceptor.Funcs) func(t *testing.T) *session {
	return func(t *testing.T) *session { return cluster(t, funcs) }
}

func ofKind(manifest, kind string) string {
	return strings.Replace(manifest, "{name: torch}", "{name: torch, kind: "+kind+"}", 1)
}

// TestServerApplies holds that a TrainJob that exists is checked as an update, without what only the server may set.
func TestServerApplies(t *testing.T) {
	exists := apierrors.NewAlreadyExists(schema.GroupResource{Resource: "trainjobs"}, "job")
	funcs := creates(exists)
	applied := 0
	funcs.Apply = func(_ context.Context, _ client.WithWatch, _ runtime.ApplyConfiguration,
		options ...client.ApplyOption) error {
		o := (&client.ApplyOptions{}).ApplyOptions(options)
		applied++
		if len(o.DryRun) == 0 || o.FieldManager != "kubectl-signalbox" {
			t.Errorf("the update is not a dry run of ours: %+v", o)
		}
		return nil
	}
	job := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(selected), &job.Object); err != nil {
		t.Fatal(err)
	}
	if err := cluster(t, funcs).check(context.Background(), job); err != nil || applied != 1 {
		t.Errorf("applied %d times, %v", applied, err)
	}
	if job.GetResourceVersion() != "7" || job.GetNamespace() != "" {
		t.Error("the caller's TrainJob was changed")
	}
}

func TestConvertErrors(t *testing.T) {
	header := strings.TrimSuffix(selected, selected[strings.Index(selected, "spec:"):])
	cases := map[string]struct{ reason, text, want string }{
		"not YAML": {"it is refused", "a: [", "did not find"},
		"a list without items": {"a broken list is refused",
			"apiVersion: v1\nkind: List\nitems: [text]\n", "items"},
		"a broken runtime": {"it is named", strings.Replace(runtimeManifest, "numNodes: 1", "numNodes: x", 1),
			"ClusterTrainingRuntime torch"},
		"processes":   {"a spec of another type is refused", header + "spec: text\n", "TrainJob job (line 1)"},
		"a key twice": {"strict reading refuses it", header + "spec: {suspend: true, suspend: false}\n", "suspend"},
		"a merge": {"a ReplicatedJob that can't be merged is refused", header +
			"spec:\n  runtimeRef: {name: torch}\n  podTemplateOverrides: 3\n", "TrainJob job"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			_, _, err := run(t, options{}, c.text)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: got %v, want %q", c.reason, err, c.want)
			}
		})
	}
}

// TestRuntimesAmongFiles holds that a namespaced runtime among the files is found.
func TestRuntimesAmongFiles(t *testing.T) {
	local := strings.Replace(strings.Replace(runtimeManifest, "ClusterTrainingRuntime", "TrainingRuntime", 1),
		"{name: torch}", "{name: torch, namespace: team}", 1)
	job := strings.Replace(ofKind(selected, "TrainingRuntime"), "{name: job,", "{name: job, namespace: team,", 1)
	_, said, err := run(t, options{}, local+"---\n"+job)
	if err == nil || !strings.Contains(said, "LOST: template") {
		t.Errorf("got %v and %q, want what is lost on the runtime", err, said)
	}
}
