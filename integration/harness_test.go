package integration_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/webhook"
	webhookadmission "sigs.k8s.io/controller-runtime/pkg/webhook/admission"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/controller/jobframework"

	"github.com/signalbox-dev/signalbox/admission/after"
	"github.com/signalbox-dev/signalbox/admission/avoid"
	configapi "github.com/signalbox-dev/signalbox/api/config/v1alpha1"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	usageapi "github.com/signalbox-dev/signalbox/api/usage/v1alpha1"
	"github.com/signalbox-dev/signalbox/integration"
	"github.com/signalbox-dev/signalbox/overrides"
	"github.com/signalbox-dev/signalbox/overrides/dialect"
	"github.com/signalbox-dev/signalbox/review"
	"github.com/signalbox-dev/signalbox/store"
	"github.com/signalbox-dev/signalbox/store/ledger"
)

const (
	team = "team"
	self = "system:serviceaccount:signalbox:signalbox"
	gpu  = corev1.ResourceName("nvidia.com/gpu")
)

var scheme = func() *runtime.Scheme {
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		clientgoscheme.AddToScheme, api.AddToScheme, jobset.AddToScheme, kueue.AddToScheme, usageapi.AddToScheme,
	} {
		if err := add(s); err != nil {
			panic(err)
		}
	}
	return s
}()

// harness is an API server, and the integration on it. Only it knows how the integration is made.
type harness struct {
	t     *testing.T
	store client.WithWatch // the API server, without what is recorded and injected
	clock *clocktesting.FakeClock
	uids  int

	reconciler *integration.Reconciler
	handlers   map[string]*webhookadmission.Webhook
	jobSets    *store.JobSets
	dialect    *dialect.Dialect
	indexes    []index

	sent    []string         // requests that write, as "verb Kind[/subresource] name"
	bodies  []string         // of the patches among them
	events  []string         // reasons
	fail    map[string]error // by "verb Kind": what the next requests answer
	lose    map[string]error // the same of patches that are carried out
	did     map[string]bool  // the requests that were sent, by "verb Kind"
	shown   map[string]client.Client
	refusal error // of the placement
	pods    pods
	dies    func() error // before each write; nil for never
	room    int32        // how many pods Kueue would admit; 0 for no more than there are
}

// pods is what the placement says of the pods of started TrainJobs, and how often it was asked.
type pods struct {
	refusal, ofJobs error
	asked           int
	more            int32 // that the namespace takes
}

type index struct {
	object  client.Object
	field   string
	extract client.IndexerFunc
}

// IndexField implements client.FieldIndexer.
func (h *harness) IndexField(_ context.Context, o client.Object, field string, extract client.IndexerFunc) error {
	h.indexes = append(h.indexes, index{o, field, extract})
	return nil
}

// Eventf implements events.EventRecorder.
func (h *harness) Eventf(_, _ runtime.Object, _, reason, _, _ string, _ ...any) {
	h.events = append(h.events, reason)
}

// Startable implements integration.Placement.
func (h *harness) Startable(
	context.Context, *api.TrainJob, *trainerapi.TrainingRuntimeSpec, *overrides.Effective,
) error {
	return h.refusal
}

// TakesPods implements integration.Placement.
func (h *harness) TakesPods(context.Context, *api.TrainJob, *jobset.ReplicatedJob) error {
	h.pods.asked++
	return h.pods.refusal
}

// TakesJobs implements integration.Placement.
func (h *harness) TakesJobs(context.Context, *api.TrainJob, *jobset.JobSet, *jobset.ReplicatedJob) error {
	return h.pods.ofJobs
}

// MorePods implements integration.Placement.
func (h *harness) MorePods(_ context.Context, _ *api.TrainJob, _ *jobset.ReplicatedJob, most int32) (int32, error) {
	return min(most, h.pods.more), nil
}

