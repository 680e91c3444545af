package gang

import (
	"context"
	"fmt"
	"reflect"
	"sync"
	"time"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// Selector is of all objects that are made here.
func Selector() labels.Selector {
	r, err := labels.NewRequirement(partLabel, selection.Exists, nil)
	if err != nil {
		panic(err) // the label is a constant
	}
	return labels.NewSelector().Add(*r)
}

// ownerIndex finds objects by the UID of their controller.
const ownerIndex = "controller"

// How long the first list of the objects may take before who asks is told to come back, and before it is taken for one
// that never comes.
const (
	listSoon = 2 * time.Second
	listEver = time.Minute
)

// served is the API while the API server serves it: a version, and a cache of our objects in it.
type served struct {
	version version
	objects client.Reader
	synced  func(context.Context) bool
	stop    context.CancelFunc
	since   time.Time
}

// api returns the API as it is served now; nil where it isn't. The error says that no groups can be made, by an
// *errNotServed, or that it is to be tried again; what is there can be looked at even so where the first is not nil.
// fresh is how old what was found may be.
func (g *Gangs) api(ctx context.Context, fresh time.Duration) (*served, error) {
	if !g.probing.TryLock() {
		if at, s, why := g.last(); !at.IsZero() {
			return s, why // somebody is looking; so long, what was found before holds
		}
		g.probing.Lock()
	}
	defer g.probing.Unlock()
	at, s, why := g.last()
	if !at.IsZero() && g.clock.Since(at) < fresh {
		return s, why
	}
	at = g.clock.Now()
	v, err := find(g.discovery)
	if err == nil && g.clock.Since(g.named) > jobSetEvery {
		if err = canName(ctx, g.reader); err == nil {
			g.named = at
		}
	}
	if why = err; why != nil && !notServed(why) {
		at = at.Add(time.Second - fresh) // for a second, all others are spared the same
		g.keep(s, why, at)
		return s, why
	}
	if s, err = g.follows(ctx, v); err != nil {
		why, at = err, at.Add(time.Second-fresh)
	}
	g.keep(s, why, at)
	return s, why
}

// follows returns the API in a version, with a cache that is in step; nil for no version. Only who probes may call it.
func (g *Gangs) follows(ctx context.Context, v version) (*served, error) {
	if g.watched != nil && g.watched.version != v {
		g.watched.stop()
		g.watched = nil
		gangsUnschedulable.Set(0)
	}
	if v == nil {
		return nil, nil
	}
	if g.watched == nil {
		var err error
		if g.watched, err = g.watch(ctx, v); err != nil {
			return nil, err
		}
	}
	if g.watched.synced(ctx) {
		return g.watched, nil
	}
	if g.clock.Since(g.watched.since) > listEver {
		return nil, &errNotServed{fmt.Sprintf("Workloads and PodGroups of %s can't be listed; the manager's log says why (its ClusterRole may be an earlier release's)", v.groupVersion())}
	}
	return nil, fmt.Errorf("Workloads and PodGroups of %s are still being listed", v.groupVersion())
}

// last is when was looked last, zero for never, and what was found.
func (g *Gangs) last() (at time.Time, s *served, why error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.checked, g.served, g.why
}

func (g *Gangs) keep(s *served, why error, at time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.served, g.why, g.checked = s, why, at
}

// doubt makes the next who asks look again what is served.
func (g *Gangs) doubt() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.checked = g.clock.Now().Add(-keepEvery)
}

// watch starts a cache of our objects, and sends on what happens to them.
func (g *Gangs) watch(ctx context.Context, v version) (*served, error) {
	objects, err := g.newCache()
	if err != nil {
		return nil, fmt.Errorf("making a cache of PodGroups: %w", err)
	}
	life, stop := context.WithCancel(g.life)
	s := &served{version: v, objects: objects, stop: stop, since: g.clock.Now(), synced: func(ctx context.Context) bool {
		within, cancel := context.WithTimeout(ctx, listSoon)
		defer cancel()
		return objects.WaitForCacheSync(within)
	}}
	if err := g.register(ctx, life, s, objects); err != nil {
		stop()
		return nil, fmt.Errorf("watching PodGroups of %s: %w", v.groupVersion(), err)
	}
	g.made.Clear() // the new cache shows whatever is there
	g.removed.Clear()
	go func() {
		if err := objects.Start(life); err != nil {
			ctrl.LoggerFrom(life).Error(err, "Caching PodGroups")
		}
	}()
	ctrl.LoggerFrom(ctx).Info("Workloads and PodGroups are served", "version", v.groupVersion().String())
	return s, nil
}

