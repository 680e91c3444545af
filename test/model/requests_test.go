package model

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"

	trainerconfig "github.com/kubeflow/trainer/v2/pkg/apis/config/v1alpha1"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	admissionv1 "k8s.io/api/admission/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/apimachinery/pkg/runtime"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/webhook"
	webhookadmission "sigs.k8s.io/controller-runtime/pkg/webhook/admission"
	"sigs.k8s.io/kueue/pkg/controller/constants"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/integration"
	"github.com/signalbox-dev/signalbox/overrides"
	reviews "github.com/signalbox-dev/signalbox/review"
	"github.com/signalbox-dev/signalbox/store"
	"github.com/signalbox-dev/signalbox/trainer"
	trainerwebhook "github.com/signalbox-dev/signalbox/trainer/webhook"
)

var inputs = flag.Int("inputs", 1000, "random sequences of requests")

const self = "signalbox"

// server records the handlers that webhooks register with a manager.
type server struct {
	ctrl.Manager
	*served
}

func (s server) GetWebhookServer() webhook.Server { return s.served }

type served struct {
	webhook.Server
	handlers map[string]*webhookadmission.Webhook
}

func (s *served) Register(path string, handler http.Handler) {
	if w, ok := handler.(*webhookadmission.Webhook); ok {
		s.handlers[path] = w
	}
}

// chain calls the webhooks for TrainJobs in the API server's order.
type chain struct {
	mutating, validating []*webhookadmission.Webhook
	workloads            *webhookadmission.Webhook
	created, updated     int // by users
	started              int // by the manager
}

func newChain() *chain { return newWorld().chain() }

// chain returns the webhooks of the manager.
func (w *world) chain() *chain {
	s := server{served: &served{handlers: map[string]*webhookadmission.Webhook{}}}
	reader := reviews.Reader{
		Decoder: webhookadmission.NewDecoder(scheme), Trusted: []string{self}, Limits: reviews.LimitsFor(256<<10, 1000),
	}
	integration.NewWebhook(w.manager.integration, reader).Register(s)
	builder, err := trainer.NewBuilder(context.Background(), w.store, &trainerconfig.Configuration{})
	must(err)
	must((&trainerwebhook.Webhook{
		Client: w.store, Live: w.store, Builder: builder, Reader: reader,
		Clock: w.clock, Limits: limits(),
	}).Register(s))
	of := func(paths ...string) (all []*webhookadmission.Webhook) {
		for _, path := range paths {
			if s.handlers[path] == nil {
				panic("nothing is served at " + path)
			}
			all = append(all, s.handlers[path])
		}
		return all
	}
	return &chain{
		mutating:   of("/mutate-trainer-kubeflow-org-v1alpha1-trainjob", "/mutate-trainjob"),
		validating: of("/validate-trainer-kubeflow-org-v1alpha1-trainjob", "/validate-trainjob"),
		workloads:  s.handlers["/mutate-workload"],
	}
}

// request returns what the API server would store, or why it denies the request.
func (c *chain) request(user string, old, sent []byte) (stored []byte, refusal string, err error) {
	request := webhookadmission.Request{AdmissionRequest: admissionv1.AdmissionRequest{
		UID: "request", Operation: admissionv1.Create, Namespace: namespace, Name: "job",
		UserInfo: authenticationv1.UserInfo{Username: user},
	}}
	if old != nil {
		request.Operation, request.OldObject = admissionv1.Update, runtime.RawExtension{Raw: old}
	}
	return review(request, sent, c.mutating, c.validating)
}

// review returns what the API server would store of a request after mutating and validating webhooks, or why it denies
// the request.
func review(request webhookadmission.Request, sent []byte, mutating, validating []*webhookadmission.Webhook) (
	stored []byte, refusal string, err error,
) {
	for i, hook := range slices.Concat(mutating, validating) {
		request.Object = runtime.RawExtension{Raw: sent}
		answer := hook.Handle(context.Background(), request)
		if !answer.Allowed {
			if answer.Result == nil || answer.Result.Message == "" || answer.Result.Code >= 500 {
				return nil, "", fmt.Errorf("refused with %+v", answer.Result)
			}
			return nil, answer.Result.Message, nil
		}
		if len(answer.Patch) == 0 || i >= len(mutating) {
			continue
		}
		patch, err := jsonpatch.DecodePatch(answer.Patch)
		if err != nil {
			return nil, "", err
		}
		if sent, err = patch.Apply(sent); err != nil {
			return nil, "", fmt.Errorf("the patch %s: %w", answer.Patch, err)
		}
	}
	return sent, "", nil
}

// deleting is what a deletion changes of a TrainJob with a finalizer.
const deleting = `{"metadata":{"deletionTimestamp":"2026-01-01T00:00:00Z","finalizers":["example.com/mine"]}}`

