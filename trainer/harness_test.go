package trainer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	trainerconfig "github.com/kubeflow/trainer/v2/pkg/apis/config/v1alpha1"
	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	schedulingv1alpha2 "k8s.io/api/scheduling/v1alpha2"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	fakediscovery "k8s.io/client-go/discovery/fake"
	clienttesting "k8s.io/client-go/testing"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/webhook"
	webhookadmission "sigs.k8s.io/controller-runtime/pkg/webhook/admission"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/yaml"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides"
	"github.com/signalbox-dev/signalbox/review"
	"github.com/signalbox-dev/signalbox/store"
	"github.com/signalbox-dev/signalbox/trainer/gang"
)

func init() { ctrl.SetLogger(logr.Discard()) }

// allKinds are the kinds that the API server serves. They are few: the fake client goes over all on each create.
var allKinds = sync.OnceValue(func() *runtime.Scheme {
	scheme := runtime.NewScheme()
	if err := errors.Join(corev1.AddToScheme(scheme), schedulingv1.AddToScheme(scheme),
		schedulingv1alpha2.AddToScheme(scheme), admissionregistrationv1.AddToScheme(scheme), api.AddToScheme(scheme),
		jobset.AddToScheme(scheme), kueue.AddToScheme(scheme), apiextensionsv1.AddToScheme(scheme)); err != nil {
		panic(err)
	}
	return scheme
})

// noon is when every harness starts.
var noon = time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)

// harness is the bundled Trainer on a fake API server. Tests construct the reconciler, Startable and the webhooks only
// here. They assert by the objects in the API server, by the requests to it, and by events.
type harness struct {
	t     testing.TB
	clock *clocktesting.FakeClock

	parts parts
	// store is the API server's storage. Tests read and write it directly, which is no request.
	store client.WithWatch
	// indexes are the cache's field indexes, by the field's name.
	indexes map[string]client.IndexerFunc
	// stale are the objects that the cache doesn't show as they are: nil hides one.
	stale map[string]client.Object

	mu   sync.Mutex
	sent []string
	uids int
	// fail is asked before a request, lost after it has succeeded. An error is the API server's answer.
	fail, lost faults
	recorder   *events.FakeRecorder
}

// faults are errors by request, such as "create JobSet job"; a prefix is enough.
type faults map[string]error

func (f faults) of(request string) error {
	for prefix, err := range f {
		if strings.HasPrefix(request, prefix) {
			return err
		}
	}
	return nil
}

// parts are what is tested.
type parts struct {
	reconciler *Reconciler
	startable  *Startable
	hooks      map[string]*webhook.Admission // by path
}

// options are what differs from one harness to another.
type options struct {
	gangMode    api.GangMode // the manager's configuration; "" is off
	gangsServed bool         // the API server serves PodGroups
	limits      overrides.Limits
}

func newHarness(t testing.TB, change ...func(*options)) *harness {
	t.Helper()
	o := options{gangMode: api.GangOff, limits: overrides.Limits{
		Pods: 5000, SpecBytes: 1 << 20, Elements: 1 << 20, GracePeriodSeconds: 3600,
	}}
	for _, c := range change {
		c(&o)
	}
	h := &harness{
		t: t, clock: clocktesting.NewFakeClock(noon), indexes: map[string]client.IndexerFunc{},
		stale: map[string]client.Object{}, fail: faults{}, lost: faults{}, recorder: events.NewFakeRecorder(1000),
	}
	h.store = fake.NewClientBuilder().WithScheme(allKinds()).
		WithStatusSubresource(&api.TrainJob{}, &jobset.JobSet{}, &kueue.Workload{}, &schedulingv1alpha2.PodGroup{}).Build()
	h.put(jobSetCRD(), h.runtime("torch", "{numNodes: 2, torch: {}}"), h.runtime("mpi", "{numNodes: 2, mpi: {}}"),
		h.runtime("flux", "{numNodes: 2, flux: {numProcPerNode: 1}}"))
	h.construct(o)
	return h
}