func newHarness(t *testing.T, d *dialect.Dialect, change ...func(*configapi.Configuration)) *harness {
	t.Helper()
	h := &harness{t: t, fail: map[string]error{}, lose: map[string]error{}, did: map[string]bool{},
		shown: map[string]client.Client{},
		// The fake API server stamps deletions with the wall clock.
		clock: clocktesting.NewFakeClock(time.Now().Truncate(time.Second))}
	h.must(jobframework.SetupWorkloadOwnerIndex(t.Context(), h, trainerapi.GroupVersion.WithKind(trainerapi.TrainJobKind)))
	h.must(h.IndexField(t.Context(), &corev1.Pod{}, store.PodIndex, store.PodIndexOf))
	h.must(h.IndexField(t.Context(), &kueue.Workload{}, integration.PriorityIndex, integration.PriorityIndexOf))
	h.must(h.IndexField(t.Context(), &api.TrainJob{}, avoid.Index, avoid.IndexOf))
	h.must(h.IndexField(t.Context(), &api.TrainJob{}, after.Index, after.IndexOf))
	h.must(h.IndexField(t.Context(), &corev1.Pod{}, metav1.ObjectNameField,
		func(o client.Object) []string { return []string{o.GetName()} }))
	h.store = h.serve()
	h.start(d, change...)
	for _, o := range fixtures() {
		h.create(o)
	}
	return h
}

// start makes the integration again, with nothing in its memory.
func (h *harness) start(d *dialect.Dialect, change ...func(*configapi.Configuration)) {
	config := configapi.Default()
	for _, c := range change {
		c(config)
	}
	h.dialect = d
	cached, live := h.client(true), h.client(false)
	kept := store.New(cached, live, h.clock, d == dialect.Bundled)
	h.jobSets = kept.JobSets
	kept.Ledger = ledger.New(live, config.Usage, h.clock)
	l := config.Limits
	limits := overrides.Limits{Pods: l.Pods, SpecBytes: l.SpecBytes, Elements: l.Elements,
		GracePeriodSeconds: l.TerminationGracePeriodSeconds}
	patience := integration.PatienceOf(config)
	patience.Grow.Room = h
	var err error
	h.reconciler, err = integration.NewReconciler(integration.Config{
		Client: cached, Reader: live, Store: kept, Recorder: h, Kueue: &config.Kueue, Limits: limits,
		Patience: patience, Trainer: d, Placement: h, Clock: h.clock,
	})
	h.must(err)
	h.handlers = map[string]*webhookadmission.Webhook{}
	reader := review.Reader{
		Decoder: webhookadmission.NewDecoder(scheme), Trusted: []string{self},
		Limits: review.LimitsFor(l.SpecBytes, l.Elements),
	}
	integration.NewWebhook(h.reconciler, reader).Register(manager{server: h})
}

// manager and server record the handlers of the webhooks.
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
	s.h.handlers[path] = handler.(*webhookadmission.Webhook)
}

func (h *harness) must(err error) {
	h.t.Helper()
	if err != nil {
		h.t.Fatal(err)
	}
}

// name gives an object what the API server does.
func (h *harness) name(o client.Object) {
	if o.GetUID() == "" {
		h.uids++
		o.SetUID(types.UID(fmt.Sprintf("uid-%d", h.uids)))
	}
	if stamp := o.GetCreationTimestamp(); stamp.IsZero() {
		o.SetCreationTimestamp(metav1.NewTime(h.clock.Now()))
	}
}

// create, update, updateStatus and remove are others' writes, which are not recorded.
func (h *harness) create(o client.Object) {
	h.t.Helper()
	h.name(o)
	h.must(h.store.Create(h.t.Context(), o))
}

func (h *harness) update(o client.Object) {
	h.t.Helper()
	h.must(h.store.Update(h.t.Context(), o))
}

func (h *harness) updateStatus(o client.Object) {
	h.t.Helper()
	h.must(h.store.Status().Update(h.t.Context(), o))
}

func (h *harness) remove(o client.Object) {
	h.t.Helper()
	h.must(h.store.Delete(h.t.Context(), o))
}

