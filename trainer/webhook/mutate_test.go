package webhook

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	webhookadmission "sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides"
	"github.com/signalbox-dev/signalbox/store"
)

const user, self = "user", "signalbox"

// entryOf is an entry of runtimePatches as YAML, with a node selector of one value.
func entryOf(manager, value, rest string) string {
	return "{manager: " + manager + rest + ", trainingRuntimeSpec: {template: {spec: {replicatedJobs: " +
		"[{name: node, template: {spec: {template: {spec: {nodeSelector: {a: '" + value + "'}}}}}}]}}}}"
}

func patchesOf(suspend bool, entries ...string) string {
	return fmt.Sprintf("spec: {suspend: %t, runtimePatches: [%s]}", suspend, strings.Join(entries, ", "))
}

// patched applies the answer of the mutating webhook to what it was asked of.
func (h *harness) patched(answer webhookadmission.Response, after *api.TrainJob) *api.TrainJob {
	h.t.Helper()
	if !answer.Allowed {
		h.t.Fatalf("refused: %+v", answer.Result)
	}
	if len(answer.Patch) == 0 {
		return after
	}
	patch, err := jsonpatch.DecodePatch(answer.Patch)
	if err != nil {
		h.t.Fatal(err)
	}
	data, err := patch.Apply(h.raw(after).Raw)
	if err != nil {
		h.t.Fatalf("%v: %s", err, answer.Patch)
	}
	is := &api.TrainJob{}
	if err := json.Unmarshal(data, is); err != nil {
		h.t.Fatal(err)
	}
	return is
}

func TestMutateTimes(t *testing.T) {
	const early = ", time: '2026-11-23T10:00:00Z'"
	cases := map[string]struct {
		reason, before, after, user string
		want                        string // hour and minute of each entry
	}{
		"created": {"entries are of now", "", patchesOf(true, entryOf("a.com/a", "1", ""),
			entryOf("a.com/b", "1", "")), user, "12:00 12:00"},
		"created with a time": {"a manifest may bring it", "", patchesOf(true, entryOf("a.com/a", "1", early)), user,
			"10:00"},
		"unchanged": {"an entry keeps its time while its content stays", patchesOf(true,
			entryOf("a.com/a", "1", early)), patchesOf(true, entryOf("a.com/a", "1", "")), user, "10:00"},
		"changed": {"a changed entry is of now", patchesOf(true, entryOf("a.com/a", "1", early)),
			patchesOf(true, entryOf("a.com/a", "2", early)), user, "12:00"},
		"added": {"the others keep theirs", patchesOf(true, entryOf("a.com/a", "1", early)),
			patchesOf(true, entryOf("a.com/b", "1", ""), entryOf("a.com/a", "1", early)), user, "12:00 10:00"},
		"the integration": {"it says the time of its own entry", patchesOf(true,
			entryOf("kueue.x-k8s.io/manager", "1", early)), patchesOf(false, entryOf("kueue.x-k8s.io/manager", "2",
			", time: '2026-11-23T11:00:00Z'")), self, "11:00"},
		"somebody else": {"nobody else says the time of the integration's", patchesOf(true,
			entryOf("kueue.x-k8s.io/manager", "1", early)), patchesOf(true, entryOf("kueue.x-k8s.io/manager", "2", early)), user,
			"12:00"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			var before any
			if c.before != "" {
				before = h.trainJob("torch", c.before)
			}
			after := h.trainJob("torch", c.after)
			is := h.patched(h.ask(mutatePath, c.user, before, after), after)
			var got []string
			for _, p := range is.Spec.RuntimePatches {
				got = append(got, p.Time.UTC().Format("15:04"))
			}
			if strings.Join(got, " ") != c.want {
				t.Errorf("%s: got %s, want %s", c.reason, got, c.want)
			}
			if again := h.patched(h.ask(mutatePath, c.user, before, is), is); string(h.raw(again).Raw) != string(h.raw(is).Raw) {
				t.Errorf("a second time changes nothing: got %+v", again.Spec)
			}
		})
	}
}

func TestMutateHistoryTimes(t *testing.T) {
	h := newHarness(t)
	const was = "{metadata: {labels: {a: b}}, time: '2026-11-23T10:00:00Z'}"
	of := func(entries ...string) *api.TrainJob {
		return h.trainJob("torch", "spec: {suspend: true, templateOverrides: [{manager: a.com/a, job: ["+strings.Join(entries,
			", ")+"]}]}")
	}
	after := of("{metadata: {labels: {a: b}}}", "{metadata: {labels: {a: c}}}")
	is := h.patched(h.ask(mutatePath, user, of(was), after), after)
	if got := is.Spec.TemplateOverrides[0].Job; got[0].Time.UTC().Hour() != 10 || !got[1].Time.Time.Equal(noon) {
		t.Errorf("an entry of a history keeps its time, a new one is of now: got %v and %v", got[0].Time, got[1].Time)
	}
}