// register tells a cache what to keep, and what to do when it changes.
func (g *Gangs) register(ctx, life context.Context, s *served, objects cache.Cache) error {
	for _, kind := range []client.Object{s.version.emptyPodGroup(), s.workload()} {
		if err := objects.IndexField(ctx, kind, ownerIndex, byOwner); err != nil {
			return err
		}
	}
	podGroups, err := objects.GetInformer(ctx, s.version.emptyPodGroup(), cache.BlockUntilSynced(false))
	if err != nil {
		return err
	}
	if _, err := podGroups.AddEventHandler(g.follow(life, s.version)); err != nil {
		return err
	}
	workloads, err := objects.GetInformer(ctx, s.workload(), cache.BlockUntilSynced(false))
	if err != nil {
		return err
	}
	// One that a start has left, which had come no further, is found by it.
	_, err = workloads.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc: func(o any) { g.send(life, o) },
		DeleteFunc: func(o any) {
			if workload := lastOf(o); workload != nil {
				g.removed.Delete(workload.GetUID())
			}
		},
	})
	return err
}

func byOwner(o client.Object) []string {
	if owner := metav1.GetControllerOf(o); owner != nil {
		return []string{string(owner.UID)}
	}
	return nil
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
			g.made.Delete(client.ObjectKeyFromObject(podGroup))
			count(podGroup, v.read(podGroup), false)
			g.send(ctx, o)
		},
		UpdateFunc: func(before, after any) {
			podGroup := after.(client.Object)
			was, is := v.read(before.(client.Object)), v.read(podGroup)
			if reflect.DeepEqual(was, is) {
				return
			}
			if !was.placed() && is.placed() && !is.later { // how long the pods of a later one have waited is not known here
				gangWait.Observe(is.scheduled.LastTransitionTime.Sub(is.made.Time).Seconds())
			}
			count(podGroup, is, false)
			g.send(ctx, after)
		},
		DeleteFunc: func(o any) {
			podGroup := lastOf(o)
			if podGroup == nil {
				return
			}
			g.made.Delete(client.ObjectKeyFromObject(podGroup))
			g.removed.Delete(podGroup.GetUID())
			count(podGroup, v.read(podGroup), true)
			g.send(ctx, podGroup)
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
	if owner == nil || owner.Kind != trainerapi.TrainJobKind || owner.APIVersion != trainerapi.GroupVersion.String() {
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
	if err := s.objects.List(ctx, list, client.InNamespace(job.Namespace), client.MatchingFields{ownerIndex: string(job.UID)}); err != nil {
		return fmt.Errorf("listing the TrainJob's groups: %w", err)
	}
	return apimeta.EachListItem(list, func(o runtime.Object) error { return visit(o.(client.Object)) })
}

// remove deletes the TrainJob's objects but those of a plan. The PodGroups go first: of one that is left without its
// Workload the garbage collector would write so.
func (g *Gangs) remove(ctx context.Context, s *served, job *api.TrainJob, but *plan) error {
	workloads := &metav1.PartialObjectMetadataList{}
	workloads.SetGroupVersionKind(s.version.groupVersion().WithKind("WorkloadList"))
	for _, list := range []client.ObjectList{s.version.podGroups(), workloads} {
		err := s.each(ctx, job, list, func(o client.Object) error {
			uid := o.GetUID()
			_, gone := g.removed.Load(uid)
			if gone || but.has(o.GetName()) || !o.GetDeletionTimestamp().IsZero() {
				return nil
			}
			if err := g.client.Delete(ctx, o, client.Preconditions{UID: &uid}); client.IgnoreNotFound(err) != nil {
				return fmt.Errorf("deleting %s: %w", o.GetName(), err)
			}
			g.removed.Store(uid, nil)
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// lastOf is the last state of an object that is gone; nil where it isn't known.
func lastOf(o any) client.Object {
	if last, ok := o.(toolscache.DeletedFinalStateUnknown); ok {
		o = last.Obj
	}
	object, _ := o.(client.Object)
	return object
}
