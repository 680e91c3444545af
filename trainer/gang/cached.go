package gang

import (
	"context"
	"fmt"
	"reflect"
	"sync"
	"time"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// Selector is of all objects that are made here.
func Selector() labels.Selector { return labels.SelectorFromSet(labels.Set{managedByLabel: managedBy}) }

// ownerIndex finds objects by the UID of their controller.
const ownerIndex = "controller"

// syncTimeout bounds how long the first list of the objects may take.
const syncTimeout = 10 * time.Second

// brokenFor is for how long nothing is tried again where the objects are served and can't be listed: every TrainJob would
// wait for it.
const brokenFor = 5 * time.Minute

// served is the API while the API server serves it: a version, and a cache of our objects in it.
type served struct {
	version version
	cache   cache.Cache
	stop    context.CancelFunc
}

// api returns the API as it is served now. Where it isn't, the error is an *errNotServed.
func (g *Gangs) api(ctx context.Context) (*served, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.clock.Since(g.checked) < checkEvery {
		return g.served, g.why
	}
	v, err := find(ctx, g.discovery, g.reader)
	if err != nil && !notServed(err) {
		return nil, err // tried again by the next who asks
	}
	if g.served != nil && (err != nil || g.served.version != v) {
		g.served.stop()
		g.served = nil
	}
	g.checked = g.clock.Now()
	if err == nil && g.served == nil {
		if g.served, err = g.watch(ctx, v); err != nil {
			ctrl.LoggerFrom(ctx).Error(err, "No gangs can be made", "tryingAgainAfter", brokenFor.String())
			g.checked, err = g.checked.Add(brokenFor), &errNotServed{err.Error()}
		}
	}
	g.why = err
	return g.served, err
}

// doubt makes the next who asks look again what is served.
func (g *Gangs) doubt() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.checked = time.Time{}
}

// watch starts a cache of our objects, and sends on what happens to them.
func (g *Gangs) watch(ctx context.Context, v version) (*served, error) {
	objects, err := g.newCache()
	if err != nil {
		return nil, fmt.Errorf("making a cache of PodGroups: %w", err)
	}
	life, stop := context.WithCancel(g.life)
	s := &served{version: v, cache: objects, stop: stop}
	err = func() error {
		for _, kind := range []client.Object{v.emptyPodGroup(), s.workload()} {
			if err := objects.IndexField(ctx, kind, ownerIndex, func(o client.Object) []string {
				if owner := metav1.GetControllerOf(o); owner != nil {
					return []string{string(owner.UID)}
				}
				return nil
			}); err != nil {
				return err
			}
		}
		podGroups, err := objects.GetInformer(ctx, v.emptyPodGroup(), cache.BlockUntilSynced(false))
		if err != nil {
			return err
		}
		if _, err := podGroups.AddEventHandler(g.follow(life, v)); err != nil {
			return err
		}
		workloads, err := objects.GetInformer(ctx, s.workload(), cache.BlockUntilSynced(false))
		if err != nil {
			return err
		}
		// One that a start has left, which had come no further, is found by it.
		if _, err := workloads.AddEventHandler(toolscache.ResourceEventHandlerFuncs{AddFunc: func(o any) { g.send(life, o) }}); err != nil {
			return err
		}
		go func() {
			if err := objects.Start(life); err != nil {
				ctrl.LoggerFrom(life).Error(err, "Caching PodGroups")
			}
		}()
		within, cancel := context.WithTimeout(ctx, syncTimeout)
		defer cancel()
		if !objects.WaitForCacheSync(within) {
			return fmt.Errorf("Workloads and PodGroups can't be listed within %s; see the log for why", syncTimeout)
		}
		return nil
	}()
	if err != nil {
		stop()
		return nil, fmt.Errorf("watching PodGroups of %s: %w", v.groupVersion(), err)
	}
	ctrl.LoggerFrom(ctx).Info("Workloads and PodGroups are served", "version", v.groupVersion().String())
	return s, nil
}

// workload is an empty Workload, of which nothing but the metadata matters.
func (s *served) workload() *metav1.PartialObjectMetadata {
	w := &metav1.PartialObjectMetadata{}
	w.SetGroupVersionKind(s.version.groupVersion().WithKind("Workload"))
	return w
}

