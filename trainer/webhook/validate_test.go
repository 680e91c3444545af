package webhook

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	webhookadmission "sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/store"
)

func (h *harness) beforeOf(c say) any {
	if c.arrange != nil {
		c.arrange(h)
	}
	if c.before == "" {
		return nil
	}
	return h.trainJob(c.runtime, c.before)
}

func check(t *testing.T, c say, h *harness, answer webhookadmission.Response) {
	t.Helper()
	if answer.UID != "request" {
		t.Errorf("the answer is to the request: got %q", answer.UID)
	}
	switch {
	case c.want == "" && !answer.Allowed:
		t.Errorf("%s: refused: %+v", c.reason, answer.Result)
	case c.want != "" && (answer.Allowed || !strings.Contains(answer.Result.Message, c.want)):
		t.Errorf("%s: got allowed %t, %+v; want %q", c.reason, answer.Allowed, answer.Result, c.want)
	}
	if got := strings.Join(answer.Warnings, "; "); c.warns == "" != (got == "") || !strings.Contains(got, c.warns) {
		t.Errorf("%s: warns %q, want %q", c.reason, got, c.warns)
	}
	if len(h.writes) > 0 {
		t.Errorf("a webhook writes nothing: got %q", h.writes)
	}
}

func TestValidate(t *testing.T) {
	runs := func(h *harness) {
		h.put(active(h.trainJob("torch", stopped)))
	}
	others := func(h *harness) {
		other := h.trainJob("torch", stopped)
		other.UID = "other"
		h.put(active(other))
	}
	down := func(kind string) func(*harness) {
		return func(h *harness) {
			for _, name := range []string{"torch", "job"} {
				h.unread[kind+" "+name] = apierrors.NewServiceUnavailable("down")
			}
		}
	}
	hidden := func(h *harness) { h.hide("TrainingRuntime", "torch") }
	bare := func(h *harness) {
		rt := h.runtime("bare", "{torch: {}}")
		rt.Spec.Template.Spec.ReplicatedJobs[1].Template.Labels = nil
		h.put(rt)
	}
	deprecated := func(h *harness) {
		rt := &api.ClusterTrainingRuntime{ObjectMeta: metav1.ObjectMeta{Name: "old",
			Labels: map[string]string{"trainer.kubeflow.org/support": "deprecated"}}}
		rt.Spec = h.runtime("old", "{torch: {}}").Spec
		h.put(rt)
	}
	pin := "metadata: {annotations: {signalbox.dev/runtime: '" + must(store.Pin(&(&harness{t: t}).runtime("pinned",
		"{numNodes: 2, torch: {}}").Spec)) + "'}}\n"
	const forged, mode = "metadata: {annotations: {signalbox.dev/runtime: x}}\n",
		"metadata: {annotations: {signalbox.dev/gang-scheduling: always}}\n"
	one, two := entryOf("a.com/a", "1", ""), entryOf("a.com/a", "2", "")
	const history = "spec: {suspend: true, templateOverrides: [{manager: a.com/a, job: [%s]}]}"
	const wrote = "{metadata: {labels: {a: b}}, time: '2026-11-23T10:00:00Z'}"
	const goes = "metadata: {deletionTimestamp: '2026-11-23T11:00:00Z', finalizers: [a/b]}\n"
	many := "spec: {suspend: true, trainer: {numNodes: 6000}}"
	cases := map[string]say{
		"created": {"an entry for a job that is there", "torch", "", patchesOf(true, one), user, nil, "", ""},
		"two that differ": {"the later wins, which is said", "torch", "", patchesOf(true, one,
			entryOf("a.com/b", "2", "")), user, nil, "", "the later entry, of a.com/b, takes precedence"},
		"without a place": {"a field without effect is said", "bare", "", "spec: {trainer: {image: mine}}", user, bare, "",
			`no effect on runtime "bare": spec.trainer.image; no ReplicatedJob of it has label`},
		"without a place, before": {"it was said at its creation", "bare", "spec: {trainer: {image: mine}}",
			"spec: {trainer: {image: mine}, suspend: true}", user, bare, "", ""},
		"with a place": {"it has an effect", "torch", "", "spec: {trainer: {image: mine, numNodes: 3, numProcPerNode: 2}, " +
			"initializer: {dataset: {storageUri: 'hf://a/b'}}}", user, nil, "", ""},
		"too many pods": {"limits.pods", "torch", "", many, user, nil, "a TrainJob may have at most 5000 pods", ""},
		"no such job": {"what the runtime has is said", "torch", "", strings.ReplaceAll(patchesOf(true, one),
			"name: node", "name: nodes"), user, nil, `Unsupported value: "nodes": runtime "torch" has no such replicatedJob`,
			""},
		"no runtime": {"create it before", "missing", "", "{}", user, nil,
			`there is no TrainingRuntime "missing" in namespace "ns"; create it before the TrainJob`, ""},
		"runtime not cached": {"it was made a moment ago", "torch", "", "{}", user, hidden, "", ""},
		"runtime not read": {"the answer is an error, not a refusal", "torch", "", "{}", user, down("TrainingRuntime"),
			"down", ""},
		"an unknown kind": {"what there is is said", "torch", "", "spec: {runtimeRef: {name: x, kind: Other}}", user, nil,
			`spec.runtimeRef.kind: Unsupported value: "Other.trainer.kubeflow.org"`, ""},
		"deprecated": {"it goes in a future release", "old", "", "spec: {runtimeRef: {kind: " +
			"ClusterTrainingRuntime, name: old}}", user, deprecated, "", `ClusterTrainingRuntime "old" is deprecated`},
		"reserved variables": {"Trainer's plugins are asked", "torch", "", "spec: {trainer: {env: [{name: PET_NNODES, " +
			"value: x}]}}", user, nil, "must not have reserved envs", ""},
		"brings a pin": {"what is pinned is run", "torch", "", forged, user, nil,
			"metadata.annotations[signalbox.dev/runtime]: Forbidden: Signalbox alone writes this annotation", ""},
		"changes the pin": {"what is pinned is run", "torch", pin + stopped, forged + stopped, user, nil,
			"metadata.annotations[signalbox.dev/runtime]: Forbidden", ""},
		"pinned by us": {"it starts", "torch", stopped, pin + started, self, nil, "", ""},
		"pinned, no runtime": {"it is checked by what it is pinned to", "missing", pin + stopped, pin + patchesOf(true, one),
			user, nil, "", ""},
		"a forged pin": {"it can't be read", "torch", forged + stopped, forged + patchesOf(true, one), user, nil,
			"it was not written by Signalbox", ""},
		"no such mode": {"path, value and what there is", "torch", "", mode, user, nil,
			"metadata.annotations[signalbox.dev/gang-scheduling]: Unsupported value", ""},
		"no such mode before": {"an update of something else is let through", "torch", mode + started, mode + stopped, user,
			nil, "", ""},
		"no such mode now": {"it is refused when it comes", "torch", stopped, mode + stopped, user, nil,
			"Unsupported value", ""},
		"frozen": {"it is made of something", "torch", "spec: {suspend: false}",
			"spec: {suspend: false, trainer: {numNodes: 3}}", user, nil,
			"spec.trainer: Forbidden: it can't change while the TrainJob runs", ""},
		"thawed": {"suspended before and after", "torch", stopped,
			"spec: {suspend: true, trainer: {numNodes: 3}}", user, nil, "", ""},
		"thawed too much": {"it is measured as on its creation", "torch", stopped, many, user, nil,
			"a TrainJob may have at most 5000 pods", ""},
		"starts and changes": {"not in the update that starts it", "torch", stopped,
			"spec: {suspend: false, trainer: {numNodes: 3}}", user, nil, "spec.trainer: Forbidden", ""},
		"entry while it runs": {"suspend it before", "torch", patchesOf(false, one), patchesOf(false, two), user, nil,
			"spec.runtimePatches: Forbidden: the entry of a.com/a can't change while the TrainJob runs", ""},
		"entry with the stop": {"in the same update", "torch", patchesOf(false, one), patchesOf(true, two), user, nil, "",
			""},
		"entry while active": {"the last run has not stopped", "torch", patchesOf(true, one), patchesOf(true, two), user,
			runs, `replicatedJob "node" of the last run is still active (2)`, ""},
		"another's JobSet": {"it is not of the TrainJob", "torch", patchesOf(true, one), patchesOf(true, two), user,
			others, "", ""},
		"JobSet not read": {"whether it runs isn't known", "torch", patchesOf(true, one), patchesOf(true, two), user,
			down("JobSet"), "down", ""},
		"we start it": {"our entry was computed", "missing", stopped, patchesOf(false,
			entryOf("kueue.x-k8s.io/manager", "1", "")), self, nil, "", ""},
		"we change what runs": {"the contract holds for all", "torch", patchesOf(false,
			entryOf("kueue.x-k8s.io/manager", "1", "")), patchesOf(false, entryOf("kueue.x-k8s.io/manager", "2", "")), self, nil,
			"can't change while the TrainJob runs", ""},
		"stopped": {"a stop needs no runtime", "missing", started, stopped, user, nil, "", ""},
		"history grows": {"entries may be added", "torch", fmt.Sprintf(history, wrote),
			fmt.Sprintf(history, wrote+", {metadata: {labels: {a: c}}}"), user, nil, "", "templateOverrides"},
		"history is rewritten": {"what was is not changed", "torch", fmt.Sprintf(history, wrote),
			fmt.Sprintf(history, "{metadata: {labels: {a: c}}}"), user, nil, "is history: it can't be changed, moved or removed",
			""},
		"goes":          {"it is let go", "missing", goes + forged, goes + forged, user, nil, "", ""},
		"created going": {"it is reviewed as any other", "missing", "", goes, user, nil, "create it before the TrainJob", ""},
		"going, and changed": {"a deletion is no way around", "torch", goes + patchesOf(false, one), goes +
			patchesOf(false, two), user, nil, "can't change while the TrainJob runs", ""},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			if strings.Contains(c.before, "metadata: {annotations") && strings.Contains(c.before, goes) {
				c.before, c.after = merged(c.before), merged(c.after)
			}
			check(t, c, h, h.ask(validatePath, c.user, h.beforeOf(c), h.trainJob(c.runtime, c.after)))
		})
	}
}

