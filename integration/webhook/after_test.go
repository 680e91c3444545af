package webhook

import (
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	kueueconstants "sigs.k8s.io/kueue/pkg/constants"
	"sigs.k8s.io/kueue/pkg/controller/constants"
	"sigs.k8s.io/kueue/pkg/features"

	"github.com/signalbox-dev/signalbox/admission/after"
	configapi "github.com/signalbox-dev/signalbox/api/config/v1alpha1"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// TestAfter holds that a TrainJob which runs after others has a gate from its creation on, that nobody else takes off.
func TestAfter(t *testing.T) {
	const gated = kueueconstants.AdmissionGatedByAnnotation
	const path = "/metadata/annotations/kueue.x-k8s.io~1admission-gated-by"
	of := func(annotations ...string) *api.TrainJob {
		job := newTrainJob()
		job.Annotations = map[string]string{}
		for i := 0; i < len(annotations); i += 2 {
			job.Annotations[annotations[i]] = annotations[i+1]
		}
		return job
	}
	labelled := func(job *api.TrainJob, name, value string) *api.TrainJob {
		metav1.SetMetaDataLabel(&job.ObjectMeta, name, value)
		return job
	}
	waits, unqueued := of(api.AfterAnnotation, "a=ok", gated, after.Gate), of(api.AfterAnnotation, "a=ok")
	unqueued.Labels = nil
	for name, c := range map[string]struct {
		user      string
		old, sent *api.TrainJob
		patch     string // of the gate
		refused   string
	}{
		"created": {sent: of(api.AfterAnnotation, "a=ok"), patch: `add ` + path + ` "signalbox.dev/after"`},
		"with another gate": {sent: of(api.AfterAnnotation, "a=ok", gated, "b.com/b"),
			patch: `add ` + path + ` "b.com/b,signalbox.dev/after"`},
		"as if copied": {sent: labelled(of(api.AfterAnnotation, "a=ok"), kueue.MultiKueueOriginLabel, "o"),
			patch: `add ` + path + ` "signalbox.dev/after"`},
		"as if copied, with a note": {refused: "take it out of the manifest", sent: labelled(labelled(of(
			api.AfterAnnotation, "a=ok", gated, after.Gate, api.AfterEndedAnnotation, "a=ok"), kueue.MultiKueueOriginLabel, "o"),
			constants.PrebuiltWorkloadLabel, "w")},
		"without": {sent: of()},
		"copied": {sent: labelled(labelled(of(api.AfterAnnotation, "a=ok,b=ok", api.AfterEndedAnnotation, "a=ok"),
			kueue.MultiKueueOriginLabel, "o"), constants.PrebuiltWorkloadLabel, "w")},
		"created by itself": {user: self, sent: of(api.AfterAnnotation, "a=ok"),
			patch: `add ` + path + ` "signalbox.dev/after"`},
		"invalid": {sent: of(api.AfterAnnotation, "a"), refused: "must be names of TrainJobs"},
		"in no queue": {sent: func() *api.TrainJob { j := of(api.AfterAnnotation, "a=ok"); j.Labels = nil; return j }(),
			refused: "give it a queue"},
		"prebuilt": {sent: labelled(of(api.AfterAnnotation, "a=ok"), constants.PrebuiltWorkloadLabel, "w"),
			refused: "prebuilt Workload w"},
		"with what is noted": {sent: of(api.AfterEndedAnnotation, "a=ok"), refused: "take it out of the manifest"},
		"left":               {old: waits, sent: waits},
		"taken off": {old: waits, sent: of(api.AfterAnnotation, "a=ok"),
			patch: `add ` + path + ` "signalbox.dev/after"`},
		"exchanged": {old: waits, sent: of(api.AfterAnnotation, "a=ok", gated, "b.com/b"),
			refused: "can only remove gates"},
		"opened": {user: self, old: waits, sent: of(api.AfterAnnotation, "a=ok")},
		"changed": {old: waits, sent: of(api.AfterAnnotation, "b=ok", gated, after.Gate),
			refused: "delete the TrainJob"},
		"removed":            {old: waits, sent: of(gated, after.Gate), refused: "delete the TrainJob"},
		"without its gate":   {sent: of(api.AfterAnnotation, "a=ok"), refused: "gate signalbox.dev/after is missing"},
		"taken off after us": {old: waits, sent: of(api.AfterAnnotation, "a=ok"), refused: "is Signalbox's to remove"},
		"a note forged after us": {old: waits, refused: "is Signalbox's to write",
			sent: of(api.AfterAnnotation, "a=ok", gated, after.Gate, api.AfterEndedAnnotation, "a=ok")},
		"queued without its gate": {old: unqueued, sent: of(api.AfterAnnotation, "a=ok"), refused: "created without a queue"},
		"added":                   {old: of(), sent: of(api.AfterAnnotation, "a=ok"), refused: "delete the TrainJob"},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, trainers["bundled"])
			user, old := c.user, ""
			if user == "" {
				user = "ann"
			}
			if c.old != nil {
				old = encoded(t, c.old)
			}
			answer := h.ask("/mutate-trainjob", user, old, encoded(t, c.sent))
			got := slices.DeleteFunc(patches(t, answer), func(p string) bool { return !strings.Contains(p, "gated-by") })
			if c.refused == "" && (!answer.Allowed || strings.Join(got, "") != c.patch) {
				t.Errorf("got %v, want %q", got, c.patch)
			}
			if c.patch != "" { // the validating webhook sees what the mutating one has made of it
				c.sent = c.sent.DeepCopy()
				c.sent.Annotations[gated] = after.WithGate(c.sent)
			}
			answer = h.ask("/validate-trainjob", user, old, encoded(t, c.sent))
			if answer.Allowed != (c.refused == "") || !answer.Allowed && !strings.Contains(answer.Result.Message, c.refused) {
				t.Errorf("want %q, got %v", c.refused, answer.Result)
			}
		})
	}
	noted := of(api.AfterAnnotation, "a=ok,b=ok", gated, after.Gate, api.AfterEndedAnnotation, "a=failed")
	forged := of(api.AfterAnnotation, "a=ok,b=ok", gated, after.Gate, api.AfterEndedAnnotation, "a=ok")
	h := newHarness(t, trainers["v2.3"])
	got := patches(t, h.ask("/mutate-trainjob", "ann", encoded(t, noted), encoded(t, forged)))
	if !slices.Contains(got, `add /metadata/annotations/signalbox.dev~1after-ended "a=failed"`) {
		t.Errorf("what is noted is Signalbox's: got %v", got)
	}
	off := newHarness(t, trainers["bundled"], func(c *configapi.Configuration) {
		c.Kueue.FeatureGates = map[string]bool{string(features.AdmissionGatedBy): false}
	})
	answer := off.ask("/validate-trainjob", "ann", "", encoded(t, of(api.AfterAnnotation, "a=ok")))
	if answer.Allowed || !strings.Contains(answer.Result.Message, "feature gate AdmissionGatedBy") {
		t.Errorf("a Kueue without gates would admit it at once: got %v", answer.Result)
	}
	down := newHarness(t, trainers["bundled"], func(c *configapi.Configuration) {
		c.Kueue.ManageJobsWithoutQueueName = true
	})
	down.fail["get Namespace"] = errors.New("down")
	unlabelled := of(api.AfterAnnotation, "a=ok")
	unlabelled.Labels = nil
	answer = down.ask("/validate-trainjob", "ann", "", encoded(t, unlabelled))
	if answer.Allowed || answer.Result.Code != http.StatusInternalServerError {
		t.Errorf("it isn't known who queues it: got %v", answer.Result)
	}
}
