package integration

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/go-logr/logr"
	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"github.com/prometheus/client_golang/prometheus"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/controller/jobframework"

	"github.com/signalbox-dev/signalbox/admission/after"
	"github.com/signalbox-dev/signalbox/admission/avoid"
	configapi "github.com/signalbox-dev/signalbox/api/config/v1alpha1"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	usageapi "github.com/signalbox-dev/signalbox/api/usage/v1alpha1"
	"github.com/signalbox-dev/signalbox/integration/managed"
	"github.com/signalbox-dev/signalbox/store"
	"github.com/signalbox-dev/signalbox/store/workqueue"
)

// runtimeIndex finds the TrainJobs that refer to a runtime.
const runtimeIndex = "spec.runtimeRef"

// controllerName is the controller's in logs and metrics.
const controllerName = "trainjob"

func runtimeKey(kind, name string) string { return kind + "/" + name }

// Next is what is run after each reconcile of a TrainJob.
type Next interface {
	// ReconcileAfter reconciles the same TrainJob. failed is set if the reconcile before has failed: what may have to be
	// stopped must not be started.
	ReconcileAfter(ctx context.Context, request reconcile.Request, failed bool) (reconcile.Result, error)
	// Changed returns TrainJobs to reconcile.
	Changed() <-chan event.GenericEvent
}

// SetupWithManager registers the controller, its indexes, its metrics and its watches. If next isn't nil, it runs after
// each reconcile of a TrainJob: with one queue for both, they never write the same TrainJob at the same time.
func (r *Reconciler) SetupWithManager(ctx context.Context, mgr ctrl.Manager, concurrency int, next Next) error {
	if err := r.setupIndexes(ctx, mgr.GetFieldIndexer()); err != nil {
		return err
	}
	if err := watchRead(ctx, mgr.GetCache(), r.policy.readWatched()); err != nil {
		return err
	}
	for _, counted := range []prometheus.Collector{
		overduePods{mgr.GetClient(), r.clock}, countedJobs{mgr.GetClient(), r.trainer.states},
	} {
		if err := collect(mgr, counted); err != nil {
			return err
		}
	}
	b := r.watch(ctrl.NewControllerManagedBy(mgr), mgr).
		Named(controllerName).
		WithLogConstructor(logConstructor(mgr.GetLogger())).
		WithOptions(controller.Options{MaxConcurrentReconciles: concurrency, RateLimiter: retries()})
	if next != nil {
		b = b.WatchesRawSource(source.Channel(next.Changed(), &handler.EnqueueRequestForObject{}))
	}
	workers := newWorkers(r.clock, concurrency)
	if err := mgr.AddHealthzCheck("workers", workers.check); err != nil {
		return err
	}
	return b.Complete(workers.bounded(r.both(next)))
}

// readWatched returns what is read from the cache and triggers no reconcile, or is read by the webhooks too: those of a
// replica that doesn't lead.
func (p policy) readWatched() []client.Object {
	kinds := []client.Object{
		&corev1.Namespace{}, &kueue.LocalQueue{}, &kueue.ResourceFlavor{}, &kueue.WorkloadPriorityClass{},
		&schedulingv1.PriorityClass{}, &corev1.LimitRange{}, &api.TrainingRuntime{}, &api.ClusterTrainingRuntime{},
		&jobset.JobSet{},
	}
	if p.Avoid.On() {
		kinds = append(kinds, &corev1.Node{})
	}
	return kinds
}

// watchRead watches kinds. The manager's cache reads nothing that isn't watched.
func watchRead(ctx context.Context, informers cache.Informers, kinds []client.Object) error {
	for _, o := range kinds {
		if _, err := informers.GetInformer(ctx, o, cache.BlockUntilSynced(false)); err != nil {
			return fmt.Errorf("watching %T: %w", o, err)
		}
	}
	return nil
}

// Uncached returns objects of the kinds that are read from the API server each time: few TrainJobs concern them, and
// whether they are served at all may change. The manager's client must not cache them.
func Uncached(config *configapi.Kueue) []client.Object {
	objects := []client.Object{&kueue.AdmissionCheck{}, &appsv1.ReplicaSet{}, &usageapi.QuotaUsage{}}
	for _, kind := range config.OwnerKinds {
		if parsed, _ := schema.ParseKindArg(kind); parsed != nil {
			o := &metav1.PartialObjectMetadata{}
			o.SetGroupVersionKind(*parsed)
			objects = append(objects, o)
		}
	}
	return objects
}

