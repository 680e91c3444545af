package integration

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"gomodules.xyz/jsonpatch/v2"
	jsonpatchapply "gopkg.in/evanphx/json-patch.v4"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/yaml"

	"github.com/signalbox-dev/signalbox/admission"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides"
)

// crdOf is a CRD with the fields, each given by the path to it.
func crdOf(t *testing.T, schema string) *apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	crd := &apiextensionsv1.CustomResourceDefinition{}
	text := "metadata: {name: trainjobs.trainer.kubeflow.org}\nspec: {versions: [{name: v1alpha1, schema: {openAPIV3Schema: {properties: {spec: {properties: " + schema + "}}}}}]}"
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
		"v2.3":             {"its patches have a grace period", patchesWith("terminationGracePeriodSeconds"), overrides.Kubeflow23, ""},
		"v2.2":             {"its patches have none", patchesWith("nodeSelector"), overrides.Kubeflow22, ""},
		"v2.2, unheard of": {"a schema that doesn't go as deep has none", "{runtimePatches: {}}", overrides.Kubeflow22, ""},
		"v2.1":             {"by its field", "{podTemplateOverrides: {}, labels: {}}", overrides.Kubeflow21, ""},
		"v2.0":             {"by its field", "{podSpecOverrides: {}}", overrides.Kubeflow20, ""},
		"another":          {"it can't be worked with", "{suspend: {}}", overrides.Dialect{}, "it is of no Kubeflow Trainer from v2.0 to v2.3; install one of these"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := DialectOf(crdOf(t, c.schema))
			if got != c.want || (err != nil) != (c.problem != "") || err != nil && !strings.Contains(err.Error(), c.problem) {
				t.Errorf("%s: got %v, %v", c.reason, got, err)
			}
		})
	}
	// The CRD that Kubeflow Trainer v2.3.0 ships.
	out, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "github.com/kubeflow/trainer/v2").Output()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(out)), "manifests", "base", "crds", "trainer.kubeflow.org_trainjobs.yaml"))
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
	if changed, err := i.observe(crdOf(t, patchesWith("nodeSelector"))); !changed || err != nil || i.Dialect() != overrides.Kubeflow22 {
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
	if changed, err := i.observe(crdOf(t, patchesWith("terminationGracePeriodSeconds"))); !changed || err != nil || i.refuses() {
		t.Errorf("another Trainer has refused nothing: %v", err)
	}
	if changed, err := i.observe(crdOf(t, "{}")); changed || err == nil || i.Dialect() != overrides.Kubeflow23 {
		t.Errorf("one that isn't known changes nothing: %v", err)
	}
	for message, want := range map[string]bool{
		"admission webhook denied the request: spec.runtimePatches: Forbidden: RuntimePatches can only be modified when the TrainJob is suspended":                            true,
		"admission webhook denied the request: spec.runtimePatches: Forbidden: RuntimePatches can only be modified when the TrainJob is suspended before or after the update": false,
		"the object has been modified": false,
	} {
		if got := admission.Refused(errors.New(message)); got != want {
			t.Errorf("%q: %t", message, got)
		}
	}
	if admission.Refused(nil) {
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

// TestRender holds that a list of overrides has the users' elements as they were sent, and behind them the integration's.
func TestRender(t *testing.T) {
	const own, users = `{"targetJobs":[{"name":"node"}],"spec":{"nodeSelector":{"gpu":"a"}}}`, `{"targetJobs":[{"name":"node"}],"spec":{"serviceAccountName":"sa"},"future":1.5}`
	record := func(own, users string) string {
		text := `{"field":"podTemplateOverrides","time":"2026-01-01T00:00:00Z"`
		if own != "" {
			text += `,"own":[` + own + `]`
		}
		if users != "" {
			text += `,"users":{"podTemplateOverrides":[` + users + `]}`
		}
		return text + "}"
	}
	cases := map[string]struct {
		reason             string
		before, sent       string // elements
		recBefore, recSent string // Records; "-" is no annotation
		integral, creation bool
		want, wantRec      string
	}{
		"created":              {reason: "what users say is kept", sent: users, recSent: "-", creation: true, want: users, wantRec: `{"field":"podTemplateOverrides","users":{"podTemplateOverrides":[` + users + `]}}`},
		"created with nothing": {reason: "there is nothing to keep", recSent: "-", creation: true, wantRec: "-"},
		"forged":               {reason: "a record that somebody brings is not believed", sent: own, recSent: record(own, ""), creation: true, want: own, wantRec: `{"field":"podTemplateOverrides","users":{"podTemplateOverrides":[` + own + `]}}`},
		"the first write":      {reason: "the integration's elements come behind", before: users, sent: users, recBefore: "-", recSent: record(own, ""), integral: true, want: users + "," + own, wantRec: record(own, users)},
		"sent without":         {reason: "they stay", before: users + "," + own, sent: users, recBefore: record(own, users), recSent: record(own, users), want: users + "," + own, wantRec: record(own, users)},
		"sent with":            {reason: "they stay as they are", before: users + "," + own, sent: users + "," + own, recBefore: record(own, users), recSent: record(own, users), want: users + "," + own, wantRec: record(own, users)},
		"sent in another order": {
			reason: "they are the last", before: users + "," + own, sent: own + "," + users, recBefore: record(own, users), recSent: record(own, users), want: users + "," + own, wantRec: record(own, users)},
		"the record taken away": {
			reason: "it comes back", before: users + "," + own, sent: users, recBefore: record(own, users), recSent: "-", want: users + "," + own, wantRec: record(own, users)},
		"the record altered": {
			reason: "it comes back", before: users + "," + own, sent: users, recBefore: record(own, users), recSent: record("", ""), want: users + "," + own, wantRec: record(own, users)},
		"users say nothing more": {
			reason: "the integration's stay", before: users + "," + own, sent: "", recBefore: record(own, users), recSent: record(own, users), want: own, wantRec: record(own, "")},
		"one of the users' equals ours": {
			reason: "it is theirs, as before", before: own + "," + users + "," + own, sent: own + "," + users, recBefore: record(own, own+","+users), recSent: record(own, own+","+users), want: own + "," + users + "," + own, wantRec: record(own, own+","+users)},
		"cleared": {
			reason: "the users' stay", before: users + "," + own, sent: users + "," + own, recBefore: record(own, users), recSent: record("", users), integral: true, want: users, wantRec: record("", users)},
		"the same twice by users": {
			reason: "each is theirs", before: own + "," + own, sent: own + "," + own, recBefore: record(own, own), recSent: record(own, own), want: own + "," + own, wantRec: record(own, own)},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			object := func(elements, record string) ([]byte, *job) {
				o := map[string]any{"metadata": map[string]any{"name": "job"}, "spec": map[string]any{"suspend": true}}
				if record != "-" {
					o["metadata"].(map[string]any)["annotations"] = map[string]any{overrides.RecordAnnotation: record}
				}
				if elements != "" {
					o["spec"].(map[string]any)["podTemplateOverrides"] = json.RawMessage("[" + elements + "]")
				}
				raw, err := json.Marshal(o)
				if err != nil {
					t.Fatal(err)
				}
				j := &job{}
				if err := json.Unmarshal(raw, &j.TrainJob); err != nil {
					t.Fatal(err)
				}
				return raw, j
			}
			rv := &review{integral: c.integral}
			if !c.creation {
				rv.rawOld, rv.old = object(c.before, c.recBefore)
			}
			rv.raw, rv.new = object(c.sent, c.recSent)
			operations, err := render(overrides.Kubeflow21, rv)
			if err != nil {
				t.Fatal(err)
			}
			after := applied(t, rv.raw, operations)
			var got struct {
				Metadata struct{ Annotations map[string]string }
				Spec     struct{ PodTemplateOverrides json.RawMessage }
			}
			if err := json.Unmarshal(after, &got); err != nil {
				t.Fatal(err)
			}
			want := ""
			if c.want != "" {
				want = "[" + c.want + "]"
			}
			if !sameJSON(t, string(got.Spec.PodTemplateOverrides), want) {
				t.Errorf("%s: got %s, want %s", c.reason, got.Spec.PodTemplateOverrides, want)
			}
			rec, has := got.Metadata.Annotations[overrides.RecordAnnotation]
			if has != (c.wantRec != "-") || has && !sameJSON(t, rec, c.wantRec) {
				t.Errorf("%s: record %s, want %s", c.reason, rec, c.wantRec)
			}
			rv.raw, rv.rawOld = after, after
			if rv.old, rv.new = (&job{}), (&job{}); json.Unmarshal(after, &rv.old.TrainJob) != nil || json.Unmarshal(after, &rv.new.TrainJob) != nil {
				t.Fatal("not readable")
			}
			if again, err := render(overrides.Kubeflow21, rv); err != nil || len(again) > 0 {
				t.Errorf("what is in line stays as it is: %v %v", again, err)
			}
		})
	}
	// The CRD has been upgraded, and we don't know it yet.
	pruned := &review{raw: []byte(`{"spec":{"suspend":true}}`), rawOld: []byte(`{"spec":{"suspend":true}}`), old: &job{}, new: &job{}, integral: true}
	pruned.old.Annotations = map[string]string{overrides.RecordAnnotation: record(own, users)}
	pruned.new.Annotations = map[string]string{overrides.RecordAnnotation: record("", "")}
	if operations, err := render(overrides.Kubeflow21, pruned); err != nil || len(operations) != 1 || !sameJSON(t, operations[0].Value.(string), record(own, users)) {
		t.Errorf("the record is all that is left, and stays: %v %v", operations, err)
	}
	foreign := &review{raw: []byte(`{"spec":{}}`), old: &job{}, new: &job{}}
	foreign.old.Annotations = map[string]string{overrides.RecordAnnotation: `{"field":"podSpecOverrides","users":{"podSpecOverrides":[]}}`}
	if operations, err := render(overrides.Kubeflow21, foreign); err != nil || len(operations) != 1 || operations[0].Path != "/metadata/annotations" {
		t.Errorf("another Trainer's record waits to be migrated, whatever is sent: %v %v", operations, err)
	}
	if operations, err := render(overrides.Kubeflow23, foreign); err != nil || operations != nil {
		t.Errorf("a list by manager is not rendered: %v %v", operations, err)
	}
}

func applied(t *testing.T, raw []byte, operations []jsonpatch.Operation) []byte {
	t.Helper()
	data, err := json.Marshal(operations)
	if err != nil {
		t.Fatal(err)
	}
	if len(operations) == 0 {
		return raw
	}
	patch, err := jsonpatchapply.DecodePatch(data)
	if err != nil {
		t.Fatal(err)
	}
	after, err := patch.Apply(raw)
	if err != nil {
		t.Fatal(err)
	}
	return after
}

func sameJSON(t *testing.T, a, b string) bool {
	t.Helper()
	if a == "" || b == "" {
		return a == b
	}
	var x, y any
	if err := errors.Join(json.Unmarshal([]byte(a), &x), json.Unmarshal([]byte(b), &y)); err != nil {
		t.Fatal(err)
	}
	return reflect.DeepEqual(x, y)
}
