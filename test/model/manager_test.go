package model

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"time"

	trainerconfig "github.com/kubeflow/trainer/v2/pkg/apis/config/v1alpha1"
	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/controller/jobframework"

	"github.com/signalbox-dev/signalbox/admission/after"
	"github.com/signalbox-dev/signalbox/admission/avoid"
	configapi "github.com/signalbox-dev/signalbox/api/config/v1alpha1"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/integration"
	"github.com/signalbox-dev/signalbox/overrides"
	"github.com/signalbox-dev/signalbox/overrides/dialect"
	"github.com/signalbox-dev/signalbox/store"
	records "github.com/signalbox-dev/signalbox/store/ledger"
	"github.com/signalbox-dev/signalbox/trainer"
	"github.com/signalbox-dev/signalbox/trainer/gang"
	"github.com/signalbox-dev/signalbox/trainer/trial"
)

// manager is Signalbox with the bundled Trainer, wired like cmd/signalbox.
type manager struct {
	writer      *store.Writer
	jobSets     *store.JobSets
	integration *integration.Reconciler
	trainer     *trainer.Reconciler
	indexes     indexes
}

// indexes are the cache's field indexes.
type indexes map[string]client.IndexerFunc

func (i indexes) IndexField(_ context.Context, _ client.Object, field string, extract client.IndexerFunc) error {
	i[field] = extract
	return nil
}

// start creates a manager with empty memory.
func (w *world) start() {
	ctx := context.Background()
	config := configapi.Default()
	config.Preemption.CheckpointWithin.Duration = 5 * time.Minute
	config.Preemption.MinimumRuntime.Default.Duration = w.minimum
	if w.avoids {
		config.Nodes.AvoidFor.Duration = avoidFor
	}
	cached, live := &cachedClient{Client: w.counted(), w: w}, w.api()
	m := &manager{indexes: indexes{}}
	must(jobframework.SetupWorkloadOwnerIndex(ctx, m.indexes, trainerapi.GroupVersion.WithKind(trainerapi.TrainJobKind)))
	must(m.indexes.IndexField(ctx, nil, store.PodIndex, store.PodIndexOf))
	must(m.indexes.IndexField(ctx, nil, integration.PriorityIndex, integration.PriorityIndexOf))
	must(m.indexes.IndexField(ctx, nil, avoid.Index, avoid.IndexOf))
	must(m.indexes.IndexField(ctx, nil, after.Index, after.IndexOf))
	kept, recorder := store.New(cached, live, w.clock, true), &events.FakeRecorder{}
	kept.Pods.MaxGraceSeconds = config.Limits.TerminationGracePeriodSeconds
	config.Usage.Enabled = w.records
	kept.Ledger = records.New(w.counted(), config.Usage, w.clock)
	m.writer, m.jobSets = kept.Writer, kept.JobSets
	builder, err := trainer.NewBuilder(ctx, live, &trainerconfig.Configuration{})
	must(err)
	gangs := gang.NewGangs(ctx, gang.Config{
		Client: cached, Reader: live, JobsOf: kept.Pods.JobsOf, Discovery: unserved(), Recorder: recorder, Clock: w.clock,
		Mode: config.Trainer.GangScheduling.Mode, Policy: config.Trainer.GangScheduling.Policy,
	})
	m.integration, err = integration.NewReconciler(integration.Config{
		Client: cached, Reader: live, Store: kept, Recorder: recorder, Kueue: &config.Kueue, Limits: limits(),
		Patience: integration.PatienceOf(config), Trainer: dialect.Bundled,
		Placement: trial.New(cached, live, w.clock,
			&trainer.Startable{Client: cached, Reader: live, Builder: builder, Gangs: gangs}),
		Clock: w.clock,
	})
	must(err)
	m.trainer = trainer.NewReconciler(trainer.Config{
		Client: cached, Reader: live, Store: kept, Builder: builder, Gangs: gangs, Recorder: recorder, Clock: w.clock,
		Limits: limits(), Avoid: avoid.PolicyOf(config.Nodes),
	})
	w.manager = m
}