// follow counts what becomes of PodGroups, and sends their TrainJobs on.
func (g *Gangs) follow(ctx context.Context, v version) toolscache.ResourceEventHandler {
	var mu sync.Mutex
	waiting := map[types.NamespacedName]bool{}
	count := func(o client.Object, now podGroupState, gone bool) {
		mu.Lock()
		defer mu.Unlock()
		if now.refused() && !gone {
			waiting[client.ObjectKeyFromObject(o)] = true
		} else {
			delete(waiting, client.ObjectKeyFromObject(o))
		}
		gangsUnschedulable.Set(float64(len(waiting)))
	}
	return toolscache.ResourceEventHandlerFuncs{
		AddFunc: func(o any) {
			podGroup := o.(client.Object)
			g.expect(client.ObjectKeyFromObject(podGroup), false)
			count(podGroup, v.read(podGroup), false)
			g.send(ctx, o)
		},
		UpdateFunc: func(before, after any) {
			podGroup := after.(client.Object)
			was, is := v.read(before.(client.Object)), v.read(podGroup)
			if reflect.DeepEqual(was, is) {
				return
			}
			if !was.placed() && is.placed() {
				gangWait.Observe(is.scheduled.LastTransitionTime.Sub(is.made.Time).Seconds())
			}
			count(podGroup, is, false)
			g.send(ctx, after)
		},
		DeleteFunc: func(o any) {
			if last, ok := o.(toolscache.DeletedFinalStateUnknown); ok {
				o = last.Obj
			}
			podGroup, ok := o.(client.Object)
			if !ok {
				return
			}
			g.expect(client.ObjectKeyFromObject(podGroup), false)
			count(podGroup, v.read(podGroup), true)
			g.send(ctx, o)
		},
	}
}

// send sends the TrainJob of an object on.
func (g *Gangs) send(ctx context.Context, o any) {
	object, ok := o.(client.Object)
	if !ok {
		return
	}
	owner := metav1.GetControllerOf(object)
	if owner == nil || owner.Kind != trainer.TrainJobKind || owner.APIVersion != trainer.GroupVersion.String() {
		return // another's, with the same label
	}
	job := &api.TrainJob{ObjectMeta: metav1.ObjectMeta{Namespace: object.GetNamespace(), Name: owner.Name}}
	select {
	case g.changed <- event.GenericEvent{Object: job}:
	case <-ctx.Done():
	}
}

// podGroups returns the TrainJob's PodGroups by name.
func (s *served) podGroups(ctx context.Context, job *api.TrainJob) (map[string]podGroupState, error) {
	states := map[string]podGroupState{}
	return states, s.each(ctx, job, s.version.podGroups(), func(o client.Object) error {
		states[o.GetName()] = s.version.read(o)
		return nil
	})
}

// each goes over the TrainJob's objects in the cache.
func (s *served) each(ctx context.Context, job *api.TrainJob, list client.ObjectList, visit func(client.Object) error) error {
	if err := s.cache.List(ctx, list, client.InNamespace(job.Namespace), client.MatchingFields{ownerIndex: string(job.UID)}); err != nil {
		return fmt.Errorf("listing the TrainJob's groups: %w", err)
	}
	return meta.EachListItem(list, func(o runtime.Object) error { return visit(o.(client.Object)) })
}

// remove deletes the TrainJob's objects but those of a plan. The Workload goes first: whoever is interrupted then finds
// the PodGroups by their pods' TrainJob all the same.
func (s *served) remove(ctx context.Context, c client.Client, job *api.TrainJob, but *plan) error {
	workloads := &metav1.PartialObjectMetadataList{}
	workloads.SetGroupVersionKind(s.version.groupVersion().WithKind("WorkloadList"))
	for _, list := range []client.ObjectList{workloads, s.version.podGroups()} {
		err := s.each(ctx, job, list, func(o client.Object) error {
			if but.has(o.GetName()) || !o.GetDeletionTimestamp().IsZero() {
				return nil
			}
			uid := o.GetUID()
			if err := c.Delete(ctx, o, client.Preconditions{UID: &uid}); client.IgnoreNotFound(err) != nil {
				return fmt.Errorf("deleting %s: %w", o.GetName(), err)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}
