package gang

import (
	"context"
	"fmt"
	"reflect"
	"sync"
	"time"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// ownerIndex finds objects by the UID of their controller.
const ownerIndex = "controller"

// syncWait is how long a caller waits for the first list of the objects; then it retries later.
const syncWait = 2 * time.Second

// Selector returns the label selector of all objects that this package creates.
func Selector() labels.Selector {
	r, err := labels.NewRequirement(partLabel, selection.Exists, nil)
	if err != nil {
		panic(err) // the label is a constant
	}
	return labels.NewSelector().Add(*r)
}

// served is one version of the API that the API server serves, and a cache of the objects that Selector selects.
type served struct {
	version *version
	objects client.Reader
	// synced waits up to syncWait for the first list, and reports whether it is complete.
	synced func(context.Context) bool
	stop   func()
	// since is when the cache was started.
	since time.Time
}

// watcher follows the objects that this package has created.
type watcher struct {
	newCache func() (cache.Cache, error)
	clock    clock.PassiveClock
	// lifetime is the context of the process; the caches run until it ends.
	lifetime context.Context
	// changed gets the TrainJobs whose objects have changed.
	changed chan event.GenericEvent

	// created holds the types.NamespacedName of PodGroups that this process has created and that the cache doesn't show
	// yet; deleted the types.UID of objects that it has deleted and that the cache still shows.
	created, deleted sync.Map
	unplaced         unplaced
}

// watch starts a cache of the objects in a version. Its events update the metrics and are sent to changed.
func (w *watcher) watch(ctx context.Context, v *version) (*served, error) {
	objects, err := w.newCache()
	if err != nil {
		return nil, fmt.Errorf("creating a cache of PodGroups: %w", err)
	}
	running, stop := context.WithCancel(w.lifetime)
	s := &served{version: v, objects: objects, since: w.clock.Now()}
	s.stop = func() {
		stop()
		w.unplaced.clear()
	}
	s.synced = func(ctx context.Context) bool {
		waiting, cancel := context.WithTimeout(ctx, syncWait)
		defer cancel()
		return objects.WaitForCacheSync(waiting)
	}
	if err := w.register(ctx, running, s, objects); err != nil {
		stop()
		return nil, fmt.Errorf("watching PodGroups of %s: %w", v, err)
	}
	w.created.Clear() // the new cache shows all that exists
	w.deleted.Clear()
	go func() {
		if err := objects.Start(running); err != nil {
			ctrl.LoggerFrom(running).Error(err, "Caching PodGroups")
		}
	}()
	ctrl.LoggerFrom(ctx).Info("Workloads and PodGroups are served", "version", v.String())
	return s, nil
}

// register adds the index and the event handlers to a cache. running is the context in which the cache runs.
func (w *watcher) register(ctx, running context.Context, s *served, objects cache.Cache) error {
	for _, watched := range []struct {
		kind    client.Object
		handler toolscache.ResourceEventHandler
	}{
		{s.version.object("PodGroup", types.NamespacedName{}), w.podGroupHandler(running, s.version)},
		{s.emptyWorkload(), w.workloadHandler(running)},
	} {
		if err := objects.IndexField(ctx, watched.kind, ownerIndex, byOwner); err != nil {
			return err
		}
		informer, err := objects.GetInformer(ctx, watched.kind, cache.BlockUntilSynced(false))
		if err != nil {
			return err
		}
		if _, err := informer.AddEventHandler(watched.handler); err != nil {
			return err
		}
	}
	return nil
}

func byOwner(o client.Object) []string {
	if owner := metav1.GetControllerOf(o); owner != nil {
		return []string{string(owner.UID)}
	}
	return nil
}

// emptyWorkload returns an empty Workload; only its metadata is read.
func (s *served) emptyWorkload() *metav1.PartialObjectMetadata {
	o := &metav1.PartialObjectMetadata{}
	o.SetGroupVersionKind(s.version.WithKind("Workload"))
	return o
}

// list reads the TrainJob's objects of one kind from the cache.
func (s *served) list(ctx context.Context, job *api.TrainJob, list client.ObjectList) error {
	owned := client.MatchingFields{ownerIndex: string(job.UID)}
	if err := s.objects.List(ctx, list, client.InNamespace(job.Namespace), owned); err != nil {
		return fmt.Errorf("listing the TrainJob's groups: %w", err)
	}
	return nil
}

// notify sends the TrainJob that controls an object to changed. It blocks until the TrainJob is received or ctx ends.
func (w *watcher) notify(ctx context.Context, object client.Object) {
	owner := metav1.GetControllerOf(object)
	if owner == nil || owner.Kind != trainerapi.TrainJobKind || owner.APIVersion != trainerapi.GroupVersion.String() {
		return // another user's object with the same label
	}
	job := &api.TrainJob{ObjectMeta: metav1.ObjectMeta{Namespace: object.GetNamespace(), Name: owner.Name}}
	select {
	case w.changed <- event.GenericEvent{Object: job}:
	case <-ctx.Done():
	}
}

// podGroupHandler sends the TrainJobs of changed PodGroups to changed, and forgets what was known of deleted ones.
func (w *watcher) podGroupHandler(running context.Context, v *version) toolscache.ResourceEventHandlerFuncs {
	return toolscache.ResourceEventHandlerFuncs{
		AddFunc: func(o any) {
			podGroup := o.(client.Object)
			w.created.Delete(client.ObjectKeyFromObject(podGroup))
			w.unplaced.add(client.ObjectKeyFromObject(podGroup))
			w.notify(running, podGroup)
		},
		UpdateFunc: func(before, after any) {
			podGroup := after.(*unstructured.Unstructured)
			was, is := v.read(before.(*unstructured.Unstructured)), v.read(podGroup)
			if reflect.DeepEqual(was, is) {
				return // it doesn't affect its TrainJob
			}
			if !was.placed() && is.placed() && !is.later { // it isn't known how long the pods of a later group have waited
				gangWait.Observe(is.scheduled.LastTransitionTime.Sub(is.created.Time).Seconds())
			}
			w.notify(running, podGroup)
		},
		DeleteFunc: func(o any) {
			if podGroup := lastState(o); podGroup != nil {
				w.created.Delete(client.ObjectKeyFromObject(podGroup))
				w.deleted.Delete(podGroup.GetUID())
				w.unplaced.remove(client.ObjectKeyFromObject(podGroup))
				w.notify(running, podGroup)
			}
		},
	}
}

// workloadHandler forgets deleted Workloads. An interrupted start may leave a Workload without PodGroups; its TrainJob
// is reconciled to delete it.
func (w *watcher) workloadHandler(running context.Context) toolscache.ResourceEventHandlerFuncs {
	return toolscache.ResourceEventHandlerFuncs{
		AddFunc: func(o any) { w.notify(running, o.(client.Object)) },
		DeleteFunc: func(o any) {
			if workload := lastState(o); workload != nil {
				w.deleted.Delete(workload.GetUID())
			}
		},
	}
}

// lastState returns the last known state of a deleted object; nil if it isn't known.
func lastState(o any) client.Object {
	if last, ok := o.(toolscache.DeletedFinalStateUnknown); ok {
		o = last.Obj
	}
	object, _ := o.(client.Object)
	return object
}
