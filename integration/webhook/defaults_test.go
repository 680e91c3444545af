package webhook

import (
	"errors"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	configapi "github.com/signalbox-dev/signalbox/api/config/v1alpha1"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides/dialect"
)

// withMultiKueue makes queue "away" lead to other clusters, "checked" to a check of another kind, "broken" to a
// ClusterQueue that isn't there.
func withMultiKueue(t *testing.T, listed bool) *harness {
	t.Helper()
	h := newHarness(t, dialect.Bundled, func(c *configapi.Configuration) { c.Kueue.MultiKueue = &listed })
	for name, controller := range map[string]string{
		"multikueue": kueue.MultiKueueControllerName, "zones": "example.com/z",
	} {
		check := &kueue.AdmissionCheck{ObjectMeta: metav1.ObjectMeta{Name: name}}
		check.Spec.ControllerName = controller
		h.create(check)
	}
	for queue, checks := range map[string][]kueue.AdmissionCheckReference{
		"away": {"missing", "zones", "multikueue"}, "checked": {"zones"}, "broken": nil, "queue": nil,
	} {
		lq := &kueue.LocalQueue{ObjectMeta: metav1.ObjectMeta{Namespace: team, Name: queue}}
		lq.Spec.ClusterQueue = kueue.ClusterQueueReference(queue)
		h.create(lq)
		if queue == "broken" || queue == "queue" {
			continue
		}
		cq := &kueue.ClusterQueue{ObjectMeta: metav1.ObjectMeta{Name: queue}}
		cq.Spec.AdmissionChecksStrategy = &kueue.AdmissionChecksStrategy{}
		for _, name := range checks {
			cq.Spec.AdmissionChecksStrategy.AdmissionChecks = append(cq.Spec.AdmissionChecksStrategy.AdmissionChecks,
				kueue.AdmissionCheckStrategyRule{Name: name})
		}
		h.create(cq)
	}
	return h
}

func TestDefaultManagedBy(t *testing.T) {
	const theirs = `,"managedBy":"trainer.kubeflow.org/trainjob-controller"`
	at := func(queue string) string {
		return manifest(strings.ReplaceAll(queued, `"queue"`, `"`+queue+`"`), waiting+theirs)
	}
	cases := map[string]struct {
		reason, old, sent string
		unlisted, given   bool
	}{
		"a queue that leads away": {reason: "MultiKueue runs it", sent: at("away"), given: true},
		"its queue has no checks": {reason: "it runs here", sent: at("queue")},
		"another check":           {reason: "it runs here", sent: at("checked")},
		"no ClusterQueue":         {reason: "it isn't known yet", sent: at("broken")},
		"no LocalQueue":           {reason: "it isn't known yet", sent: at("unknown")},
		"not listed":              {reason: "Kueue would reject it", sent: at("away"), unlisted: true},
		"updated":                 {reason: "the field is immutable", old: at("away"), sent: at("away")},
		"from another cluster": {reason: "it has been dispatched once", sent: strings.Replace(at("away"),
			`"labels":{`, `"labels":{"kueue.x-k8s.io/multikueue-origin":"o",`, 1)},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			answer := withMultiKueue(t, !c.unlisted).ask("/mutate-trainjob", "user", c.old, c.sent)
			given := slices.Contains(patches(t, answer), `add /spec/managedBy "kueue.x-k8s.io/multikueue"`)
			if !answer.Allowed || given != c.given {
				t.Errorf("%s: got %v, %v", c.reason, patches(t, answer), answer.Result)
			}
		})
	}
	for _, kind := range []string{"LocalQueue", "ClusterQueue", "AdmissionCheck"} {
		h := withMultiKueue(t, true)
		h.fail["get "+kind] = errors.New("down")
		if answer := h.ask("/mutate-trainjob", "user", "", at("away")); answer.Allowed {
			t.Errorf("without the %s it isn't known where it runs", kind)
		}
	}
}

