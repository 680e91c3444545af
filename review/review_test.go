package review

import (
	"encoding/json"
	"strings"
	"testing"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	admissionv1 "k8s.io/api/admission/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
	webhookadmission "sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

const head = `{"apiVersion":"trainer.kubeflow.org/v1alpha1","kind":"TrainJob",`

func reader(t *testing.T) Reader {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := api.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	return Reader{
		Decoder: webhookadmission.NewDecoder(scheme), Trusted: []string{"signalbox"}, Limits: LimitsFor(256<<10, 1000),
	}
}

// requestOf is a request with what follows head; before is "" on creation.
func requestOf(user, before, after string) webhookadmission.Request {
	raw := func(text string) runtime.RawExtension { return runtime.RawExtension{Raw: []byte(head + text)} }
	request := webhookadmission.Request{AdmissionRequest: admissionv1.AdmissionRequest{
		Operation: admissionv1.Create, Namespace: "ns", Name: "job", Object: raw(after),
		UserInfo: authenticationv1.UserInfo{Username: user},
	}}
	if before != "" {
		request.Operation, request.OldObject = admissionv1.Update, raw(before)
	}
	return request
}

func read(t *testing.T, before, after string) *Request {
	t.Helper()
	rq, err := reader(t).Read(requestOf("user", before, after))
	if err != nil {
		t.Fatal(err)
	}
	return rq
}

func TestRead(t *testing.T) {
	r := reader(t)
	rq, err := r.Read(requestOf("user", "", `"metadata":{"name":"job"}}`))
	if err != nil || !rq.Created() || rq.Old != nil || rq.Trusted || rq.User != "user" || rq.New.Name != "job" {
		t.Errorf("a creation: got %+v, %v", rq, err)
	}
	if rq.New.Namespace != "ns" {
		t.Errorf("a TrainJob without a namespace is of the request's: got %q", rq.New.Namespace)
	}
	rq, err = r.Read(requestOf("signalbox", `"metadata":{"name":"old"}}`, `"metadata":{"namespace":"own"}}`))
	if err != nil || rq.Created() || rq.Old.Name != "old" || !rq.Trusted || rq.New.Namespace != "own" {
		t.Errorf("an update by the integration: got %+v, %v", rq, err)
	}
}

func TestReadMalformed(t *testing.T) {
	r := reader(t)
	for _, text := range []string{"", `{`, `"spec":7}`, `"metadata":{"annotations":[]}}`, `"spec":{},}`} {
		if rq, err := r.Read(requestOf("user", "", text)); err == nil {
			t.Errorf("sent %q: got %+v", text, rq)
		}
		before := text
		if before == "" {
			before = "{"
		}
		if rq, err := r.Read(requestOf("user", before, `"spec":{}}`)); err == nil {
			t.Errorf("stored %q: got %+v", text, rq)
		}
	}
}

func TestFields(t *testing.T) {
	const huge = 9007199254740993 // the first whole number that a float64 can't hold
	rq := read(t, `"spec":{"unknown":1}}`, `"spec":{"unknown":9007199254740993,"half":0.5}}`)
	for range 2 { // the second by what was decoded before
		spec, err := rq.Sent()
		if err != nil || spec["unknown"] != int64(huge) || spec["half"] != 0.5 {
			t.Errorf("a whole number stays one: got %v, %v", spec, err)
		}
	}
	if spec, err := rq.Stored(); err != nil || spec["unknown"] != int64(1) {
		t.Errorf("before the update: got %v, %v", spec, err)
	}
	if sent, err := rq.Sent(); err == nil {
		sent["more"] = true
		if again, _ := rq.Sent(); again["more"] != true {
			t.Error("it is decoded once")
		}
	}
	if spec, err := read(t, "", `"metadata":{}}`).Sent(); err != nil || spec != nil {
		t.Errorf("an object without a spec: got %v, %v", spec, err)
	}
	for range 2 {
		broken := &Request{sent: specIn([]byte("{"))}
		for range 2 {
			if spec, err := broken.Sent(); err == nil || spec != nil || !strings.HasPrefix(err.Error(), "reading spec: ") {
				t.Errorf("what can't be read is an error, each time: got %v, %v", spec, err)
			}
		}
		if broken.HasSpec() {
			t.Error("what can't be read has no spec")
		}
	}
}

func TestHasSpec(t *testing.T) {
	for text, want := range map[string]bool{
		`"metadata":{}}`: false, `"spec":null}`: false, `"spec":{}}`: true, `"Spec":{}}`: false,
	} {
		if got := read(t, "", text).HasSpec(); got != want {
			t.Errorf("%s: got %t", text, got)
		}
	}
}

func TestOnlyFinalizers(t *testing.T) {
	const deleted = `"deletionTimestamp":"2026-11-23T12:00:00Z","finalizers":["a/b"]`
	const gone = `"metadata":{` + deleted + `}}`
	cases := map[string]struct {
		reason, before, after string
		want                  bool
	}{
		"created":            {"it is not being deleted", "", `"metadata":{}}`, false},
		"created deleted":    {"its sender has set the time of deletion", "", gone, false},
		"said to be deleted": {"its sender has set the time of deletion", `"metadata":{}}`, gone, false},
		"updated":            {"it is not being deleted", `"metadata":{}}`, `"metadata":{}}`, false},
		"a finalizer less": {
			"its deletion is never rejected", gone, `"metadata":{"deletionTimestamp":"2026-11-23T12:00:00Z"}}`, true,
		},
		"another spec":      {"a finalizer keeps it", gone, `"metadata":{` + deleted + `},"spec":{"suspend":false}}`, false},
		"another label":     {"it is another change", gone, `"metadata":{` + deleted + `,"labels":{"a":"b"}}}`, false},
		"an annotation":     {"it is another change", gone, `"metadata":{` + deleted + `,"annotations":{"a":"b"}}}`, false},
		"empty annotations": {"they are none", gone, `"metadata":{` + deleted + `,"annotations":{}}}`, true},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			if got := read(t, c.before, c.after).OnlyFinalizers(); got != c.want {
				t.Errorf("%s: got %t", c.reason, got)
			}
		})
	}
}