// merged joins the metadata of two fragments.
func merged(text string) string {
	return strings.NewReplacer("finalizers: [a/b]}\n", "finalizers: [a/b], ", "metadata: {annotations",
		"annotations").Replace(text)
}

// A refusal lists its fields in one order.
func TestFrozenFieldsAreToldInOneOrder(t *testing.T) {
	h := newHarness(t)
	after := h.trainJob("mpi", "spec: {suspend: false, activeDeadlineSeconds: 5, managedBy: kueue.x-k8s.io/multikueue, "+
		"trainer: {numNodes: 3}}")
	first := ""
	for range 100 {
		answer := h.ask(validatePath, user, h.trainJob("torch", started), after)
		if answer.Allowed {
			t.Fatal("frozen fields were changed")
		}
		if first == "" {
			first = answer.Result.Message
		}
		if answer.Result.Message != first {
			t.Fatalf("once it is\n%s\nonce\n%s", first, answer.Result.Message)
		}
	}
}

// What isn't a TrainJob is a bad request, and no panic.
func TestMalformed(t *testing.T) {
	h := newHarness(t)
	fine := h.trainJob("torch", stopped)
	for _, path := range []string{mutatePath, validatePath, runtimePath, clusterRuntimePath} {
		for _, broken := range []string{"{", "[]", "null x", `{"spec":7}`, `{"metadata":{"annotations":[]}}`, `"text"`} {
			if answer := h.ask(path, user, nil, broken); answer.Allowed || answer.Result.Code != http.StatusBadRequest {
				t.Errorf("%s: %s is answered by %+v", path, broken, answer.Result)
			}
			if path != mutatePath && path != validatePath {
				continue
			}
			if answer := h.ask(path, user, broken, fine); answer.Allowed || answer.Result.Code != http.StatusBadRequest {
				t.Errorf("%s: a TrainJob that was %s is answered by %+v", path, broken, answer.Result)
			}
		}
		if answer := h.ask(path, user, nil, ""); answer.Allowed || answer.Result.Code != http.StatusBadRequest {
			t.Errorf("%s: nothing is answered by %+v", path, answer.Result)
		}
	}
}

