package webhook

import (
	"encoding/json"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/apimachinery/pkg/runtime"
	webhookadmission "sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides/dialect"
	"github.com/signalbox-dev/signalbox/overrides/legacy"
	"github.com/signalbox-dev/signalbox/review"
)

func TestKeepOwn(t *testing.T) {
	const own = `{"manager":"kueue.x-k8s.io/manager","future":"kept","trainingRuntimeSpec":{"template":{"spec":{}}}}`
	const theirs = `{"manager":"a.com/a","zero":false}`
	const other = `{"manager":"kueue.x-k8s.io/manager"}`
	cases := map[string]struct {
		reason, old, sent, want string
	}{
		"removed":              {"a manifest without it leaves it as it stands, unknown fields included", own, "", own},
		"removed, others sent": {"the others are as sent, ours is last", own, theirs, theirs + "," + own},
		"changed":              {"nobody else changes it", own, other, own},
		"unchanged":            {"nothing is to be done", own, own, ""},
		"others added after":   {"ours stays the last word", own, own + "," + theirs, theirs + "," + own},
		"not last before": {"an update of something else leaves the order alone", own + "," + theirs, own + "," + theirs,
			""},
		"none before": {"there is nothing to keep", theirs, "", ""},
		"forged":      {"nobody else makes one", theirs, theirs + "," + other, theirs},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			object := func(entries string) string {
				return `{"metadata":{"name":"a"},"spec":{"runtimePatches":[` + entries + `]}}`
			}
			rq := requestOf(t, false, object(c.old), object(c.sent))
			got, err := keepOwn(rq)
			if err != nil {
				t.Fatal(err)
			}
			text := ""
			if got != nil {
				var want []any
				if err := json.Unmarshal([]byte("["+c.want+"]"), &want); err != nil {
					t.Fatal(err)
				}
				a, _ := json.Marshal(got)
				b, _ := json.Marshal(want)
				if text = string(a); text == string(b) {
					return
				}
			}
			if text != "" || c.want != "" {
				t.Errorf("%s: got %s, want [%s]", c.reason, text, c.want)
			}
		})
	}
}

func TestCanonical(t *testing.T) {
	raw := `{"spec":{"runtimeRef":{"name":"torch"},"trainer":{"numNodes":2,"resourcesPerNode":
		{"requests":{"cpu":4,"nvidia.com/gpu":"8","a~b/c":"1000m"}}},
		"runtimePatches":[{"manager":"a.com/a","future":1,"trainingRuntimeSpec":{"template":{"spec":{"replicatedJobs":[
		{"name":"node","template":{"spec":{"template":{"spec":{"volumes":[{"name":"v","emptyDir":{"sizeLimit":"1024Mi"}}],
		"containers":[{"name":"c","volumeMounts":[{"name":"v","mountPath":"/v","readOnly":false}]}]}}}}}]}}}}]}}`
	rq := requestOf(t, false, "", raw)
	sent, err := rq.Sent()
	if err != nil {
		t.Fatal(err)
	}
	operations, err := canonical(sent, rq.New)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]any{}
	for _, o := range operations {
		if o.Operation != "replace" {
			t.Errorf("nothing is added or removed, but there is %v", o)
		}
		got[o.Path] = o.Value
	}
	want := map[string]any{
		"/spec/trainer/resourcesPerNode/requests/cpu":     "4",
		"/spec/trainer/resourcesPerNode/requests/a~0b~1c": "1",
		"/spec/runtimePatches/0/trainingRuntimeSpec/template/spec/replicatedJobs/0/template/spec/template/spec/" +
			"volumes/0/emptyDir/sizeLimit": "1Gi",
	}
	if len(got) != len(want) {
		t.Errorf("got %v", got)
	}
	for path, value := range want {
		if got[path] != value {
			t.Errorf("%s: got %v, want %v", path, got[path], value)
		}
	}
}

// requestOf returns a request of the integration (trusted) or of another client; before is "" on creation.
func requestOf(t *testing.T, trusted bool, before, sent string) *review.Request {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := api.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	reader := review.Reader{Decoder: webhookadmission.NewDecoder(scheme), Trusted: []string{self},
		Limits: review.LimitsFor(256<<10, 1000)}
	request := webhookadmission.Request{AdmissionRequest: admissionv1.AdmissionRequest{
		Operation: admissionv1.Create, Object: runtime.RawExtension{Raw: []byte(sent)},
		UserInfo: authenticationv1.UserInfo{Username: "user"}}}
	if before != "" {
		request.Operation, request.OldObject = admissionv1.Update, runtime.RawExtension{Raw: []byte(before)}
	}
	if trusted {
		request.UserInfo.Username = self
	}
	rq, err := reader.Read(request)
	if err != nil {
		t.Fatal(err)
	}
	return rq
}

// TestCompleteOwn holds that the integration's own update is completed for a Trainer with a list alone: its Record
// becomes elements.
func TestCompleteOwn(t *testing.T) {
	of := func(annotations string) string { return `{"metadata":{` + annotations + `},"spec":{"suspend":true}}` }
	started := of(`"annotations":{"` + legacy.RecordAnnotation + `":"{\"field\":\"podTemplateOverrides\",\"own\":` +
		`[{\"targetJobs\":[{\"name\":\"node\"}]}]}"}`)
	for d, want := range map[*dialect.Dialect]int{dialect.Kubeflow23: 0, dialect.Kubeflow21: 1} {
		operations, err := reviewsOf(d).CompleteOwn(requestOf(t, true, of(""), started))
		if err != nil || len(operations) != want {
			t.Errorf("%s: got %v, %v, want %d of them", d.Name, operations, err, want)
		}
	}
}