func (r *Reconciler) setupIndexes(ctx context.Context, indexer client.FieldIndexer) error {
	// jobframework lists the Workloads of a TrainJob's owner, too.
	for _, kind := range append(slices.Clone(r.policy.managed.OwnerKinds), managed.Kind) {
		if err := jobframework.SetupWorkloadOwnerIndex(ctx, indexer, kind); err != nil {
			return err
		}
	}
	if r.policy.Boost.On() {
		if err := indexer.IndexField(ctx, &kueue.Workload{}, PriorityIndex, PriorityIndexOf); err != nil {
			return err
		}
	}
	if r.policy.Avoid.On() {
		if err := indexer.IndexField(ctx, &api.TrainJob{}, avoid.Index, avoid.IndexOf); err != nil {
			return err
		}
	}
	if err := indexer.IndexField(ctx, &api.TrainJob{}, after.Index, after.IndexOf); err != nil {
		return err
	}
	if err := indexer.IndexField(ctx, &corev1.Pod{}, store.PodIndex, store.PodIndexOf); err != nil {
		return err
	}
	return indexer.IndexField(ctx, &api.TrainJob{}, runtimeIndex, func(o client.Object) []string {
		ref := o.(*api.TrainJob).Spec.RuntimeRef
		return []string{runtimeKey(ptr.Deref(ref.Kind, ""), ref.Name)}
	})
}

func (r *Reconciler) watch(b *builder.Builder, mgr ctrl.Manager) *builder.Builder {
	inOrder := func(h handler.EventHandler) handler.EventHandler {
		return workqueue.Order{EventHandler: h, Namespaces: r.namespaces}
	}
	runtimesOf := func(kind string) handler.EventHandler {
		return inOrder(handler.EnqueueRequestsFromMapFunc(r.waitingJobsOf(kind)))
	}
	owner := inOrder(handler.EnqueueRequestForOwner(
		mgr.GetScheme(), mgr.GetRESTMapper(), &api.TrainJob{}, handler.OnlyControllerOwner()))
	pods := inOrder(asItIs(r.jobOf))
	b = r.watchBegins(b, func(of handler.MapFunc) handler.EventHandler { return inOrder(asItIs(of)) })
	b = r.meter.watchReleases(b)
	return b.
		Watches(&api.TrainJob{}, inOrder(&handler.EnqueueRequestForObject{})).
		Watches(&api.TrainJob{}, inOrder(asItIs(r.dependents)), builder.WithPredicates(decidesOthers())).
		Watches(&kueue.Workload{}, owner).
		Watches(&jobset.JobSet{}, owner).
		Watches(&corev1.Pod{}, pods, builder.WithPredicates(podEnds())).
		Watches(&corev1.Namespace{}, inOrder(asItIs(r.jobsIn)), builder.WithPredicates(r.policy.selection())).
		Watches(&api.ClusterTrainingRuntime{}, runtimesOf(trainerapi.ClusterTrainingRuntimeKind)).
		Watches(&api.TrainingRuntime{}, runtimesOf(trainerapi.TrainingRuntimeKind))
}

func logConstructor(log logr.Logger) func(*reconcile.Request) logr.Logger {
	log = log.WithValues("controller", controllerName, "controllerGroup", managed.Kind.Group,
		"controllerKind", managed.Kind.Kind)
	return func(request *reconcile.Request) logr.Logger {
		if request == nil {
			return log
		}
		return log.WithValues(managed.Kind.Kind, klog.KRef(request.Namespace, request.Name),
			"namespace", request.Namespace, "name", request.Name)
	}
}

func (r *Reconciler) both(next Next) reconcile.Func {
	return func(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
		r.namespaces.Took(request)
		result, err := r.Reconcile(ctx, request)
		if next != nil {
			further, nextErr := next.ReconcileAfter(ctx, request, err != nil)
			result, err = sooner(result, further), errors.Join(err, nextErr)
		}
		result = sooner(result, r.Concluded(ctx, request, err))
		return workqueue.Placed(result, err), err
	}
}

func sooner(a, b reconcile.Result) reconcile.Result {
	if a.RequeueAfter == 0 || b.RequeueAfter > 0 && b.RequeueAfter < a.RequeueAfter {
		return b
	}
	return a
}

