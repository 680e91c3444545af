package webhook

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	admissionv1 "k8s.io/api/admission/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/webhook"
	webhookadmission "sigs.k8s.io/controller-runtime/pkg/webhook/admission"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/controller/constants"
	"sigs.k8s.io/kueue/pkg/features"

	configapi "github.com/signalbox-dev/signalbox/api/config/v1alpha1"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/integration/managed"
	"github.com/signalbox-dev/signalbox/overrides"
	"github.com/signalbox-dev/signalbox/overrides/dialect"
	"github.com/signalbox-dev/signalbox/review"
	"github.com/signalbox-dev/signalbox/store"
)

const (
	team = "team"
	self = "system:serviceaccount:signalbox:signalbox"
)

var trainers = map[string]*dialect.Dialect{
	"bundled": dialect.Bundled, "v2.3": dialect.Kubeflow23, "v2.2": dialect.Kubeflow22,
	"v2.1": dialect.Kubeflow21, "v2.0": dialect.Kubeflow20,
}

// reviewsOf returns the reviews for a Trainer.
func reviewsOf(d *dialect.Dialect) Reviews {
	switch {
	case d == dialect.Bundled:
		return Bundled()
	case d.Keyed():
		return Keyed(d.Name)
	}
	return Lists(d.List)
}

var scheme = func() *runtime.Scheme {
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		clientgoscheme.AddToScheme, api.AddToScheme, jobset.AddToScheme, kueue.AddToScheme,
	} {
		if err := add(s); err != nil {
			panic(err)
		}
	}
	return s
}()

// harness is an API server, and the webhook on it.
type harness struct {
	t        *testing.T
	store    client.WithWatch
	fail     map[string]error // what the next reads answer, by "verb Kind"
	handlers map[string]*webhook.Admission
}

// newHarness returns one for a Trainer. Users are recorded if the change turns usage on.
func newHarness(t *testing.T, d *dialect.Dialect, change ...func(*configapi.Configuration)) *harness {
	t.Helper()
	config := configapi.Default()
	for _, c := range change {
		c(config)
	}
	h := &harness{t: t, fail: map[string]error{}, handlers: map[string]*webhook.Admission{}}
	failing := func(verb string, o runtime.Object) error {
		kind, err := apiutil.GVKForObject(o, scheme)
		if err != nil {
			return err
		}
		return h.fail[verb+" "+strings.TrimSuffix(kind.Kind, "List")]
	}
	h.store = fake.NewClientBuilder().WithScheme(scheme).WithIndex(&corev1.Pod{}, metav1.ObjectNameField,
		func(o client.Object) []string { return []string{o.GetName()} }).WithInterceptorFuncs(interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object,
			opts ...client.GetOption) error {
			if err := failing("get", o); err != nil {
				return err
			}
			return c.Get(ctx, key, o, opts...)
		},
		List: func(ctx context.Context, c client.WithWatch, l client.ObjectList, opts ...client.ListOption) error {
			if err := failing("list", l); err != nil {
				return err
			}
			return c.List(ctx, l, opts...)
		},
	}).Build()
	h.create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: team, Labels: map[string]string{
		corev1.LabelMetadataName: team}}})
	policy, err := managed.PolicyOf(&config.Kueue)
	if err != nil {
		t.Fatal(err)
	}
	l := config.Limits
	gates, set := config.Kueue.FeatureGates[string(features.AdmissionGatedBy)]
	New(Config{
		Queues: managed.New(h.store, h.store, policy), Policy: policy, OwnerIdentities: config.Kueue.OwnerIdentities,
		Pods: store.NewPods(h.store, h.store), Defaults: h.store, Reviews: reviewsOf(d), Signs: config.Usage.Enabled,
		Gates: gates || !set,
		Reader: review.Reader{Decoder: webhookadmission.NewDecoder(scheme), Trusted: []string{self},
			Limits: review.LimitsFor(l.SpecBytes, l.Elements)},
		Limits: overrides.Limits{Pods: l.Pods, SpecBytes: l.SpecBytes, Elements: l.Elements,
			GracePeriodSeconds: l.TerminationGracePeriodSeconds},
	}).Register(manager{server: h})
	return h
}

// manager and server record the handlers of the webhook.
type manager struct {
	ctrl.Manager
	server *harness
}

type server struct {
	webhook.Server
	h *harness
}

func (m manager) GetWebhookServer() webhook.Server { return server{h: m.server} }

func (s server) Register(path string, handler http.Handler) {
	s.h.handlers[path] = handler.(*webhook.Admission)
}

func (h *harness) create(o client.Object) {
	h.t.Helper()
	if err := h.store.Create(h.t.Context(), o); err != nil {
		h.t.Fatal(err)
	}
}

// ask sends a request; the objects are JSON, old is "" on creation.
func (h *harness) ask(path, user, old, sent string) webhookadmission.Response {
	h.t.Helper()
	request := webhookadmission.Request{AdmissionRequest: admissionv1.AdmissionRequest{UID: "request",
		Operation: admissionv1.Create, Namespace: team, Name: "job",
		UserInfo: authenticationv1.UserInfo{Username: user}, Object: runtime.RawExtension{Raw: []byte(sent)}}}
	if old != "" {
		request.Operation, request.OldObject = admissionv1.Update, runtime.RawExtension{Raw: []byte(old)}
	}
	if h.handlers[path] == nil {
		h.t.Fatalf("nothing is served at %s", path)
	}
	return h.handlers[path].Handler.Handle(h.t.Context(), request)
}

// patches returns the sorted operations of an answer, as "op path value".
func patches(t *testing.T, answer webhookadmission.Response) []string {
	t.Helper()
	var all []string
	for _, o := range answer.Patches {
		value := ""
		if o.Value != nil {
			value = encoded(t, o.Value)
		}
		all = append(all, strings.TrimSpace(o.Operation+" "+o.Path+" "+value))
	}
	slices.Sort(all)
	return all
}

func encoded(t *testing.T, o any) string {
	t.Helper()
	body, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

// newTrainJob is one as the webhook leaves it.
func newTrainJob() *api.TrainJob {
	return &api.TrainJob{
		ObjectMeta: metav1.ObjectMeta{Namespace: team, Name: "job", Labels: map[string]string{constants.QueueLabel: "queue"}},
		Spec: api.TrainJobSpec{TrainJobSpec: trainerapi.TrainJobSpec{
			RuntimeRef: trainerapi.RuntimeRef{Name: "torch"}, Suspend: ptr.To(true),
		}},
	}
}
