package integration

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/cache/informertest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/yaml"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides"
	"github.com/signalbox-dev/signalbox/store"
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

func TestDialectOf(t *testing.T) {
	cases := map[string]struct {
		reason, schema string
		want           overrides.Dialect
		problem        string
	}{
		"v2.3": {"its patches have a grace period", patchesWith("terminationGracePeriodSeconds"),
			overrides.Kubeflow23, ""},
		"v2.2":             {"its patches have none", patchesWith("nodeSelector"), overrides.Kubeflow22, ""},
		"v2.2, unheard of": {"a schema that doesn't go as deep has none", "{runtimePatches: {}}", overrides.Kubeflow22, ""},
		"v2.1":             {"by its field", "{podTemplateOverrides: {}, labels: {}}", overrides.Kubeflow21, ""},
		"v2.0":             {"by its field", "{podSpecOverrides: {}}", overrides.Kubeflow20, ""},
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
	if d, err := DialectOf(shipped); err != nil || d != overrides.Kubeflow23 {
		t.Errorf("v2.3.0 is known by its own CRD: %v %v", d, err)
	}
}

func TestInstalled(t *testing.T) {
	clock := clocktesting.NewFakeClock(time.Unix(1_700_000_000, 0))
	i := NewInstalled(overrides.Kubeflow21, clock)
	if changed, err := i.observe(crdOf(t, "{podTemplateOverrides: {}}")); changed || err != nil {
		t.Errorf("the same is no change: %v", err)
	}
	changed, err := i.observe(crdOf(t, patchesWith("nodeSelector")))
	if !changed || err != nil || i.Dialect() != overrides.Kubeflow22 {
		t.Errorf("another is one: %v %v", err, i.Dialect())
	}
	if i.refuses() {
		t.Error("nothing was refused yet")
	}
	if i.refusedAtomic(); !i.refuses() {
		t.Error("a refusal is remembered")
	}
	if clock.Step(refusalHolds); i.refuses() {
		t.Error("and tried again after a while: the Trainer may be another, with the same CRD")
	}
	i.refusedAtomic()
	changed, err = i.observe(crdOf(t, patchesWith("terminationGracePeriodSeconds")))
	if !changed || err != nil || i.refuses() {
		t.Errorf("another Trainer has refused nothing: %v", err)
	}
	if changed, err := i.observe(crdOf(t, "{}")); changed || err == nil || i.Dialect() != overrides.Kubeflow23 {
		t.Errorf("one that isn't known changes nothing: %v", err)
	}
	const refusal = "admission webhook denied the request: spec.runtimePatches: Forbidden: RuntimePatches can only be " +
		"modified when the TrainJob is suspended"
	for message, want := range map[string]bool{
		refusal:                                 true,
		refusal + " before or after the update": false,
		"the object has been modified":          false,
	} {
		if got := store.Refused(errors.New(message)); got != want {
			t.Errorf("%q: %t", message, got)
		}
	}
	if store.Refused(nil) {
		t.Error("no error is no refusal")
	}
	scheme := runtime.NewScheme()
	if err := api.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	job := &api.TrainJob{}
	job.Namespace, job.Name = "ns", "job"
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	events := i.again(ctx, fake.NewClientBuilder().WithScheme(scheme).WithObjects(job).Build())
	i.changed()
	select {
	case e := <-events:
		if e.Object.GetName() != "job" {
			t.Errorf("got %s", e.Object.GetName())
		}
	case <-time.After(10 * time.Second):
		t.Error("every TrainJob is sent on when the Trainer is another")
	}
}

func TestWatch(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := apiextensionsv1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	i := NewInstalled(overrides.Kubeflow21, clocktesting.NewFakeClock(now))
	informers := &informertest.FakeInformers{Scheme: scheme}
	if err := i.Watch(t.Context(), informers); err != nil {
		t.Fatal(err)
	}
	informer, err := informers.FakeInformerFor(t.Context(), &apiextensionsv1.CustomResourceDefinition{})
	if err != nil {
		t.Fatal(err)
	}
	trainJobs := func(schema string) *apiextensionsv1.CustomResourceDefinition { return crdOf(t, schema) }
	informer.Add(trainJobs("{podSpecOverrides: {}}"))
	if i.Dialect() != overrides.Kubeflow20 {
		t.Errorf("another Trainer is followed before anybody reconciles: got %s", i.Dialect().Name())
	}
	changes := 0
	i.changed = func() { changes++ }
	other := trainJobs(patchesWith("nodeSelector"))
	other.Name = "other"
	informer.Add(other)
	informer.Update(trainJobs("{}"), trainJobs("{}"))
	if i.Dialect() != overrides.Kubeflow20 || changes > 0 {
		t.Errorf("neither another CRD nor one that isn't known changes anything: got %s", i.Dialect().Name())
	}
	informer.Update(trainJobs("{podSpecOverrides: {}}"), trainJobs(patchesWith("nodeSelector")))
	if i.Dialect() != overrides.Kubeflow22 || changes != 1 {
		t.Errorf("every TrainJob is reconciled: got %s, %d", i.Dialect().Name(), changes)
	}
	informers.Error = errDown
	if err := i.Watch(t.Context(), informers); !errors.Is(err, errDown) {
		t.Errorf("got %v", err)
	}
}

func TestAgainListsAgain(t *testing.T) {
	down := true
	fakes := interceptor.NewClient(cluster(t, "", trainJobIn("ns", "job")), interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, l client.ObjectList, opts ...client.ListOption) error {
			if down {
				down = false
				return errDown
			}
			return c.List(ctx, l, opts...)
		},
	})
	i := NewInstalled(overrides.Kubeflow21, clocktesting.NewFakeClock(now))
	sent := i.again(t.Context(), fakes)
	i.changed()
	select {
	case e := <-sent:
		if e.Object.GetName() != "job" {
			t.Errorf("got %s", e.Object.GetName())
		}
	case <-time.After(30 * time.Second):
		t.Error("a list that fails is tried again")
	}
}