// construct makes the parts like cmd/signalbox does. It and the fields of parts are all that knows their constructors.
func (h *harness) construct(o options) {
	h.t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	h.t.Cleanup(stop)
	cached, live := h.cached(), h.api()
	builder, err := NewBuilder(ctx, live, &trainerconfig.Configuration{})
	if err != nil {
		h.t.Fatal(err)
	}
	newCache := func() (cache.Cache, error) { return &gangCache{Reader: h.cached(), indexes: h.indexes}, nil }
	gangs := gang.NewGangs(ctx, gang.Config{
		Client: cached, Reader: live, Discovery: discoveryOf(o.gangsServed), NewCache: newCache, Recorder: h.recorder,
		Clock: h.clock, Mode: o.gangMode, Policy: api.GangPolicyGang,
	})
	reconciler := NewReconciler(Config{
		Client: cached, Reader: live, Store: store.New(cached, live, h.clock, true), Builder: builder, Gangs: gangs,
		Recorder: h.recorder, Clock: h.clock,
	})
	hooks := NewWebhook(WebhookConfig{
		Client: cached, Live: live, Builder: builder, Clock: h.clock, Limits: o.limits,
		Reader: review.Reader{Decoder: webhookadmission.NewDecoder(h.store.Scheme()), Trusted: []string{"signalbox"}},
	})
	served := &hookServer{paths: map[string]*webhook.Admission{}}
	indexer := indexerFunc(func(field string, of client.IndexerFunc) { h.indexes[field] = of })
	err = errors.Join(reconciler.Setup(ctx, indexer), hooks.Register(hookManager{served: served}),
		indexer.IndexField(ctx, &corev1.Pod{}, store.PodIndex, store.PodIndexOf))
	if err != nil {
		h.t.Fatal(err)
	}
	startable := NewStartable(StartableConfig{Client: cached, Builder: builder, Gangs: gangs, Clock: h.clock})
	h.parts = parts{reconciler: reconciler, startable: startable, hooks: served.paths}
}

// reconcile reconciles a TrainJob after the integration has, and fails the test on an error.
func (h *harness) reconcile(name string) reconcile.Result {
	h.t.Helper()
	result, err := h.try(name, false)
	if err != nil {
		h.t.Fatal(err)
	}
	return result
}

// reconcileAfterFailure reconciles a TrainJob after the integration has failed.
func (h *harness) reconcileAfterFailure(name string) reconcile.Result {
	h.t.Helper()
	result, err := h.try(name, true)
	if err != nil {
		h.t.Fatal(err)
	}
	return result
}

func (h *harness) try(name string, failed bool) (reconcile.Result, error) {
	request := reconcile.Request{NamespacedName: types.NamespacedName{Namespace: "ns", Name: name}}
	return h.parts.reconciler.ReconcileAfter(context.Background(), request, failed)
}

// startable asks what would keep a TrainJob from having pods.
func (h *harness) startable(job *api.TrainJob, spec *trainerapi.TrainingRuntimeSpec, e *overrides.Effective) error {
	return h.parts.startable.Startable(context.Background(), job, spec, e)
}

// effective computes what a TrainJob runs on a runtime.
func (h *harness) effective(job *api.TrainJob, spec *trainerapi.TrainingRuntimeSpec) *overrides.Effective {
	h.t.Helper()
	e, err := overrides.Bundled.Compute(job, spec, overrides.Bundled.Entries(job))
	if err != nil {
		h.t.Fatal(err)
	}
	return e
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
	hook, found := h.parts.hooks[path]
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

// put stores objects, with their status, by no request.
func (h *harness) put(objects ...client.Object) {
	h.t.Helper()
	for _, o := range objects {
		o = o.DeepCopyObject().(client.Object)
		if o.GetUID() == "" {
			h.uids++
			o.SetUID(types.UID(fmt.Sprintf("put-%d", h.uids)))
		}
		if created := o.GetCreationTimestamp(); created.IsZero() {
			o.SetCreationTimestamp(metav1.NewTime(h.clock.Now()))
		}
		deleted := !o.GetDeletionTimestamp().IsZero()
		err := h.store.Create(context.Background(), o)
		if err == nil && deleted {
			err = h.store.Delete(context.Background(), o)
		}
		if err != nil {
			h.t.Fatal(err)
		}
	}
}

// get reads an object from the API server, and reports whether it is there.
func (h *harness) get(o client.Object, name string) bool {
	h.t.Helper()
	err := h.store.Get(context.Background(), client.ObjectKey{Namespace: "ns", Name: name}, o)
	if client.IgnoreNotFound(err) != nil {
		h.t.Fatal(err)
	}
	return err == nil
}

// job reads a TrainJob from the API server.
func (h *harness) job(name string) *api.TrainJob {
	h.t.Helper()
	job := &api.TrainJob{}
	if !h.get(job, name) {
		h.t.Fatalf("TrainJob %s is gone", name)
	}
	return job
}

// edit changes a TrainJob by no request, like its user does: a change of the spec raises the generation.
func (h *harness) edit(name string, change func(*api.TrainJob)) {
	h.t.Helper()
	job := h.job(name)
	change(job)
	job.Generation++
	status := job.DeepCopy()
	if err := h.store.Update(context.Background(), job); err != nil {
		h.t.Fatal(err)
	}
	status.ResourceVersion = job.ResourceVersion
	if err := h.store.Status().Update(context.Background(), status); err != nil {
		h.t.Fatal(err)
	}
}

// remove takes an object out of the API server by no request, whatever its finalizers.
func (h *harness) remove(o client.Object, name string) {
	h.t.Helper()
	if !h.get(o, name) {
		h.t.Fatalf("%s is gone already", name)
	}
	o.SetFinalizers(nil)
	if err := h.store.Update(context.Background(), o); client.IgnoreNotFound(err) != nil {
		h.t.Fatal(err)
	}
	if err := h.store.Delete(context.Background(), o); client.IgnoreNotFound(err) != nil {
		h.t.Fatal(err)
	}
}

// requests returns the writes since the last call, in order, as "verb Kind name".
func (h *harness) requests() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	sent := h.sent
	h.sent = nil
	return sent
}

