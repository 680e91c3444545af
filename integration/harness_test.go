package integration_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	admissionv1 "k8s.io/api/admission/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/webhook"
	webhookadmission "sigs.k8s.io/controller-runtime/pkg/webhook/admission"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/controller/constants"
	"sigs.k8s.io/kueue/pkg/controller/jobframework"
	"sigs.k8s.io/kueue/pkg/workload"

	"github.com/signalbox-dev/signalbox/admission"
	configapi "github.com/signalbox-dev/signalbox/api/config/v1alpha1"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/integration"
	"github.com/signalbox-dev/signalbox/overrides"
	"github.com/signalbox-dev/signalbox/store"
)

const (
	team = "team"
	self = "system:serviceaccount:signalbox:signalbox"
	gpu  = corev1.ResourceName("nvidia.com/gpu")
)

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

// harness is an API server, and the integration on it. Only it knows how the integration is made.
type harness struct {
	t     *testing.T
	store client.WithWatch // the API server, without what is recorded and injected
	clock *clocktesting.FakeClock
	uids  int

	reconciler *integration.Reconciler
	handlers   map[string]*webhookadmission.Webhook
	jobSets    *store.JobSets
	dialect    overrides.Dialect
	indexes    []index

	sent    []string         // requests that write, as "verb Kind[/subresource] name"
	bodies  []string         // of the patches among them
	events  []string         // reasons
	fail    map[string]error // by "verb Kind": what the next requests answer
	shown   map[string]client.Client
	refusal *admission.BlockedError // of the placement
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
	if h.refusal != nil {
		return h.refusal
	}
	return nil
}

func newHarness(t *testing.T, d overrides.Dialect, change ...func(*configapi.Configuration)) *harness {
	t.Helper()
	h := &harness{t: t, fail: map[string]error{}, shown: map[string]client.Client{},
		// The fake API server stamps deletions with the wall clock.
		clock: clocktesting.NewFakeClock(time.Now().Truncate(time.Second))}
	h.must(jobframework.SetupWorkloadOwnerIndex(t.Context(), h, trainerapi.GroupVersion.WithKind(trainerapi.TrainJobKind)))
	h.must(h.IndexField(t.Context(), &corev1.Pod{}, store.PodIndex, store.PodIndexOf))
	h.store = h.serve()
	h.start(d, change...)
	for _, o := range fixtures() {
		h.create(o)
	}
	return h
}

// start makes the integration anew, with nothing in its memory.
func (h *harness) start(d overrides.Dialect, change ...func(*configapi.Configuration)) {
	config := configapi.Default()
	for _, c := range change {
		c(config)
	}
	h.dialect = d
	cached, live := h.client(true), h.client(false)
	kept := store.New(cached, live, h.clock, d == overrides.Bundled)
	h.jobSets = kept.JobSets
	l := config.Limits
	limits := overrides.Limits{Pods: l.Pods, SpecBytes: l.SpecBytes, Elements: l.Elements,
		GracePeriodSeconds: l.TerminationGracePeriodSeconds}
	var err error
	h.reconciler, err = integration.NewReconciler(integration.Config{
		Client: cached, Reader: live, Store: kept, Recorder: h, Kueue: &config.Kueue, Limits: limits,
		PodsWithin: config.Limits.PodsWithin.Duration, Installed: integration.NewInstalled(d, h.clock), Placement: h,
		Clock: h.clock,
	})
	h.must(err)
	h.handlers = map[string]*webhookadmission.Webhook{}
	integration.NewWebhook(h.reconciler, webhookadmission.NewDecoder(scheme), []string{self}).Register(manager{server: h})
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

func (h *harness) serve(objects ...client.Object) client.WithWatch {
	b := fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).
		WithStatusSubresource(&api.TrainJob{}, &kueue.Workload{}, &jobset.JobSet{}, &batchv1.Job{}, &corev1.Pod{})
	for _, i := range h.indexes {
		b = b.WithIndex(i.object, i.field, i.extract)
	}
	return b.Build()
}

func kindOf(o runtime.Object) string {
	if kind := o.GetObjectKind().GroupVersionKind().Kind; kind != "" {
		return strings.TrimSuffix(kind, "List")
	}
	return strings.TrimSuffix(reflect.TypeOf(o).Elem().Name(), "List")
}