// palette are merge patches that users send.
var palette = []string{
	`{"spec":{"suspend":false}}`, `{"spec":{"suspend":true}}`, `{"spec":{"suspend":null}}`, `{"spec":{"runtimePatches":null}}`, `{"spec":{"runtimePatches":[]}}`,
	`{"spec":{"runtimePatches":[{"manager":"a.com/a"}]}}`,
	`{"spec":{"runtimePatches":[{"manager":"kueue.x-k8s.io/manager","trainingRuntimeSpec":{"template":{"spec":{"replicatedJobs":[{"name":"node","template":{"spec":{"template":{"spec":{"nodeSelector":{"pool":"a"}}}}}}]}}}}]}}`,
	`{"spec":{"runtimePatches":[{"manager":"a.com/a","trainingRuntimeSpec":{"template":{"spec":{"replicatedJobs":[{"name":"node","template":{"spec":{"template":{"spec":{"nodeSelector":{"disk":"fast"}}}}}}]}}}},{"manager":"kueue.x-k8s.io/manager"}]}}`,
	`{"spec":{"runtimePatches":[{"manager":"kueue.x-k8s.io/manager"},{"manager":"kueue.x-k8s.io/manager"}]}}`,
	`{"metadata":{"annotations":{"signalbox.dev/runtime":"forged"}}}`, `{"metadata":{"annotations":null}}`, `{"metadata":{"annotations":{"signalbox.dev/runtime":null,"mine":"x"}}}`,
	`{"metadata":{"annotations":{"signalbox.dev/overrides":"{}"}}}`, `{"metadata":{"labels":null}}`, `{"metadata":{"labels":{"kueue.x-k8s.io/queue-name":"queue"}}}`,
	`{"metadata":{"labels":{"kueue.x-k8s.io/queue-name":"other"}}}`, `{"metadata":{"labels":{"kueue.x-k8s.io/queue-name":""}}}`, `{"metadata":{"labels":{"kueue.x-k8s.io/prebuilt-workload-name":"wl"}}}`,
	`{"spec":{"trainer":{"numNodes":2}}}`, `{"spec":{"trainer":{"numNodes":2147483647}}}`, `{"spec":{"trainer":null}}`, `{"spec":{"trainer":{"resourcesPerNode":{"requests":{"nvidia.com/gpu":8}}}}}`,
	`{"spec":{"runtimeRef":{"name":"other"}}}`, `{"spec":{"runtimeRef":{"name":"torch"}}}`, `{"spec":{"managedBy":"kueue.x-k8s.io/multikueue"}}`, `{"spec":null}`,
	`{"metadata":{"ownerReferences":[{"apiVersion":"trainer.kubeflow.org/v1alpha1","kind":"TrainJob","name":"job","uid":"uid","controller":true}]}}`,
	`{"metadata":{"finalizers":["example.com/mine"]}}`,
	`{"spec":{"podTemplateOverrides":[{"targetJobs":[{"name":"node"}],"spec":{"nodeSelector":{"pool":"b"}}}]}}`, `{"spec":{"activeDeadlineSeconds":5}}`,
}

// base is a TrainJob that a user creates.
const base = `{"apiVersion":"trainer.kubeflow.org/v1alpha1","kind":"TrainJob","metadata":{"namespace":"team","name":"job","uid":"uid","labels":{"kueue.x-k8s.io/queue-name":"queue"}},
	"spec":{"runtimeRef":{"apiGroup":"trainer.kubeflow.org","kind":"ClusterTrainingRuntime","name":"torch"},"managedBy":"trainer.kubeflow.org/trainjob-controller","suspend":true}}`

// The manager's writes.
const (
	managerStarts = `[{"op":"add","path":"/metadata/annotations","value":{"signalbox.dev/runtime":"pinned"}},{"op":"add","path":"/spec/suspend","value":false},{"op":"add","path":"/spec/runtimePatches","value":
		[{"manager":"kueue.x-k8s.io/manager","time":"2026-01-01T00:00:00Z","trainingRuntimeSpec":{"template":{"spec":{"replicatedJobs":[{"name":"node","template":{"spec":{"template":{"spec":{"nodeSelector":{"pool":"a"}}}}}}]}}}}]}]`
	managerStops = `[{"op":"add","path":"/spec/suspend","value":true}]`
)