// limits are the configuration's defaults.
func limits() overrides.Limits {
	l := configapi.Default().Limits
	return overrides.Limits{Pods: l.Pods, SpecBytes: l.SpecBytes, Elements: l.Elements,
		GracePeriodSeconds: l.TerminationGracePeriodSeconds, HostPaths: l.HostPaths, NoSecrets: !l.Secrets}
}

// restart restarts the manager: its cache is current, and its queue has every TrainJob.
func (w *world) restart() {
	w.start()
	w.cache, w.queue, w.again = map[string][]client.Object{}, map[string]bool{}, map[string]time.Time{}
	for _, kind := range watched {
		w.sync(kind)
	}
}

// errCrashed fails every write of a manager that has crashed.
var errCrashed = errors.New("the manager has crashed")

// counted is the API server for the manager's writes: it injects crashes and lost responses, and fills the ledger.
func (w *world) counted() client.Client {
	write := func(dryRun bool, do func() error) error {
		if dryRun {
			return do()
		}
		if w.left == 0 {
			return errCrashed
		}
		w.left--
		w.writes++
		err := do()
		if err == nil && w.writes == w.lost {
			return apierrors.NewTimeoutError("the response is lost", 1)
		}
		return err
	}
	return interceptor.NewClient(w.api(), interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.CreateOption) error {
			var asked client.CreateOptions
			asked.ApplyOptions(options)
			return write(len(asked.DryRun) > 0, func() error {
				err := c.Create(ctx, o, options...)
				if owner := metav1.GetControllerOfNoCopy(o); err == nil && len(asked.DryRun) == 0 &&
					o.GetObjectKind().GroupVersionKind().Kind == "JobSet" {
					w.ledger.Owner[o.GetUID()] = owner.UID
				}
				return err
			})
		},
		Update: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.UpdateOption) error {
			return write(false, func() error { return c.Update(ctx, o, options...) })
		},
		Delete: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.DeleteOption) error {
			return write(false, func() error { return c.Delete(ctx, o, options...) })
		},
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, patch client.Patch,
			options ...client.PatchOption) error {
			return write(false, func() error {
				if err := w.rejects.patch(o, patch); err != nil {
					return err
				}
				suspended := w.suspended(o)
				err := c.Patch(ctx, o, patch, options...)
				if err == nil && suspended != "" && w.suspended(o) == "" {
					w.ledger.Starts[suspended]++
				}
				return err
			})
		},
		SubResourcePatch: func(ctx context.Context, c client.Client, sub string, o client.Object, patch client.Patch,
			options ...client.SubResourcePatchOption) error {
			return write(false, func() error {
				if err := w.rejects.status(o); err != nil {
					return err
				}
				return c.SubResource(sub).Patch(ctx, o, patch, options...)
			})
		},
		SubResourceUpdate: func(ctx context.Context, c client.Client, sub string, o client.Object,
			options ...client.SubResourceUpdateOption) error {
			return write(false, func() error { return c.SubResource(sub).Update(ctx, o, options...) })
		},
	})
}

// suspended returns the UID of a TrainJob that is suspended in the API server; "" otherwise.
func (w *world) suspended(o client.Object) types.UID {
	if _, ok := o.(*api.TrainJob); !ok {
		return ""
	}
	var tj api.TrainJob
	if w.store.Get(context.Background(), client.ObjectKeyFromObject(o), &tj) != nil || !ptr.Deref(tj.Spec.Suspend,
		false) {
		return ""
	}
	return tj.UID
}

// cachedClient reads watched kinds from the manager's cache.
type cachedClient struct {
	client.Client
	w *world
}