// client is the API server for the integration. The cached one reads what freeze has kept.
func (h *harness) client(cached bool) client.Client {
	write := func(verb, sub string, o client.Object, dry []string, patch client.Patch) error {
		if len(dry) > 0 {
			return nil
		}
		what := verb + " " + kindOf(o) + sub
		h.sent = append(h.sent, what+" "+o.GetName())
		if patch != nil {
			body, err := patch.Data(o)
			if err != nil {
				return err
			}
			h.bodies = append(h.bodies, string(body))
		}
		return h.fail[what]
	}
	reads := func(kind string, c client.Client) client.Client {
		if shown := h.shown[kind]; cached && shown != nil {
			return shown
		}
		return c
	}
	return interceptor.NewClient(h.store, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object,
			opts ...client.GetOption) error {
			if err := h.fail["get "+kindOf(o)]; err != nil {
				return err
			}
			return reads(kindOf(o), c).Get(ctx, key, o, opts...)
		},
		List: func(ctx context.Context, c client.WithWatch, l client.ObjectList, opts ...client.ListOption) error {
			if err := h.fail["list "+kindOf(l)]; err != nil {
				return err
			}
			return reads(kindOf(l), c).List(ctx, l, opts...)
		},
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			asked := (&client.CreateOptions{}).ApplyOptions(opts)
			if err := write("create", "", o, asked.DryRun, nil); err != nil {
				return err
			}
			h.name(o)
			return c.Create(ctx, o, opts...)
		},
		Update: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.UpdateOption) error {
			if err := write("update", "", o, nil, nil); err != nil {
				return err
			}
			return c.Update(ctx, o, opts...)
		},
		Delete: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
			if err := write("delete", "", o, nil, nil); err != nil {
				return err
			}
			return c.Delete(ctx, o, opts...)
		},
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch,
			opts ...client.PatchOption) error {
			if err := write("patch", "", o, nil, p); err != nil {
				return err
			}
			if kindOf(o) == "TrainJob" && !h.dialect.Keyed() {
				return h.rendered(ctx, o, func() error { return c.Patch(ctx, o, p, opts...) })
			}
			return c.Patch(ctx, o, p, opts...)
		},
		SubResourcePatch: func(ctx context.Context, c client.Client, sub string, o client.Object, p client.Patch,
			opts ...client.SubResourcePatchOption) error {
			if err := write("patch", "/"+sub, o, nil, p); err != nil {
				return err
			}
			return c.SubResource(sub).Patch(ctx, o, p, opts...)
		},
		SubResourceUpdate: func(ctx context.Context, c client.Client, sub string, o client.Object,
			opts ...client.SubResourceUpdateOption) error {
			if err := write("update", "/"+sub, o, nil, nil); err != nil {
				return err
			}
			return c.SubResource(sub).Update(ctx, o, opts...)
		},
	})
}

// rendered writes a TrainJob, and does with it what the API server does by the mutating webhook.
func (h *harness) rendered(ctx context.Context, o client.Object, write func() error) error {
	var before api.TrainJob
	if err := h.store.Get(ctx, client.ObjectKeyFromObject(o), &before); err != nil {
		return err
	}
	if err := write(); err != nil {
		return err
	}
	var after api.TrainJob
	if err := h.store.Get(ctx, client.ObjectKeyFromObject(o), &after); err != nil {
		return err
	}
	answer := h.ask("/mutate-trainjob", self, encoded(h.t, &before), encoded(h.t, &after))
	if !answer.Allowed {
		return fmt.Errorf("the webhook refuses: %v", answer.Result)
	}
	if len(answer.Patches) == 0 {
		return nil
	}
	body, err := json.Marshal(answer.Patches)
	if err != nil {
		return err
	}
	return h.store.Patch(ctx, o, client.RawPatch(types.JSONPatchType, body))
}