// podEnds passes what can end a stop, and what a failure may be due to: a pod that is gone, at its end, or lost, or
// that shows a broken node.
func podEnds() predicate.Funcs {
	marked := func(o client.Object) bool {
		reason, _ := avoid.MarkOf(o.(*corev1.Pod))
		return reason != ""
	}
	ended := func(o client.Object) bool { return store.PodEnded(o.(*corev1.Pod)) || store.PodLost(o.(*corev1.Pod)) }
	return predicate.Funcs{
		CreateFunc: func(e event.CreateEvent) bool { return marked(e.Object) }, // the watch may have missed its beginning
		UpdateFunc: func(e event.UpdateEvent) bool {
			return ended(e.ObjectNew) && !ended(e.ObjectOld) || store.PodCutShort(e.ObjectNew.(*corev1.Pod)) &&
				!store.PodCutShort(e.ObjectOld.(*corev1.Pod)) || marked(e.ObjectNew) && !marked(e.ObjectOld)
		},
		DeleteFunc:  func(event.DeleteEvent) bool { return true },
		GenericFunc: func(event.GenericEvent) bool { return false },
	}
}

// asItIs asks mapping about an object as it is. handler.EnqueueRequestsFromMapFunc asks about what it was, too: of a
// gang, each pod that succeeds was one that may have to be replaced.
func asItIs(mapping handler.MapFunc) handler.EventHandler {
	mapped := handler.EnqueueRequestsFromMapFunc(mapping)
	return handler.Funcs{
		CreateFunc: mapped.Create, DeleteFunc: mapped.Delete, GenericFunc: mapped.Generic,
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q workqueue.Queue) {
			mapped.Generic(ctx, event.GenericEvent{Object: e.ObjectNew}, q)
		},
	}
}

// jobOf returns the TrainJob of a pod, where its end matters: quota is held for its pods alone, because it is
// suspended, finished or deleted; or the pod, in a gang, may have to be replaced; or it was lost.
func (r *Reconciler) jobOf(ctx context.Context, o client.Object) []reconcile.Request {
	pod := o.(*corev1.Pod)
	key := types.NamespacedName{Namespace: pod.GetNamespace(), Name: pod.Labels[jobset.JobSetNameKey]}
	request := []reconcile.Request{{NamespacedName: key}}
	if store.PodLost(pod) {
		r.store.Pods.SawLost(pod)
		return request
	}
	if reason, _ := avoid.MarkOf(pod); reason != "" {
		return request
	}
	if pod.Spec.SchedulingGroup != nil && pod.Status.Phase != corev1.PodSucceeded {
		return request
	}
	var trainJob api.TrainJob
	err := r.client.Get(ctx, key, &trainJob, client.UnsafeDisableDeepCopy)
	if client.IgnoreNotFound(err) != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Reading the TrainJob of a pod", "trainJob", key)
		return request
	}
	present := err == nil && trainJob.DeletionTimestamp.IsZero() && !hasEnded(&trainJob)
	if present && ptr.Deref(trainJob.Spec.Suspend, false) {
		return request
	}
	if present {
		return nil
	}
	workloads, err := r.workloadsOf(ctx, key)
	if err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Listing the Workloads of a pod's TrainJob", "trainJob", key)
	} else if !holdQuota(workloads) {
		return nil
	}
	return request
}

func (r *Reconciler) jobsIn(ctx context.Context, namespace client.Object) []reconcile.Request {
	var list api.TrainJobList
	err := r.client.List(ctx, &list, client.InNamespace(namespace.GetName()), client.UnsafeDisableDeepCopy)
	if err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Listing the TrainJobs of a namespace", "namespace", namespace.GetName())
		return nil
	}
	var requests []reconcile.Request
	for i := range list.Items {
		requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&list.Items[i])})
	}
	return requests
}

// selection passes namespaces that Kueue manages from now on, or doesn't any more: their TrainJobs are queued, or leave
// their queues.
func (p policy) selection() predicate.Funcs {
	selected := func(o client.Object) bool { return p.managed.Selector.Matches(labels.Set(o.GetLabels())) }
	passed := predicate.NewPredicateFuncs(func(client.Object) bool { return false })
	passed.UpdateFunc = func(e event.UpdateEvent) bool { return selected(e.ObjectOld) != selected(e.ObjectNew) }
	return passed
}

// waitingJobsOf returns the suspended TrainJobs that refer to a runtime of the kind.
func (r *Reconciler) waitingJobsOf(kind string) handler.MapFunc {
	return func(ctx context.Context, rt client.Object) []reconcile.Request {
		var list api.TrainJobList
		err := r.client.List(ctx, &list, client.InNamespace(rt.GetNamespace()),
			client.MatchingFields{runtimeIndex: runtimeKey(kind, rt.GetName())})
		if err != nil {
			ctrl.LoggerFrom(ctx).Error(err, "Listing the TrainJobs of a runtime", "kind", kind, "name", rt.GetName())
			return nil
		}
		var requests []reconcile.Request
		for i := range list.Items {
			if ptr.Deref(list.Items[i].Spec.Suspend, false) {
				requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&list.Items[i])})
			}
		}
		return requests
	}
}