func TestSpecChanged(t *testing.T) {
	for name, c := range map[string]struct {
		before, after string
		want          bool
	}{
		"created":   {"", `"spec":{}}`, true},
		"the same":  {`"spec":{"suspend":true}}`, `"metadata":{"labels":{"a":"b"}},"spec":{"suspend":true}}`, false},
		"suspended": {`"spec":{"suspend":false}}`, `"spec":{"suspend":true}}`, true},
	} {
		if got := read(t, c.before, c.after).SpecChanged(); got != c.want {
			t.Errorf("%s: got %t", name, got)
		}
	}
}

const key = "example.com/a~b"

// annotated is a TrainJob with annotations as JSON; "" gives none.
func annotated(annotations string) string {
	if annotations == "" {
		return `"metadata":{"name":"job"},"spec":{}}`
	}
	return `"metadata":{"name":"job","annotations":` + annotations + `},"spec":{}}`
}

// patched applies operations to what follows head in what was sent.
func patched(t *testing.T, sent string, operations any) *api.TrainJob {
	t.Helper()
	data, err := json.Marshal(operations)
	if err != nil {
		t.Fatal(err)
	}
	patch, err := jsonpatch.DecodePatch(data)
	if err != nil {
		t.Fatal(err)
	}
	result, err := patch.Apply([]byte(head + sent))
	if err != nil {
		t.Fatal(err)
	}
	job := &api.TrainJob{}
	if err := json.Unmarshal(result, job); err != nil {
		t.Fatal(err)
	}
	return job
}