// A TrainJob without a namespace is of the request's.
func TestNamespaceOfTheRequest(t *testing.T) {
	h := newHarness(t)
	job := h.trainJob("torch", "{}")
	job.Namespace = ""
	if answer := h.ask(validatePath, user, nil, job); !answer.Allowed {
		t.Errorf("its runtime is found: got %+v", answer.Result)
	}
}

// What was admitted keeps its times when it is validated.
func TestMutatedIsValid(t *testing.T) {
	h := newHarness(t)
	after := h.trainJob("torch", patchesOf(true, entryOf("a.com/a", "1", "")))
	is := h.patched(h.ask(mutatePath, user, nil, after), after)
	if answer := h.ask(validatePath, user, nil, is); !answer.Allowed {
		t.Errorf("got %+v", answer.Result)
	}
	h.clock.Step(time.Hour)
	if answer := h.ask(mutatePath, user, is, is); !answer.Allowed || len(answer.Patch) != 0 {
		t.Errorf("nothing has changed: got %+v", answer)
	}
}

func TestRuntimeValidators(t *testing.T) {
	h := newHarness(t)
	const label = "trainer.kubeflow.org/webhook-validation"
	type change func(*api.TrainingRuntime)
	fine := func(*api.TrainingRuntime) {}
	invalid := func(rt *api.TrainingRuntime) {
		rt.Spec.Template.Spec.ReplicatedJobs = slices.Clone(rt.Spec.Template.Spec.ReplicatedJobs)
		rt.Spec.Template.Spec.ReplicatedJobs[0].Replicas = 2
	}
	unknown := func(rt *api.TrainingRuntime) { rt.Annotations = map[string]string{api.GangPolicyAnnotation: "none"} }
	more := func(rt *api.TrainingRuntime) { unknown(rt); rt.Annotations["a"] = "b" }
	disabled := func(c change) change {
		return func(rt *api.TrainingRuntime) { c(rt); rt.Labels = map[string]string{label: "disabled"} }
	}
	cases := map[string]struct {
		reason        string
		before, after change
		want          string
	}{
		"created":                   {"it is fine", nil, fine, ""},
		"updated":                   {"it is fine", fine, fine, ""},
		"invalid":                   {"Trainer's own code says so", nil, invalid, "replicas"},
		"becomes invalid":           {"Trainer's own code says so", fine, invalid, "replicas"},
		"invalid, disabled":         {"the runtimes that Trainer ships carry the label", nil, disabled(invalid), ""},
		"becomes invalid, disabled": {"the runtimes that Trainer ships carry the label", fine, disabled(invalid), ""},
		"an unknown policy": {"path, value and what there is", nil, unknown,
			"metadata.annotations[signalbox.dev/gang-scheduling-policy]: Unsupported value"},
		"an unknown policy, now":      {"it is refused when it comes", fine, unknown, "Unsupported value"},
		"an unknown policy of before": {"an update of something else is let through", unknown, unknown, ""},
		"an unknown policy, and more": {"a change of annotations is checked", unknown, more, "Unsupported value"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			for _, path := range []string{runtimePath, clusterRuntimePath} {
				of := func(c change) any {
					if c == nil {
						return nil
					}
					rt := h.runtime("rt", "{torch: {}}")
					c(rt)
					if path == runtimePath {
						return rt
					}
					return &api.ClusterTrainingRuntime{ObjectMeta: metav1.ObjectMeta{Name: rt.Name, Labels: rt.Labels,
						Annotations: rt.Annotations}, Spec: rt.Spec}
				}
				if path == runtimePath && name == "becomes invalid" {
					continue // Trainer v2.3.0's TrainingRuntimeValidator takes every update
				}
				answer := h.ask(path, user, of(c.before), of(c.after))
				if c.want == "" && !answer.Allowed || c.want != "" && (answer.Allowed ||
					!strings.Contains(answer.Result.Message, c.want)) {
					t.Errorf("%s: %s: got allowed %t, %+v; want %q", path, c.reason, answer.Allowed, answer.Result, c.want)
				}
			}
		})
	}
}

// TrainJobs of another controller are validated as all are.
func TestManagedByAnotherIsValidated(t *testing.T) {
	h := newHarness(t)
	job := h.trainJob("missing", "{}")
	job.Spec.ManagedBy = ptr.To("kueue.x-k8s.io/multikueue")
	if answer := h.ask(validatePath, user, nil, job); answer.Allowed {
		t.Error("its runtime is missing")
	}
}

// TestStoredAnnotations holds that an annotation that was stored under other rules keeps nobody from a stop.
func TestStoredAnnotations(t *testing.T) {
	for _, stored := range []string{
		api.CheckpointWithinAnnotation + ": soon", api.StalledAfterAnnotation + ": soon", api.RestartsAnnotation + ": many",
		api.GangModeAnnotation + ": always",
	} {
		h := newHarness(t)
		before := h.trainJob("torch", "metadata: {annotations: {"+stored+"}}\n"+started)
		after := before.DeepCopy()
		after.Annotations[api.StopAnnotation] = ""
		if answer := h.ask(validatePath, user, before, after); !answer.Allowed {
			t.Errorf("%s: a stop is rejected: %s", stored, answer.Result.Message)
		}
	}
}