// kindOf returns the kind of an object or a list if the manager watches it with an effect; "" for one that it watches
// and reads as it is. It reads nothing else: an informer of a kind that it may not list never syncs.
func kindOf(o runtime.Object) string {
	switch o.(type) {
	case *api.TrainJob, *api.TrainJobList:
		return "TrainJob"
	case *kueue.Workload, *kueue.WorkloadList:
		return "Workload"
	case *jobset.JobSet, *jobset.JobSetList:
		return "JobSet"
	case *corev1.Pod, *corev1.PodList:
		return "Pod"
	case *corev1.Namespace, *corev1.NodeList, *kueue.ResourceFlavor, *kueue.ResourceFlavorList, *kueue.LocalQueue,
		*kueue.WorkloadPriorityClass, *kueue.WorkloadPriorityClassList, *schedulingv1.PriorityClass,
		*schedulingv1.PriorityClassList, *corev1.LimitRange, *corev1.LimitRangeList,
		*api.TrainingRuntime, *api.ClusterTrainingRuntime:
		return ""
	}
	panic(fmt.Sprintf("the manager reads a %T from its cache, which has none", o))
}

// kept returns a copy of an object as the manager's cache stores it.
func kept(o client.Object) client.Object {
	if pod, ok := o.(*corev1.Pod); ok {
		return store.RetainPod(pod).DeepCopy()
	}
	return o.DeepCopyObject().(client.Object)
}

func (c *cachedClient) Get(ctx context.Context, key client.ObjectKey, o client.Object,
	options ...client.GetOption) error {
	kind := kindOf(o)
	if kind == "" {
		return c.Client.Get(ctx, key, o, options...)
	}
	for _, there := range c.w.cache[kind] {
		if client.ObjectKeyFromObject(there) == key {
			reflect.ValueOf(o).Elem().Set(reflect.ValueOf(kept(there)).Elem())
			return nil
		}
	}
	return apierrors.NewNotFound(schema.GroupResource{Resource: kind}, key.Name)
}

func (c *cachedClient) List(ctx context.Context, into client.ObjectList, options ...client.ListOption) error {
	kind := kindOf(into)
	if kind == "" {
		return c.Client.List(ctx, into, options...)
	}
	var asked client.ListOptions
	asked.ApplyOptions(options)
	var found []runtime.Object
	for _, o := range c.w.cache[kind] {
		if asked.Namespace != "" && o.GetNamespace() != asked.Namespace || !c.w.matches(o, asked.FieldSelector) {
			continue
		}
		found = append(found, kept(o))
	}
	return apimeta.SetList(into, found)
}

func (w *world) matches(o client.Object, selector fields.Selector) bool {
	if selector == nil {
		return true
	}
	for _, r := range selector.Requirements() {
		extract := w.manager.indexes[r.Field]
		if extract == nil {
			panic("no index " + r.Field)
		}
		if !slices.Contains(extract(o), r.Value) {
			return false
		}
	}
	return true
}

// reconcile runs both reconcilers for a TrainJob, like the controller does.
func (w *world) reconcile(name string) {
	if at, due := w.again[name]; due && !w.queue[name] {
		w.clock.SetTime(maxTime(at, w.clock.Now()))
	}
	delete(w.queue, name)
	delete(w.again, name)
	ctx := context.Background()
	defer w.unchanged()
	request := reconcile.Request{NamespacedName: types.NamespacedName{Namespace: namespace, Name: name}}
	result, err := w.manager.integration.Reconcile(ctx, request)
	theirs, nextErr := w.manager.trainer.ReconcileAfter(ctx, request, err != nil)
	if w.failed = errors.Join(err, nextErr); w.failed != nil {
		w.again[name] = w.clock.Now().Add(time.Second)
		return
	}
	for _, r := range []reconcile.Result{result, theirs} {
		at := w.clock.Now().Add(r.RequeueAfter)
		if before, has := w.again[name]; r.RequeueAfter > 0 && (!has || at.Before(before)) {
			w.again[name] = at
		}
	}
}

func maxTime(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