func TestRestore(t *testing.T) {
	const other = `{"other":"x"}`
	with := func(value string) string { return `{"` + key + `":"` + value + `","other":"x"}` }
	cases := map[string]struct {
		reason, before, after string
		changed               bool
		want                  *string
	}{
		"none":             {"there is nothing to restore", annotated(""), annotated(""), false, nil},
		"nil, empty":       {"an empty map has none", annotated(""), annotated("{}"), false, nil},
		"created without":  {"it isn't there", "", annotated(other), false, nil},
		"created with":     {"it was not there before", "", annotated(with("a")), true, nil},
		"added":            {"it was not there before", annotated(other), annotated(with("a")), true, nil},
		"added empty":      {"an empty value is one", annotated(other), annotated(with("")), true, nil},
		"kept":             {"it is as it was", annotated(with("a")), annotated(with("a")), false, ptr.To("a")},
		"changed":          {"it gets its value back", annotated(with("a")), annotated(with("b")), true, ptr.To("a")},
		"emptied":          {"it gets its value back", annotated(with("a")), annotated(with("")), true, ptr.To("a")},
		"removed":          {"it gets its value back", annotated(with("a")), annotated(other), true, ptr.To("a")},
		"removed with all": {"it gets its value back", annotated(with("a")), annotated(""), true, ptr.To("a")},
		"removed, empty":   {"it gets its value back", annotated(with("a")), annotated("{}"), true, ptr.To("a")},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			rq := read(t, c.before, c.after)
			if got := rq.AnnotationChanged(key); got != c.changed {
				t.Errorf("%s: changed %t", c.reason, got)
			}
			operations := rq.Restore(key)
			if (len(operations) > 0) != c.changed {
				t.Errorf("%s: got %v", c.reason, operations)
			}
			is := patched(t, c.after, append(operations[:len(operations):len(operations)], rq.Restore(key)...))
			for place, job := range map[string]*api.TrainJob{"what is stored": is, "New": rq.New} {
				if value, has := job.Annotations[key]; has != (c.want != nil) || has && value != *c.want {
					t.Errorf("%s: %s has %v", c.reason, place, job.Annotations)
				}
			}
			if (rq.New.Annotations["other"] != is.Annotations["other"]) || rq.AnnotationChanged(key) {
				t.Errorf("the others stay: got %v", is.Annotations)
			}
		})
	}
}

func TestAnnotate(t *testing.T) {
	rq := read(t, "", annotated(""))
	if operations := rq.Annotate(key, nil); operations != nil {
		t.Errorf("there is nothing to remove: got %v", operations)
	}
	operations := rq.Annotate(key, ptr.To("a"))
	if is := patched(t, annotated(""), operations); len(is.Annotations) != 1 || is.Annotations[key] != "a" {
		t.Errorf("the first annotation: got %v", is.Annotations)
	}
	if more := rq.Annotate(key, ptr.To("a")); more != nil {
		t.Errorf("the request has it so: got %v", more)
	}
}

func TestEscape(t *testing.T) {
	for key, want := range map[string]string{"a": "a", "a/b": "a~1b", "a~b": "a~0b", "~1": "~01", "~/": "~0~1"} {
		if got := Escape(key); got != want {
			t.Errorf("%s: got %s, want %s", key, got, want)
		}
	}
}

func TestReject(t *testing.T) {
	job := &api.TrainJob{ObjectMeta: metav1.ObjectMeta{Name: "job"}, Spec: api.TrainJobSpec{
		TrainJobSpec: trainerapi.TrainJobSpec{},
	}}
	answer := Reject(job, field.ErrorList{field.Forbidden(field.NewPath("spec", "suspend"), "why"),
		field.Required(field.NewPath("spec", "trainer"), "what")}, "one", "two")
	if answer.Allowed || answer.Result == nil || answer.Result.Code != 422 || len(answer.Warnings) != 2 {
		t.Fatalf("got %+v", answer)
	}
	for _, want := range []string{`TrainJob.trainer.kubeflow.org "job" is invalid`, "spec.suspend: Forbidden: why",
		"spec.trainer: Required value: what"} {
		if !strings.Contains(answer.Result.Message, want) {
			t.Errorf("got %q, want %q", answer.Result.Message, want)
		}
	}
}