// FuzzRequests sends sequences of requests by users and by the manager through both webhooks. Nothing panics, and every
// denial has a message. No user's request changes the manager's fields: suspend of a queued TrainJob, its entry and its
// pinned runtime. The bytes select the requests; the rest may be sent as a merge patch.
func FuzzRequests(f *testing.F) {
	c := newChain()
	f.Add([]byte{3, 0, 5, 10, 0, 9, 4, 1})
	f.Add([]byte("\x02\x00\x00\x01\x06\x02" + `{"spec":{"runtimePatches":[{}]}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		if says := c.sequence(data); says != "" {
			t.Fatal(says)
		}
	})
}

// TestRequests runs random sequences; FuzzRequests is guided by coverage.
func TestRequests(t *testing.T) {
	c := newChain()
	for i := range *inputs {
		random := rand.New(rand.NewPCG(7, uint64(i)))
		data := make([]byte, 2+random.IntN(24))
		for at := range data {
			data[at] = byte(random.IntN(256))
		}
		if says := c.sequence(data); says != "" {
			t.Fatalf("sequence %d, %v: %s", i, data, says)
		}
	}
	t.Logf("%d sequences: %d TrainJobs created, %d updates by users accepted, %d starts",
		*inputs, c.created, c.updated, c.started)
	if c.created == 0 || c.updated == 0 || c.started == 0 {
		t.Error("no request is accepted, so nothing is tested")
	}
}

// sequence sends the requests that the bytes select, and describes a violation; "" if there is none.
func (c *chain) sequence(data []byte) string {
	var stored []byte
	for len(data) > 0 {
		choice := int(data[0])
		data = data[1:]
		if stored == nil {
			sent := merge(merge([]byte(base), palette[choice%len(palette)]), palette[choice/4%len(palette)])
			if choice%3 == 0 {
				sent = []byte(base)
			}
			created, refusal, err := c.request("user", nil, sent)
			if err != nil {
				return fmt.Sprintf("creating %s: %v", sent, err)
			}
			if refusal == "" {
				if queued(created) && !suspended(created) {
					return "a queued TrainJob is created unsuspended: " + string(created)
				}
				if own(created) != "" || pin(created) != "" {
					return "a user creates the manager's fields: " + string(created)
				}
				stored = created
				c.created++
			}
			continue
		}
		switch {
		case choice%8 == 0 && queued(stored):
			stored = c.managers(stored, managerStarts)
		case choice%8 == 1:
			stored = c.managers(stored, managerStops)
		case choice%8 == 3 && choice > 200:
			stored = merge(stored, deleting)
		case choice%8 == 2 && json.Valid(data):
			return c.users(&stored, merge(stored, string(data)))
		default:
			if says := c.users(&stored,
				merge(merge(stored, palette[choice%len(palette)]), palette[choice/8%len(palette)])); says != "" {
				return says
			}
		}
	}
	return ""
}

// managers sends a request of the manager, and returns what is stored.
func (c *chain) managers(stored []byte, operations string) []byte {
	patch, err := jsonpatch.DecodePatch([]byte(operations))
	must(err)
	sent, err := patch.Apply(stored)
	if err != nil {
		return stored // it has no spec
	}
	after, refusal, err := c.request(self, stored, sent)
	if refusal != "" || err != nil {
		return stored
	}
	if suspended(stored) && !suspended(after) {
		c.started++
	}
	return after
}

// users sends a request of a user.
func (c *chain) users(stored *[]byte, sent []byte) string {
	before := *stored
	after, refusal, err := c.request("user", before, sent)
	switch {
	case err != nil:
		return fmt.Sprintf("updating %s to %s: %v", before, sent, err)
	case refusal != "":
		return ""
	case own(before) != own(after):
		return fmt.Sprintf("the manager's entry changes: %s becomes %s", before, after)
	case pin(before) != pin(after):
		return fmt.Sprintf("the pin changes: %s becomes %s", before, after)
	case queued(before) && queued(after) && suspended(before) && !suspended(after):
		return fmt.Sprintf("a user starts a queued TrainJob: %s becomes %s", before, after)
	case queued(before) && !suspended(before) && !reflect.DeepEqual(entries(before), entries(after)):
		return fmt.Sprintf("entries of a running TrainJob change: %s becomes %s", before, after)
	}
	*stored = after
	c.updated++
	return ""
}

func merge(object []byte, patch string) []byte {
	merged, err := jsonpatch.MergePatch(object, []byte(patch))
	if err != nil {
		return object
	}
	return merged
}

func read(raw []byte) *api.TrainJob {
	tj := &api.TrainJob{}
	if json.Unmarshal(raw, tj) != nil {
		return &api.TrainJob{}
	}
	return tj
}

func queued(raw []byte) bool { return read(raw).Labels[constants.QueueLabel] != "" }

func suspended(raw []byte) bool {
	suspend := read(raw).Spec.Suspend
	return suspend != nil && *suspend
}

func pin(raw []byte) string { return read(raw).Annotations[store.PinAnnotation] }

func entries(raw []byte) []any {
	var object struct {
		Spec struct {
			RuntimePatches []any `json:"runtimePatches"`
		} `json:"spec"`
	}
	if json.Unmarshal(raw, &object) != nil {
		return nil
	}
	return object.Spec.RuntimePatches
}

// own returns the manager's entry; "" if there is none.
func own(raw []byte) string {
	var all []string
	for _, e := range entries(raw) {
		if m, ok := e.(map[string]any); ok && m["manager"] == overrides.Manager {
			text, err := json.Marshal(m)
			must(err)
			all = append(all, string(text))
		}
	}
	return strings.Join(all, ",")
}