// The pinned runtime stays as it was, whoever writes.
func TestMutateKeepsThePin(t *testing.T) {
	with := func(annotations map[string]string) func(*harness) *api.TrainJob {
		return func(h *harness) *api.TrainJob {
			job := h.trainJob("torch", stopped)
			job.Annotations = annotations
			return job
		}
	}
	const key = store.PinAnnotation
	cases := map[string]struct {
		reason        string
		before, after map[string]string
		user, want    string // "-" is none
		others        int    // annotations beside it
	}{
		"taken away": {"a manifest without it is applied", map[string]string{key: "p", "a": "b"},
			map[string]string{"a": "b"}, user, "p", 1},
		"taken away with the rest": {"a manifest without annotations is applied", map[string]string{key: "p"}, nil, user, "p",
			0},
		"changed": {"an old manifest is applied", map[string]string{key: "p"}, map[string]string{key: "q"},
			user, "p", 0},
		"brought": {"nobody else pins", nil, map[string]string{key: "q", "a": "b"}, user, "-", 1},
		"unchanged": {"there is nothing to do", map[string]string{key: "p"}, map[string]string{key: "p"}, user,
			"p", 0},
		"by the integration": {"it starts the TrainJob", nil, map[string]string{key: "q"}, self, "q", 0},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			after := with(c.after)(h)
			is := h.patched(h.ask(mutatePath, c.user, with(c.before)(h), after), after)
			got, found := is.Annotations[key]
			if !found {
				got = "-"
			}
			others := len(is.Annotations)
			if found {
				others--
			}
			if got != c.want || others != c.others {
				t.Errorf("%s: got %v", c.reason, is.Annotations)
			}
		})
	}
}

// say is a request, and what is to be answered.
type say struct {
	reason, runtime, before, after, user string
	arrange                              func(*harness)
	want                                 string // what the refusal contains; "" allows
	warns                                string
}

func TestMutateRefuses(t *testing.T) {
	const going = "metadata: {deletionTimestamp: '2026-11-23T11:00:00Z', finalizers: [a/b]}\n"
	small := func(l *overrides.Limits) {
		*l = overrides.Limits{Pods: 4, SpecBytes: 2000, Elements: 20, GracePeriodSeconds: 60}
	}
	grace := func(seconds int) string {
		return fmt.Sprintf("spec: {suspend: true, runtimePatches: [{manager: a.com/a, trainingRuntimeSpec: {template: "+
			"{spec: {replicatedJobs: "+
			"[{name: node, template: {spec: {template: {spec: {terminationGracePeriodSeconds: %d}}}}}]}}}}]}", seconds)
	}
	large := entryOf("a.com/a", strings.Repeat("x", 3000), "")
	cases := map[string]say{
		"fine": {"within the limits", "torch", "", grace(60), user, nil, "", ""},
		"too many nodes": {"limits.pods", "torch", "", "spec: {suspend: true, trainer: {numNodes: 5}}", user, nil,
			"spec.trainer.numNodes: Invalid value: 5", ""},
		"too large": {"limits.specBytes", "torch", "", patchesOf(true, large), user, nil, "spec: Invalid value", ""},
		"too slow": {"limits.terminationGracePeriodSeconds", "torch", "", grace(61), user, nil,
			"spec.runtimePatches[a.com/a].trainingRuntimeSpec.template.spec.replicatedJobs[node].template.spec.template.spec." +
				"terminationGracePeriodSeconds", ""},
		"becomes too large": {"an update is measured too", "torch", stopped, patchesOf(true, large), user, nil,
			"spec: Invalid value", ""},
		"was too large": {"a stop doesn't fail by a limit that has changed", "torch", patchesOf(false, large),
			patchesOf(true, large), user, nil, "", ""},
		"by the integration": {"what it writes was computed", "torch", stopped, patchesOf(true, large), self, nil, "", ""},
		"a manager twice": {"an entry is found by its manager", "torch", "", patchesOf(true, entryOf("a.com/a", "1", ""),
			entryOf("a.com/a", "2", "")), user, nil, `spec.runtimePatches[1].manager: Duplicate value: "a.com/a"`, ""},
		"the integration's": {"its history would win over its entry", "torch", "",
			"spec: {suspend: true, templateOverrides: [{manager: kueue.x-k8s.io/manager}]}", user, nil,
			"spec.templateOverrides[0].manager: Forbidden", ""},
		"a directive": {"a merge would take it for an order", "torch", "",
			"spec: {suspend: true, runtimePatches: [{manager: a.com/a, trainingRuntimeSpec: {template: {metadata: {labels: " +
				"{$patch: delete}}}}}]}", user, nil, "a key may not begin with $", ""},
		"goes, and is broken": {"what is being deleted is let go", "torch", going + patchesOf(true, large),
			going + patchesOf(true, large), user, nil, "", ""},
		"is said to go": {"it is reviewed as any other", "torch", "", going + patchesOf(true, large), user, nil,
			"spec: Invalid value", ""},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, small)
			check(t, c, h, h.ask(mutatePath, c.user, h.beforeOf(c), h.trainJob(c.runtime, c.after)))
		})
	}
}