// TestUser holds that a TrainJob says who created it, whatever is sent, and that nobody changes that.
func TestUser(t *testing.T) {
	h := newHarness(t, dialect.Bundled, func(c *configapi.Configuration) { c.Usage.Enabled = true })
	mine, forged := newTrainJob(), newTrainJob()
	forged.Annotations = map[string]string{api.UserAnnotation: "another"}
	owned := forged.DeepCopy()
	owned.Annotations[api.UserAnnotation] = "ann"
	const path = "/metadata/annotations"
	const key = path + "/signalbox.dev~1user"
	for name, c := range map[string]struct {
		user      string
		old, sent *api.TrainJob
		want      string
	}{
		"created":             {"ann", nil, mine, `add ` + path + ` {"signalbox.dev/user":"ann"}`},
		"created with a name": {"ann", nil, forged, `add ` + key + ` "ann"`},
		"copied by Kueue":     {self, nil, forged, ""},
		"created by Kueue":    {self, nil, mine, `add ` + path + ` {"signalbox.dev/user":"` + self + `"}`},
		"changed":             {"ann", owned, forged, `add ` + key + ` "ann"`},
		"removed":             {"ann", owned, mine, `add ` + path + ` {"signalbox.dev/user":"ann"}`},
		"added":               {"ann", mine, forged, `remove ` + key},
		"left":                {"ann", owned, owned, ""},
	} {
		old := ""
		if c.old != nil {
			old = encoded(t, c.old)
		}
		answer := h.ask("/mutate-trainjob", c.user, old, encoded(t, c.sent))
		got := slices.DeleteFunc(patches(t, answer), func(p string) bool { return !strings.Contains(p, "annotations") })
		if !answer.Allowed || c.want == "" && len(got) > 0 || c.want != "" && !slices.Equal(got, []string{c.want}) {
			t.Errorf("%s: got %v, want %q", name, got, c.want)
		}
		off := newHarness(t, dialect.Bundled)
		got = slices.DeleteFunc(patches(t, off.ask("/mutate-trainjob", c.user, old, encoded(t, c.sent))),
			func(p string) bool { return !strings.Contains(p, "annotations") })
		if len(got) > 0 {
			t.Errorf("%s: where nobody asks for it, nothing is written: got %v", name, got)
		}
	}
}

// TestWarnedBesideKubeflow holds that a TrainJob is warned of that is to be watched where no process can report, or to
// grow where none does. With the bundled Trainer, its own webhook knows that.
func TestWarnedBesideKubeflow(t *testing.T) {
	for _, c := range []struct {
		trainer           *dialect.Dialect
		annotation, value string
		warns             int
		says              string
	}{
		{dialect.Bundled, api.StalledAfterAnnotation, "30m", 0, ""},
		{dialect.Kubeflow23, api.StalledAfterAnnotation, "30m", 1, "needs the bundled Trainer with trainer.progress"},
		{dialect.Bundled, api.GrowAnnotation, "true", 0, ""},
		{dialect.Kubeflow23, api.GrowAnnotation, "true", 1, "it needs the Trainer that Signalbox bundles"},
		{dialect.Kubeflow23, api.GrowAnnotation, "false", 0, ""},
	} {
		h := newHarness(t, c.trainer)
		job := newTrainJob()
		metav1.SetMetaDataAnnotation(&job.ObjectMeta, c.annotation, c.value)
		answer := h.ask("/validate-trainjob", "user", "", encoded(t, job))
		if !answer.Allowed || len(answer.Warnings) != c.warns ||
			c.warns > 0 && !strings.Contains(answer.Warnings[0], c.says) {
			t.Errorf("%s: got %+v", c.trainer.Name, answer)
		}
		if answer = h.ask("/validate-trainjob", "user", encoded(t, job), encoded(t, job)); len(answer.Warnings) > 0 {
			t.Errorf("%s: once: got %q", c.trainer.Name, answer.Warnings)
		}
	}
}