func encoded(t *testing.T, o any) string {
	t.Helper()
	body, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
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

// reconcile reconciles a TrainJob, and forgets what was sent before.
func (h *harness) reconcile(name string) (reconcile.Result, error) {
	h.sent, h.bodies, h.events = nil, nil, nil
	return h.reconciler.Reconcile(h.t.Context(),
		reconcile.Request{NamespacedName: types.NamespacedName{Namespace: team, Name: name}})
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

// admit is Kueue's admission of the only Workload.
func (h *harness) admit(change ...func(*kueue.PodSetAssignment)) {
	h.t.Helper()
	wl := h.workload()
	a := kueue.PodSetAssignment{Name: wl.Spec.PodSets[0].Name, Count: ptr.To(wl.Spec.PodSets[0].Count),
		Flavors:       map[corev1.ResourceName]kueue.ResourceFlavorReference{gpu: "a"},
		ResourceUsage: corev1.ResourceList{gpu: *resource.NewQuantity(int64(wl.Spec.PodSets[0].Count), resource.DecimalSI)}}
	for _, c := range change {
		c(&a)
	}
	workload.SetQuotaReservation(wl, &kueue.Admission{ClusterQueue: "queue",
		PodSetAssignments: []kueue.PodSetAssignment{a}}, h.clock)
	workload.SyncAdmittedCondition(wl, h.clock.Now())
	h.updateStatus(wl)
}

func (h *harness) evict(reason string) {
	h.t.Helper()
	wl := h.workload()
	apimeta.SetStatusCondition(&wl.Status.Conditions, metav1.Condition{Type: kueue.WorkloadEvicted,
		Status: metav1.ConditionTrue,
		Reason: reason, Message: "evicted", LastTransitionTime: metav1.NewTime(h.clock.Now())})
	h.updateStatus(wl)
}

// end is Trainer's end of a TrainJob.
func (h *harness) end(name, condition string) {
	h.t.Helper()
	job := h.trainJob(name)
	apimeta.SetStatusCondition(&job.Status.Conditions, metav1.Condition{Type: condition, Status: metav1.ConditionTrue,
		Reason: "Over", Message: "over", LastTransitionTime: metav1.NewTime(h.clock.Now())})
	h.updateStatus(job)
}

// build is Trainer's JobSet of a TrainJob.
func (h *harness) build(name string) *jobset.JobSet {
	h.t.Helper()
	job := h.trainJob(name)
	js := &jobset.JobSet{ObjectMeta: metav1.ObjectMeta{Namespace: team, Name: name,
		OwnerReferences: []metav1.OwnerReference{
			*metav1.NewControllerRef(job, trainerapi.GroupVersion.WithKind(trainerapi.TrainJobKind))}}}
	js.Spec.ReplicatedJobs = []jobset.ReplicatedJob{node()}
	js.Spec.Suspend = ptr.To(ptr.Deref(job.Spec.Suspend, false))
	h.create(js)
	return js
}

// pod is one of a JobSet that runs.
func (h *harness) pod(js *jobset.JobSet) *corev1.Pod {
	h.t.Helper()
	labels := map[string]string{jobset.JobSetNameKey: js.Name, jobset.JobSetUIDKey: string(js.UID),
		jobset.ReplicatedJobNameKey: "node"}
	job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: team, Name: js.Name + "-node-0", Labels: labels,
		OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(js, jobset.SchemeGroupVersion.WithKind("JobSet"))}}}
	h.create(job)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: team, Name: js.Name + "-node-0-0", Labels: labels,
		OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(job, batchv1.SchemeGroupVersion.WithKind("Job"))}}}
	pod.Spec.NodeName = "node"
	pod.Status.Phase = corev1.PodRunning
	h.create(pod)
	return pod
}

func node() jobset.ReplicatedJob {
	rj := jobset.ReplicatedJob{Name: "node", Replicas: 1}
	rj.Template.Labels = map[string]string{"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
	rj.Template.Spec.Template.Spec.Containers = []corev1.Container{{Name: "node", Image: "example.com/train:1"}}
	return rj
}

func fixtures() []client.Object {
	rt := &api.ClusterTrainingRuntime{ObjectMeta: metav1.ObjectMeta{Name: "torch",
		Labels: map[string]string{"trainer.kubeflow.org/framework": "torch"}}}
	rt.Spec.MLPolicy = &trainerapi.MLPolicy{NumNodes: ptr.To[int32](1)}
	rt.Spec.Template.Spec.ReplicatedJobs = []jobset.ReplicatedJob{node()}
	return []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: team,
			Labels: map[string]string{"kubernetes.io/metadata.name": team}}},
		&kueue.ResourceFlavor{ObjectMeta: metav1.ObjectMeta{Name: "a"},
			Spec: kueue.ResourceFlavorSpec{NodeLabels: map[string]string{"pool": "a"}}},
		&kueue.ClusterQueue{ObjectMeta: metav1.ObjectMeta{Name: "queue"}},
		rt,
	}
}

// newTrainJob is one as the webhook leaves it.
func newTrainJob(name string) *api.TrainJob {
	one := corev1.ResourceList{gpu: resource.MustParse("1")}
	return &api.TrainJob{
		ObjectMeta: metav1.ObjectMeta{Namespace: team, Name: name, Labels: map[string]string{constants.QueueLabel: "queue"}},
		Spec: api.TrainJobSpec{TrainJobSpec: trainerapi.TrainJobSpec{
			RuntimeRef: trainerapi.RuntimeRef{APIGroup: ptr.To(trainerapi.GroupVersion.Group),
				Kind: ptr.To(trainerapi.ClusterTrainingRuntimeKind), Name: "torch"},
			ManagedBy: ptr.To("trainer.kubeflow.org/trainjob-controller"),
			Trainer: &trainerapi.Trainer{NumNodes: ptr.To[int32](1),
				ResourcesPerNode: &corev1.ResourceRequirements{Requests: one, Limits: one}},
			Suspend: ptr.To(true),
		}},
	}
}

// ask sends a request to a webhook; the objects are JSON, old is "" on creation.
func (h *harness) ask(path, user, old, sent string) webhookadmission.Response {
	h.t.Helper()
	request := webhookadmission.Request{AdmissionRequest: admissionv1.AdmissionRequest{UID: "request",
		Operation: admissionv1.Create,
		Namespace: team, Name: "job", UserInfo: authenticationv1.UserInfo{Username: user},
		Object: runtime.RawExtension{Raw: []byte(sent)}}}
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

func jobOf() *batchv1.Job { return &batchv1.Job{} }

// neutral reports whether a TrainJob has no entry of an admission.
func neutral(d overrides.Dialect, job *api.TrainJob) bool {
	own := d.Own(job)
	return own == nil || admission.IsNeutral(own)
}
