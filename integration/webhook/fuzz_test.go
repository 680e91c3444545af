package webhook

import (
	"bytes"
	"encoding/json"
	"testing"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	admissionv1 "k8s.io/api/admission/v1"
	"k8s.io/apimachinery/pkg/runtime"
	webhookadmission "sigs.k8s.io/controller-runtime/pkg/webhook/admission"
	kjson "sigs.k8s.io/json"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides"
	"github.com/signalbox-dev/signalbox/review"
	"github.com/signalbox-dev/signalbox/store"
)

// FuzzWebhook holds that no update by another user, whatever was sent, makes the webhook panic, changes or drops the
// integration's entry, puts another after it, or touches an entry that isn't the integration's.
func FuzzWebhook(f *testing.F) {
	const own = `{"manager":"kueue.x-k8s.io/manager","time":"2026-01-01T00:00:00Z",` +
		`"trainingRuntimeSpec":{"template":{"spec":{"replicatedJobs":[{"name":"node"}]}}}}`
	stored := `{"metadata":{"name":"a","annotations":{"signalbox.dev/runtime":"x"}},` +
		`"spec":{"runtimePatches":[{"manager":"a.com/a","future":{"b":0}},` + own + `]}}`
	for _, sent := range []string{
		`{"metadata":{"name":"a"},"spec":{}}`, stored, `{"metadata":{"name":"a"},"spec":{"runtimePatches":null}}`,
		`{"metadata":{"name":"a"},"spec":{"runtimePatches":[{"manager":"kueue.x-k8s.io/manager"},` +
			`{"manager":"b.com/b","trainingRuntimeSpec":{}}]}}`,
		`{"spec":{"runtimePatches":[` + own + `,{"manager":"a.com/a"},` + own + `]}}`,
		`{"metadata":{"annotations":{"signalbox.dev/runtime":"y"}},` +
			`"spec":{"trainer":{"resourcesPerNode":{"limits":{"nvidia.com/gpu":8}}}}}`,
	} {
		f.Add([]byte(stored), []byte(sent))
		f.Add([]byte(sent), []byte(stored))
	}
	scheme := runtime.NewScheme()
	if err := trainerapi.AddToScheme(scheme); err != nil {
		f.Fatal(err)
	}
	limits := review.LimitsFor(256<<10, 1000)
	reader := review.Reader{Decoder: webhookadmission.NewDecoder(scheme), Limits: limits}
	reviews := Keyed("Kubeflow Trainer")
	f.Fuzz(func(t *testing.T, before, sent []byte) {
		rq, err := reader.Read(webhookadmission.Request{AdmissionRequest: admissionv1.AdmissionRequest{
			Operation: admissionv1.Update,
			Object:    runtime.RawExtension{Raw: sent}, OldObject: runtime.RawExtension{Raw: before},
		}})
		if err != nil || !rq.HasSpec() || rq.New.Name == "" {
			return // no API server sends that
		}
		if stored, err := rq.Stored(); err != nil || stored == nil {
			return
		}
		fields, err := rq.Sent()
		if err != nil {
			return
		}
		if _, err := canonical(fields, rq.New); err != nil {
			return
		}
		refuseOwn(reviews.Guarded(), rq.New)
		operations, err := reviews.Keep(rq)
		if err != nil {
			return
		}
		after := sent
		if len(operations) > 0 {
			data, err := json.Marshal(operations)
			if err != nil {
				t.Fatal(err)
			}
			patch, err := jsonpatch.DecodePatch(data)
			if err != nil {
				t.Fatal(err)
			}
			if after, err = patch.Apply(sent); err != nil {
				t.Fatalf("the patch %s can't be applied to %s: %v", data, sent, err)
			}
		}
		was, ok := sentEntries(before)
		now, okNow := sentEntries(after)
		given, okSent := sentEntries(sent)
		if !ok || !okNow || !okSent {
			return // not a TrainJob's
		}
		_, wasOwn := split(was)
		last := len(now) - 1
		others, nowOwn := split(now)
		if !bytes.Equal(wasOwn, nowOwn) {
			t.Fatalf("the integration's entry was %s and is %s", wasOwn, nowOwn)
		}
		if nowOwn != nil && !same(now, was) && !bytes.Equal(now[last], nowOwn) {
			t.Fatalf("an entry stands after the integration's: %s", after)
		}
		if theirs, _ := split(given); !same(theirs, others) {
			t.Fatalf("the others' entries were sent as %s and became %s", theirs, others)
		}
		if rq.Old.Annotations[store.PinAnnotation] != annotationOf(t, after) {
			t.Fatalf("the pinned runtime has changed: %s", after)
		}
	})
}

// sentEntries returns the entries of a TrainJob as JSON; false if they can't be read.
func sentEntries(raw []byte) ([]json.RawMessage, bool) {
	var object struct {
		Spec map[string]any `json:"spec"`
	}
	err := kjson.UnmarshalCaseSensitivePreserveInts(raw, &object)
	list, err := entriesOf(object.Spec, err)
	if err != nil {
		return nil, false
	}
	entries := make([]json.RawMessage, 0, len(list))
	for _, e := range list {
		data, err := json.Marshal(e)
		if err != nil {
			return nil, false
		}
		entries = append(entries, data)
	}
	return entries, true
}

// split takes the integration's entry out of the others; of several, the first.
func split(entries []json.RawMessage) (others []json.RawMessage, own []byte) {
	for _, e := range entries {
		var head struct {
			Manager any `json:"manager"`
		}
		if kjson.UnmarshalCaseSensitivePreserveInts(e, &head) == nil && head.Manager == overrides.Manager {
			if own == nil {
				own = e
			}
			continue
		}
		others = append(others, e)
	}
	return others, own
}

func same(a, b []json.RawMessage) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if !bytes.Equal(a[i], b[i]) {
			return false
		}
	}
	return true
}

func annotationOf(t *testing.T, raw []byte) string {
	t.Helper()
	var object api.TrainJob
	if err := kjson.UnmarshalCaseSensitivePreserveInts(raw, &object); err != nil {
		t.Fatal(err)
	}
	return object.Annotations[store.PinAnnotation]
}