// wantRequests compares the writes since the last call.
func (h *harness) wantRequests(reason string, want ...string) {
	h.t.Helper()
	if got := h.requests(); !slices.Equal(got, want) {
		h.t.Errorf("%s: sent %q, want %q", reason, got, want)
	}
}

// events returns the events since the last call.
func (h *harness) events() []string {
	var all []string
	for {
		select {
		case e := <-h.recorder.Events:
			all = append(all, e)
		default:
			return all
		}
	}
}

// wantEvents compares the events since the last call; each is to contain its part.
func (h *harness) wantEvents(reason string, parts ...string) {
	h.t.Helper()
	got := h.events()
	fits := slices.EqualFunc(got, parts, strings.Contains)
	if !fits {
		h.t.Errorf("%s: events %q, want %q", reason, got, parts)
	}
}

// freeze keeps the cache at what it shows of an object now.
func (h *harness) freeze(o client.Object, name string) {
	h.t.Helper()
	key := h.keyOf(o, name)
	if h.get(o, name) {
		h.stale[key] = o
	} else {
		h.stale[key] = nil
	}
}

// hide keeps the cache from showing an object.
func (h *harness) hide(kind, name string) { h.stale[kind+" "+name] = nil }

// thaw makes the cache current.
func (h *harness) thaw() { clear(h.stale) }

func (h *harness) keyOf(o runtime.Object, name string) string {
	h.t.Helper()
	gvk, err := apiutil.GVKForObject(o, h.store.Scheme())
	if err != nil {
		h.t.Fatal(err)
	}
	return gvk.Kind + " " + name
}

// api is the API server. Unlike the fake client it assigns UIDs and creation times, checks preconditions and implements
// foreground deletion. It records writes and injects faults.
func (h *harness) api() client.WithWatch {
	return interceptor.NewClient(h.store, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object,
			options ...client.GetOption) error {
			if err := h.fail.of("get " + h.keyOf(o, key.Name)); err != nil {
				return err
			}
			return c.Get(ctx, key, o, options...)
		},
		List: h.list,
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.CreateOption) error {
			asked := (&client.CreateOptions{}).ApplyOptions(options)
			request := "create " + h.keyOf(o, o.GetName())
			if len(asked.DryRun) > 0 {
				request = "dry-run " + h.keyOf(o, o.GetName())
			}
			return h.write(request, func() error {
				there := o.DeepCopyObject().(client.Object)
				if err := c.Get(ctx, client.ObjectKeyFromObject(o), there); err == nil {
					return apierrors.NewAlreadyExists(schema.GroupResource{}, o.GetName())
				}
				h.mu.Lock()
				h.uids++
				o.SetUID(types.UID(fmt.Sprintf("uid-%d", h.uids)))
				h.mu.Unlock()
				o.SetCreationTimestamp(metav1.NewTime(h.clock.Now()))
				return c.Create(ctx, o, options...)
			})
		},
		Update: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.UpdateOption) error {
			return h.write("update "+h.keyOf(o, o.GetName()), func() error { return c.Update(ctx, o, options...) })
		},
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch,
			options ...client.PatchOption) error {
			return h.write("patch "+h.keyOf(o, o.GetName()), func() error { return c.Patch(ctx, o, p, options...) })
		},
		SubResourcePatch: func(ctx context.Context, c client.Client, sub string, o client.Object, p client.Patch,
			options ...client.SubResourcePatchOption) error {
			kind, name, _ := strings.Cut(h.keyOf(o, o.GetName()), " ")
			return h.write("patch "+kind+"/"+sub+" "+name, func() error {
				return c.SubResource(sub).Patch(ctx, o, p, options...)
			})
		},
		Delete: h.delete,
	})
}

