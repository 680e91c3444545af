package installed

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache/informertest"
	"sigs.k8s.io/yaml"

	"github.com/signalbox-dev/signalbox/overrides/dialect"
)

// crdOf is a CRD with the fields, each given by the path to it.
func crdOf(t *testing.T, schema string) *apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	crd := &apiextensionsv1.CustomResourceDefinition{}
	text := "metadata: {name: trainjobs.trainer.kubeflow.org}\n" +
		"spec: {versions: [{name: v1alpha1, schema: {openAPIV3Schema: {properties: {spec: {properties: " +
		schema + "}}}}}]}"
	if err := yaml.UnmarshalStrict([]byte(text), crd); err != nil {
		t.Fatal(err)
	}
	return crd
}

// patchesWith is the schema of runtimePatches whose pods have the field.
func patchesWith(field string) string {
	schema := "{properties: {" + field + ": {type: integer}}}"
	for _, name := range []string{"spec", "template", "spec", "template"} {
		schema = "{properties: {" + name + ": " + schema + "}}"
	}
	schema = "{items: " + schema + "}"
	for _, name := range []string{"replicatedJobs", "spec", "template", "trainingRuntimeSpec"} {
		schema = "{properties: {" + name + ": " + schema + "}}"
	}
	return "{runtimePatches: {items: " + schema + "}}"
}

var errDown = errors.New("the API server is down")

func TestDialectOf(t *testing.T) {
	cases := map[string]struct {
		reason, schema string
		want           *dialect.Dialect
		problem        string
	}{
		"v2.3": {"its patches have a grace period", patchesWith("terminationGracePeriodSeconds"),
			dialect.Kubeflow23, ""},
		"v2.2":             {"its patches have none", patchesWith("nodeSelector"), dialect.Kubeflow22, ""},
		"v2.2, unheard of": {"a schema that doesn't go as deep has none", "{runtimePatches: {}}", dialect.Kubeflow22, ""},
		"v2.1":             {"by its field", "{podTemplateOverrides: {}, labels: {}}", dialect.Kubeflow21, ""},
		"v2.0":             {"by its field", "{podSpecOverrides: {}}", dialect.Kubeflow20, ""},
		"another": {"it can't be worked with", "{suspend: {}}", nil,
			"it is of no Kubeflow Trainer from v2.0 to v2.3; install one of these"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := DialectOf(crdOf(t, c.schema))
			if got != c.want || (err != nil) != (c.problem != "") ||
				err != nil && !strings.Contains(err.Error(), c.problem) {
				t.Errorf("%s: got %v, %v", c.reason, got, err)
			}
		})
	}
	// The CRD that Kubeflow Trainer v2.3.0 ships.
	list := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "github.com/kubeflow/trainer/v2")
	out, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(out)),
		"manifests", "base", "crds", "trainer.kubeflow.org_trainjobs.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	shipped := &apiextensionsv1.CustomResourceDefinition{}
	if err := yaml.Unmarshal(text, shipped); err != nil {
		t.Fatal(err)
	}
	if d, err := DialectOf(shipped); err != nil || d != dialect.Kubeflow23 {
		t.Errorf("v2.3.0 is known by its own CRD: %v %v", d, err)
	}
}

// TestTrainerOf holds that the bundled Trainer is known by the CRD that it is installed with.
func TestTrainerOf(t *testing.T) {
	text, err := os.ReadFile("../../config/crd/trainer.kubeflow.org_trainjobs.yaml")
	if err != nil {
		t.Fatal(err)
	}
	bundled := &apiextensionsv1.CustomResourceDefinition{}
	if err := yaml.Unmarshal(text, bundled); err != nil {
		t.Fatal(err)
	}
	for crd, want := range map[*apiextensionsv1.CustomResourceDefinition]*dialect.Dialect{
		bundled: dialect.Bundled, crdOf(t, patchesWith("terminationGracePeriodSeconds")): dialect.Kubeflow23,
		crdOf(t, "{podTemplateOverrides: {}}"): dialect.Kubeflow21,
	} {
		if got, err := TrainerOf(crd); err != nil || got != want {
			t.Errorf("got %v, %v, want %s", got, err, want.Name)
		}
	}
}

func TestAwaitOther(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := apiextensionsv1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	informers := &informertest.FakeInformers{Scheme: scheme}
	informer, err := informers.FakeInformerFor(t.Context(), &apiextensionsv1.CustomResourceDefinition{})
	if err != nil {
		t.Fatal(err)
	}
	type result struct {
		other bool
		err   error
	}
	await := func(ctx context.Context) <-chan result {
		ended, begun := make(chan result, 1), make(chan struct{})
		go func() {
			close(begun)
			other, err := AwaitOther(ctx, informers, dialect.Kubeflow21)
			ended <- result{other, err}
		}()
		<-begun
		return ended
	}

	ctx, cancel := context.WithCancel(t.Context())
	ended := await(ctx)
	same, other := crdOf(t, "{podTemplateOverrides: {}}"), crdOf(t, patchesWith("nodeSelector"))
	other.Name = "other"
	informer.Add(same)
	informer.Add(other)
	informer.Update(crdOf(t, "{}"), crdOf(t, "{}"))
	cancel()
	if got := <-ended; got.other || got.err != nil {
		t.Errorf("the same Trainer, another CRD and one that isn't known end nothing: got %v", got)
	}

	ended = await(t.Context())
	for done := false; !done; { // until the handler is there
		informer.Update(same, crdOf(t, patchesWith("nodeSelector")))
		select {
		case got := <-ended:
			done = true
			if !got.other || got.err != nil {
				t.Errorf("another Trainer ends it: got %v", got)
			}
		default:
		}
	}

	informers.Error = errDown
	if got := <-await(t.Context()); got.other || !errors.Is(got.err, errDown) {
		t.Errorf("without a watch it is an error: got %v", got)
	}
}
