package webhook

import (
	"context"
	"encoding/json"
	"net/http"
	"testing"
	"time"

	trainerconfig "github.com/kubeflow/trainer/v2/pkg/apis/config/v1alpha1"
	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	admissionv1 "k8s.io/api/admission/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/webhook"
	webhookadmission "sigs.k8s.io/controller-runtime/pkg/webhook/admission"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	"sigs.k8s.io/yaml"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides"
	"github.com/signalbox-dev/signalbox/review"
	"github.com/signalbox-dev/signalbox/trainer"
)

const (
	started = "spec: {suspend: false}"
	stopped = "spec: {suspend: true}"
)

// noon is when every harness starts.
var noon = time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)

// harness is the webhooks with a cache and an API server.
type harness struct {
	t     testing.TB
	clock *clocktesting.FakeClock
	store client.WithWatch
	hook  *Webhook
	hooks map[string]*webhook.Admission // by path
	// unread are the errors of reads from the cache, by "Kind name"; hidden are those of objects that it doesn't have yet.
	unread map[string]error
	writes []string
}

func newHarness(t testing.TB, change ...func(*overrides.Limits)) *harness {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, api.AddToScheme, jobset.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	h := &harness{t: t, clock: clocktesting.NewFakeClock(noon), hooks: map[string]*webhook.Admission{},
		unread: map[string]error{}}
	h.store = fake.NewClientBuilder().WithScheme(scheme).Build()
	h.put(h.runtime("torch", "{numNodes: 2, torch: {}}"), h.runtime("mpi", "{numNodes: 2, mpi: {}}"),
		h.runtime("flux", "{numNodes: 2, flux: {numProcPerNode: 1}}"))
	live := h.client(func(string) error { return nil })
	cached := h.client(func(name string) error { return h.unread[name] })
	builder, err := trainer.NewBuilder(t.Context(), live, &trainerconfig.Configuration{})
	if err != nil {
		t.Fatal(err)
	}
	h.hook = &Webhook{
		Client: cached, Live: live, Builder: builder, Clock: h.clock,
		Limits: overrides.Limits{Pods: 5000, SpecBytes: 1 << 20, Elements: 1 << 20, GracePeriodSeconds: 3600},
		Reader: review.Reader{
			Decoder: webhookadmission.NewDecoder(scheme), Trusted: []string{"signalbox"},
			Limits: review.LimitsFor(256<<10, 1000),
		},
	}
	for _, c := range change {
		c(&h.hook.Limits)
	}
	if err := h.hook.Register(hookManager{served: &hookServer{paths: h.hooks}}); err != nil {
		t.Fatal(err)
	}
	return h
}

// client records writes, and reads what read allows.
func (h *harness) client(read func(name string) error) client.WithWatch {
	write := func(verb string, o client.Object) error {
		h.writes = append(h.writes, verb+" "+o.GetName())
		return nil
	}
	return interceptor.NewClient(h.store, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object,
			options ...client.GetOption) error {
			gvk, err := apiutil.GVKForObject(o, h.store.Scheme())
			if err == nil {
				err = read(gvk.Kind + " " + key.Name)
			}
			if err != nil {
				return err
			}
			return c.Get(ctx, key, o, options...)
		},
		Create: func(_ context.Context, _ client.WithWatch, o client.Object, _ ...client.CreateOption) error {
			return write("create", o)
		},
		Update: func(_ context.Context, _ client.WithWatch, o client.Object, _ ...client.UpdateOption) error {
			return write("update", o)
		},
		Patch: func(_ context.Context, _ client.WithWatch, o client.Object, _ client.Patch, _ ...client.PatchOption) error {
			return write("patch", o)
		},
		Delete: func(_ context.Context, _ client.WithWatch, o client.Object, _ ...client.DeleteOption) error {
			return write("delete", o)
		},
	})
}

// hide keeps the cache from showing an object.
func (h *harness) hide(kind, name string) {
	h.unread[kind+" "+name] = apierrors.NewNotFound(schema.GroupResource{}, name)
}

// put stores objects.
func (h *harness) put(objects ...client.Object) {
	h.t.Helper()
	for _, o := range objects {
		if err := h.store.Create(context.Background(), o.DeepCopyObject().(client.Object)); err != nil {
			h.t.Fatal(err)
		}
	}
}