func (h *harness) delete(ctx context.Context, c client.WithWatch, o client.Object,
	options ...client.DeleteOption) error {
	asked := (&client.DeleteOptions{}).ApplyOptions(options)
	foreground := ptr.Deref(asked.PropagationPolicy, "") == metav1.DeletePropagationForeground
	request := "delete " + h.keyOf(o, o.GetName())
	if foreground {
		request += " foreground"
	}
	p := asked.Preconditions
	if p != nil && p.UID != nil {
		request += " uid"
	}
	if p != nil && p.ResourceVersion != nil {
		request += " version"
	}
	return h.write(request, func() error {
		there := o.DeepCopyObject().(client.Object)
		if err := c.Get(ctx, client.ObjectKeyFromObject(o), there); err != nil {
			return err
		}
		if p != nil && (p.UID != nil && *p.UID != there.GetUID() ||
			p.ResourceVersion != nil && *p.ResourceVersion != there.GetResourceVersion()) {
			return conflict(o.GetName())
		}
		if foreground && !slices.Contains(there.GetFinalizers(), metav1.FinalizerDeleteDependents) {
			there.SetFinalizers(append(there.GetFinalizers(), metav1.FinalizerDeleteDependents))
			if err := c.Update(ctx, there); err != nil {
				return err
			}
		}
		return c.Delete(ctx, there)
	})
}

func (h *harness) write(request string, do func() error) error {
	h.mu.Lock()
	h.sent = append(h.sent, request)
	h.mu.Unlock()
	if err := h.fail.of(request); err != nil {
		return err
	}
	if err := do(); err != nil {
		return err
	}
	return h.lost.of(request)
}

// list lists by the indexes, which the fake client takes only before it is built.
func (h *harness) list(ctx context.Context, c client.WithWatch, into client.ObjectList,
	options ...client.ListOption) error {
	kind := strings.TrimSuffix(strings.TrimSpace(h.keyOf(into, "")), "List")
	if err := h.fail.of("list " + kind); err != nil {
		return err
	}
	asked := (&client.ListOptions{}).ApplyOptions(options)
	plain := &client.ListOptions{Namespace: asked.Namespace, LabelSelector: asked.LabelSelector}
	if err := c.List(ctx, into, plain); err != nil || asked.FieldSelector == nil {
		return err
	}
	all, err := apimeta.ExtractList(into)
	if err != nil {
		return err
	}
	for _, r := range asked.FieldSelector.Requirements() {
		of := h.indexes[r.Field]
		if of == nil {
			h.t.Errorf("no index %q", r.Field)
			return errors.New("no index")
		}
		all = slices.DeleteFunc(all, func(o runtime.Object) bool {
			return !slices.Contains(of(o.(client.Object)), r.Value)
		})
	}
	return apimeta.SetList(into, all)
}

// cached is the manager's client: it reads from a cache and writes to the API server.
func (h *harness) cached() client.WithWatch {
	return interceptor.NewClient(h.api(), interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object,
			options ...client.GetOption) error {
			if err := h.fail.of("cache " + h.keyOf(o, key.Name)); err != nil {
				return err
			}
			old, found := h.stale[h.keyOf(o, key.Name)]
			switch {
			case !found:
				return h.store.Get(ctx, key, o, options...)
			case old == nil:
				return apierrors.NewNotFound(schema.GroupResource{}, key.Name)
			}
			return convert(old, o)
		},
	})
}

// convert copies an object into another of its type.
func convert(from, into client.Object) error {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(from)
	if err != nil {
		return err
	}
	if u, ok := into.(*unstructured.Unstructured); ok {
		u.Object = content
		return nil
	}
	return runtime.DefaultUnstructuredConverter.FromUnstructured(content, into)
}

func conflict(name string) error {
	return apierrors.NewConflict(schema.GroupResource{Resource: "any"}, name, errors.New("it has changed"))
}