// freeze makes the cache keep to what it has of a kind; thaw brings it up to date.
func (h *harness) freeze(kind string, list client.ObjectList) {
	h.t.Helper()
	h.must(h.store.List(h.t.Context(), list))
	var objects []client.Object
	h.must(apimeta.EachListItem(list, func(o runtime.Object) error {
		objects = append(objects, o.(client.Object))
		return nil
	}))
	h.shown[kind] = h.serve(objects...)
}

func (h *harness) thaw(kind string) { delete(h.shown, kind) }

// reconcile reconciles a TrainJob, and forgets what was sent before. In whatever state it is, observing it alone writes
// nothing, and asks for nothing by a dry run.
func (h *harness) reconcile(name string) (reconcile.Result, error) {
	h.sent, h.bodies, h.events = nil, nil, nil
	asked := h.pods.asked
	_ = h.reconciler.Observe(h.t.Context(), types.NamespacedName{Namespace: team, Name: name}) // Reconcile fails alike
	if len(h.sent)+len(h.events) > 0 || h.pods.asked != asked {
		h.t.Errorf("observing writes: %v, events %v, %d dry runs", h.sent, h.events, h.pods.asked-asked)
	}
	var errors []string
	result, err := h.reconciler.Reconcile(logged(h.t.Context(), &errors),
		reconcile.Request{NamespacedName: types.NamespacedName{Namespace: team, Name: name}})
	if err == nil && len(errors) > 0 {
		h.t.Errorf("an error is logged, and none is returned: %q", errors)
	}
	return result, err
}

// logged returns a context whose logger adds to errors what is logged as an error. jobframework logs errors that it got
// from a TrainJob, which is not started or not stopped, and returns them; what they mean is decided afterwards.
func logged(ctx context.Context, errors *[]string) context.Context {
	return log.IntoContext(ctx, funcr.New(func(_, args string) {
		isError := !strings.HasPrefix(args, `"level"=`) // only errors have no level
		if isError && !strings.HasPrefix(args, `"msg"="Unsuspending job"`) &&
			!strings.HasPrefix(args, `"msg"="Suspending job with deleted workload"`) {
			*errors = append(*errors, args)
		}
	}, funcr.Options{}))
}

// settle reconciles a TrainJob until nothing is sent any more.
func (h *harness) settle(name string) (events []string) {
	h.t.Helper()
	for range 10 {
		if _, err := h.reconcile(name); err != nil {
			h.t.Fatal(err)
		}
		events = append(events, h.events...)
		if len(h.sent) == 0 {
			return events
		}
	}
	h.t.Fatalf("it writes for ever: %v", h.sent)
	return nil
}

// wrote returns how many requests begin with the text.
func (h *harness) wrote(prefix string) int {
	n := 0
	for _, s := range h.sent {
		if strings.HasPrefix(s, prefix) {
			n++
		}
	}
	return n
}

func (h *harness) trainJob(name string) *api.TrainJob {
	h.t.Helper()
	var job api.TrainJob
	h.must(h.store.Get(h.t.Context(), types.NamespacedName{Namespace: team, Name: name}, &job))
	return &job
}

func (h *harness) workloads() []kueue.Workload {
	h.t.Helper()
	var list kueue.WorkloadList
	h.must(h.store.List(h.t.Context(), &list))
	return list.Items
}

// workload is the only one.
func (h *harness) workload() *kueue.Workload {
	h.t.Helper()
	all := h.workloads()
	if len(all) != 1 {
		h.t.Fatalf("there are %d Workloads, want one", len(all))
	}
	return &all[0]
}

func (h *harness) blocked(name string) string {
	if c := apimeta.FindStatusCondition(h.trainJob(name).Status.Conditions, api.ConditionBlocked); c != nil {
		return c.Reason
	}
	return ""
}

func (h *harness) suspended(name string) bool { return ptr.Deref(h.trainJob(name).Spec.Suspend, false) }