// template is a runtime with an initializer onto a volume, a trainer and a launcher.
const template = `
  spec:
    replicatedJobs:
    - name: dataset-initializer
      replicas: 1
      template:
        metadata: {labels: {trainer.kubeflow.org/trainjob-ancestor-step: dataset-initializer}}
        spec: {template: {spec: {
          volumes: [{name: initializer, persistentVolumeClaim: {claimName: data}}],
          containers: [{name: dataset-initializer, image: init, volumeMounts: [{name: initializer, mountPath: /workspace}]}]}}}
    - name: node
      replicas: 1
      dependsOn: [{name: dataset-initializer, status: Complete}]
      template:
        metadata: {labels: {trainer.kubeflow.org/trainjob-ancestor-step: trainer}}
        spec: {template: {spec: {containers: [{name: node, image: train}, {name: sidecar, image: side}]}}}
    - name: launcher
      replicas: 1
      template: {spec: {template: {spec: {containers: [{name: node, image: launch}]}}}}
`

// runtime is a TrainingRuntime with an ML policy.
func (h *harness) runtime(name, policy string) *api.TrainingRuntime {
	h.t.Helper()
	rt := &api.TrainingRuntime{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}
	if err := yaml.UnmarshalStrict([]byte("mlPolicy: "+policy+"\ntemplate:"+template), &rt.Spec); err != nil {
		h.t.Fatal(err)
	}
	return rt
}

// trainJob is TrainJob ns/job on a runtime, changed by YAML.
func (h *harness) trainJob(runtime, text string) *api.TrainJob {
	h.t.Helper()
	job := &api.TrainJob{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "job", UID: "uid", Generation: 3}}
	job.Spec.RuntimeRef = trainerapi.RuntimeRef{
		APIGroup: &trainerapi.GroupVersion.Group, Kind: ptr.To(trainerapi.TrainingRuntimeKind), Name: runtime,
	}
	if err := yaml.UnmarshalStrict([]byte(text), job); err != nil {
		h.t.Fatal(err)
	}
	return job
}

// active is a JobSet that a TrainJob controls, and of which two Jobs are active.
func active(job *api.TrainJob) *jobset.JobSet {
	js := &jobset.JobSet{ObjectMeta: metav1.ObjectMeta{Namespace: job.Namespace, Name: job.Name,
		OwnerReferences: []metav1.OwnerReference{
			*metav1.NewControllerRef(job, trainerapi.GroupVersion.WithKind(trainerapi.TrainJobKind))}}}
	js.Status.ReplicatedJobsStatus = []jobset.ReplicatedJobStatus{{Name: "node", Active: 2}}
	return js
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// Paths of the webhooks.
const (
	mutatePath         = "/mutate-trainer-kubeflow-org-v1alpha1-trainjob"
	validatePath       = "/validate-trainer-kubeflow-org-v1alpha1-trainjob"
	runtimePath        = "/validate-trainer-kubeflow-org-v1alpha1-trainingruntime"
	clusterRuntimePath = "/validate-trainer-kubeflow-org-v1alpha1-clustertrainingruntime"
)

// ask sends a request to the webhook at a path; before is nil on creation.
func (h *harness) ask(path, user string, before, after any) webhookadmission.Response {
	h.t.Helper()
	request := webhookadmission.Request{AdmissionRequest: admissionv1.AdmissionRequest{
		UID: "request", Operation: admissionv1.Create, Namespace: "ns", Name: "job", Object: h.raw(after),
		UserInfo: authenticationv1.UserInfo{Username: user},
	}}
	if before != nil {
		request.Operation, request.OldObject = admissionv1.Update, h.raw(before)
	}
	hook, found := h.hooks[path]
	if !found {
		h.t.Fatalf("nothing is served at %s", path)
	}
	return hook.Handle(context.Background(), request)
}

// raw is an object as a request holds it. A string stands for itself.
func (h *harness) raw(content any) runtime.RawExtension {
	h.t.Helper()
	if text, ok := content.(string); ok {
		return runtime.RawExtension{Raw: []byte(text)}
	}
	o := content.(client.Object).DeepCopyObject().(client.Object)
	gvk, err := apiutil.GVKForObject(o, h.store.Scheme())
	if err != nil {
		h.t.Fatal(err)
	}
	o.GetObjectKind().SetGroupVersionKind(gvk)
	return runtime.RawExtension{Raw: must(json.Marshal(o))}
}

// hookManager is a manager for what registers webhooks.
type hookManager struct {
	ctrl.Manager
	served *hookServer
}

func (m hookManager) GetWebhookServer() webhook.Server { return m.served }

type hookServer struct {
	webhook.Server
	paths map[string]*webhook.Admission
}

func (s *hookServer) Register(path string, hook http.Handler) {
	s.paths[path] = hook.(*webhook.Admission)
}