// runtime is a TrainingRuntime.
func (h *harness) runtime(name, policy string) *api.TrainingRuntime {
	return &api.TrainingRuntime{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}, Spec: *runtimeOf(h.t, policy, lastingVolume),
	}
}

// trainJob is TrainJob ns/job on a runtime, changed by YAML.
func (h *harness) trainJob(runtime, text string) *api.TrainJob {
	h.t.Helper()
	job := jobOf(h.t, runtime, text)
	job.Generation = 3
	return job
}

// pinned pins a TrainJob to its runtime.
func (h *harness) pinned(job *api.TrainJob) *api.TrainJob {
	h.t.Helper()
	rt := &api.TrainingRuntime{}
	if !h.get(rt, job.Spec.RuntimeRef.Name) {
		h.t.Fatalf("no runtime %s", job.Spec.RuntimeRef.Name)
	}
	metav1.SetMetaDataAnnotation(&job.ObjectMeta, store.PinAnnotation, must(store.Pin(&rt.Spec)))
	return job
}

// ownedBy makes an object a TrainJob's.
func ownedBy[T client.Object](job *api.TrainJob, o T) T {
	o.SetNamespace(job.Namespace)
	o.SetOwnerReferences([]metav1.OwnerReference{
		*metav1.NewControllerRef(job, trainerapi.GroupVersion.WithKind(trainerapi.TrainJobKind)),
	})
	return o
}

// read reads an object from YAML.
func read[T any](t testing.TB, text string) *T {
	t.Helper()
	v := new(T)
	if err := yaml.UnmarshalStrict([]byte(text), v); err != nil {
		t.Fatal(err)
	}
	return v
}

// jobSetCRD is a CRD of JobSets whose pod templates have schedulingGroup.
func jobSetCRD() *apiextensionsv1.CustomResourceDefinition {
	s := apiextensionsv1.JSONSchemaProps{}
	for _, name := range []string{"schedulingGroup", "spec", "template", "spec", "template", "", "replicatedJobs",
		"spec"} {
		if name == "" {
			items := s
			s = apiextensionsv1.JSONSchemaProps{Items: &apiextensionsv1.JSONSchemaPropsOrArray{Schema: &items}}
			continue
		}
		s = apiextensionsv1.JSONSchemaProps{Properties: map[string]apiextensionsv1.JSONSchemaProps{name: s}}
	}
	crd := &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: "jobsets.jobset.x-k8s.io"}}
	crd.Spec.Versions = []apiextensionsv1.CustomResourceDefinitionVersion{{
		Name: "v1alpha2", Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &s},
	}}
	return crd
}

// discoveryOf is the discovery of an API server that serves PodGroups, or doesn't.
func discoveryOf(served bool) *fakediscovery.FakeDiscovery {
	d := &fakediscovery.FakeDiscovery{Fake: &clienttesting.Fake{}}
	if served {
		d.Resources = []*metav1.APIResourceList{{
			GroupVersion: "scheduling.k8s.io/v1alpha2", APIResources: []metav1.APIResource{{Name: "workloads"},
				{Name: "podgroups"}},
		}}
	}
	return d
}

// gangCache is a cache of groups that is never stale and sends nothing.
type gangCache struct {
	client.Reader
	indexes map[string]client.IndexerFunc
}

func (c *gangCache) IndexField(_ context.Context, _ client.Object, field string, of client.IndexerFunc) error {
	c.indexes[field] = of
	return nil
}

func (*gangCache) GetInformer(context.Context, client.Object, ...cache.InformerGetOption) (cache.Informer, error) {
	return silent{}, nil
}

func (*gangCache) GetInformerForKind(context.Context, schema.GroupVersionKind,
	...cache.InformerGetOption) (cache.Informer,
	error) {
	return silent{}, nil
}

func (*gangCache) RemoveInformer(context.Context, client.Object) error { return nil }

func (*gangCache) Start(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

func (*gangCache) WaitForCacheSync(context.Context) bool { return true }

// silent is an informer that sends nothing.
type silent struct{ cache.Informer }

func (silent) AddEventHandler(toolscache.ResourceEventHandler) (toolscache.ResourceEventHandlerRegistration, error) {
	return nil, nil
}

type indexerFunc func(field string, of client.IndexerFunc)

func (f indexerFunc) IndexField(_ context.Context, _ client.Object, field string, of client.IndexerFunc) error {
	f(field, of)
	return nil
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
