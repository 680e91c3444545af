package legacy_test

import (
	"encoding/json"
	"errors"
	"reflect"
	"testing"

	"gomodules.xyz/jsonpatch/v2"
	jsonpatchapply "gopkg.in/evanphx/json-patch.v4"
	admissionv1 "k8s.io/api/admission/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/apimachinery/pkg/runtime"
	webhookadmission "sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides/legacy"
	"github.com/signalbox-dev/signalbox/review"
)

// TestRender holds that a list of overrides has the users' elements as they were sent, and after them the
// integration's.
func TestRender(t *testing.T) {
	list := legacy.PodTemplateList
	const own = `{"targetJobs":[{"name":"node"}],"spec":{"nodeSelector":{"gpu":"a"}}}`
	const users = `{"targetJobs":[{"name":"node"}],"spec":{"serviceAccountName":"sa"},"future":1.5}`
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
		"created": {
			reason: "what users say is kept", sent: users, recSent: "-", creation: true, want: users,
			wantRec: `{"field":"podTemplateOverrides","users":{"podTemplateOverrides":[` + users + `]}}`},
		"created with nothing": {reason: "there is nothing to keep", recSent: "-", creation: true, wantRec: "-"},
		"forged": {
			reason: "a record that somebody brings is not believed", sent: own, recSent: record(own, ""), creation: true,
			want: own, wantRec: `{"field":"podTemplateOverrides","users":{"podTemplateOverrides":[` + own + `]}}`},
		"the first write": {
			reason: "the integration's elements come behind", before: users, sent: users, recBefore: "-",
			recSent: record(own, ""), integral: true, want: users + "," + own, wantRec: record(own, users)},
		"sent without": {
			reason: "they stay", before: users + "," + own, sent: users, recBefore: record(own, users),
			recSent: record(own, users), want: users + "," + own, wantRec: record(own, users)},
		"sent with": {
			reason: "they stay as they are", before: users + "," + own, sent: users + "," + own,
			recBefore: record(own, users), recSent: record(own, users), want: users + "," + own, wantRec: record(own, users)},
		"sent in another order": {
			reason: "they are the last", before: users + "," + own, sent: own + "," + users,
			recBefore: record(own, users), recSent: record(own, users), want: users + "," + own, wantRec: record(own, users)},
		"the record taken away": {
			reason: "it comes back", before: users + "," + own, sent: users, recBefore: record(own, users), recSent: "-",
			want: users + "," + own, wantRec: record(own, users)},
		"the record altered": {
			reason: "it comes back", before: users + "," + own, sent: users, recBefore: record(own, users),
			recSent: record("", ""), want: users + "," + own, wantRec: record(own, users)},
		"users say nothing more": {
			reason: "the integration's stay", before: users + "," + own, sent: "", recBefore: record(own, users),
			recSent: record(own, users), want: own, wantRec: record(own, "")},
		"one of the users' equals ours": {
			reason: "it is theirs, as before", before: own + "," + users + "," + own, sent: own + "," + users,
			recBefore: record(own, own+","+users), recSent: record(own, own+","+users),
			want: own + "," + users + "," + own, wantRec: record(own, own+","+users)},
		"cleared": {
			reason: "the users' stay", before: users + "," + own, sent: users + "," + own, recBefore: record(own, users),
			recSent: record("", users), integral: true, want: users, wantRec: record("", users)},
		"the same twice by users": {
			reason: "each is theirs", before: own + "," + own, sent: own + "," + own, recBefore: record(own, own),
			recSent: record(own, own), want: own + "," + own, wantRec: record(own, own)},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			object := func(elements, record string) string {
				o := map[string]any{"metadata": map[string]any{"name": "job"}, "spec": map[string]any{"suspend": true}}
				if record != "-" {
					o["metadata"].(map[string]any)["annotations"] = map[string]any{legacy.RecordAnnotation: record}
				}
				if elements != "" {
					o["spec"].(map[string]any)["podTemplateOverrides"] = json.RawMessage("[" + elements + "]")
				}
				raw, err := json.Marshal(o)
				if err != nil {
					t.Fatal(err)
				}
				return string(raw)
			}
			before, sent := "", object(c.sent, c.recSent)
			if !c.creation {
				before = object(c.before, c.recBefore)
			}
			operations, err := list.Render(requestOf(t, c.integral, before, sent))
			if err != nil {
				t.Fatal(err)
			}
			after := applied(t, []byte(sent), operations)
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
			rec, has := got.Metadata.Annotations[legacy.RecordAnnotation]
			if has != (c.wantRec != "-") || has && !sameJSON(t, rec, c.wantRec) {
				t.Errorf("%s: record %s, want %s", c.reason, rec, c.wantRec)
			}
			again, err := list.Render(requestOf(t, c.integral, string(after), string(after)))
			if err != nil || len(again) > 0 {
				t.Errorf("what is in line stays as it is: %v %v", again, err)
			}
		})
	}
	// The CRD has been upgraded, which isn't known yet.
	of := func(record string) string {
		return `{"metadata":{"annotations":{"` + legacy.RecordAnnotation + `":` + quoted(t, record) + `}},"spec":{}}`
	}
	operations, err := list.Render(requestOf(t, true, of(record(own, users)), of(record("", ""))))
	if err != nil || len(operations) != 1 || !sameJSON(t, operations[0].Value.(string), record(own, users)) {
		t.Errorf("the record is all that is left, and stays: %v %v", operations, err)
	}
	foreign := of(`{"field":"podSpecOverrides","users":{"podSpecOverrides":[]}}`)
	operations, err = list.Render(requestOf(t, false, foreign, `{"spec":{}}`))
	if err != nil || len(operations) != 1 || operations[0].Path != "/metadata/annotations" {
		t.Errorf("another Trainer's record waits to be migrated, whatever is sent: %v %v", operations, err)
	}
}

func quoted(t *testing.T, text string) string {
	t.Helper()
	data, err := json.Marshal(text)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
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

// requestOf returns a request of the integration (trusted), or of a user. before is "" for a creation.
func requestOf(t *testing.T, trusted bool, before, sent string) *review.Request {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := api.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	reader := review.Reader{Decoder: webhookadmission.NewDecoder(scheme), Trusted: []string{"signalbox"},
		Limits: review.LimitsFor(256<<10, 1000)}
	request := webhookadmission.Request{AdmissionRequest: admissionv1.AdmissionRequest{
		Operation: admissionv1.Create, Object: runtime.RawExtension{Raw: []byte(sent)},
		UserInfo: authenticationv1.UserInfo{Username: "user"}}}
	if before != "" {
		request.Operation, request.OldObject = admissionv1.Update, runtime.RawExtension{Raw: []byte(before)}
	}
	if trusted {
		request.UserInfo.Username = "signalbox"
	}
	rq, err := reader.Read(request)
	if err != nil {
		t.Fatal(err)
	}
	return rq
}
