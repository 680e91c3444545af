package model

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
)

// owning are the kinds that the garbage collector looks at.
var owning = []string{"TrainJob", "Workload", "JobSet", "Job", "Pod", "ConfigMap"}

// collection is what the garbage collector knows (kubernetes/pkg/controller/garbagecollector).
type collection struct {
	there map[types.UID]client.Object
	// dependents counts what names an owner, and blocking what blocks its deletion in the foreground.
	dependents, blocking map[types.UID]int
}

func (w *world) collection() *collection {
	c := &collection{map[types.UID]client.Object{}, map[types.UID]int{}, map[types.UID]int{}}
	for _, kind := range owning {
		for _, o := range w.all(kind) {
			c.there[o.GetUID()] = o
			for _, owner := range o.GetOwnerReferences() {
				c.dependents[owner.UID]++
				if ptr.Deref(owner.BlockOwnerDeletion, false) {
					c.blocking[owner.UID]++
				}
			}
		}
	}
	return c
}

// waits reports whether an object waits for the deletion of its dependents.
func (c *collection) waits(o client.Object) bool {
	return o != nil && !o.GetDeletionTimestamp().IsZero() &&
		controllerutil.ContainsFinalizer(o, metav1.FinalizerDeleteDependents)
}

// solid reports whether an owner keeps its dependents.
func (c *collection) solid(owner metav1.OwnerReference) bool {
	o := c.there[owner.UID]
	return o != nil && !c.waits(o)
}

// collectorActions are the steps of the garbage collector.
func (w *world) collectorActions() []action {
	c := w.collection()
	var all []action
	for _, kind := range owning {
		for _, o := range w.all(kind) {
			if a := c.actionOn(kind, o); a.do != nil {
				all = append(all, a)
			}
		}
	}
	return all
}

func (c *collection) actionOn(kind string, o client.Object) action {
	name := kind + " " + o.GetName()
	owners := o.GetOwnerReferences()
	switch {
	case !o.GetDeletionTimestamp().IsZero() && slices.Contains(o.GetFinalizers(), metav1.FinalizerOrphanDependents):
		return action{"the garbage collector orphans what " + name + " owns", surely, func(w *world) {
			for _, kind := range owning {
				for _, of := range w.all(kind) {
					w.disown(of, func(owner metav1.OwnerReference) bool { return owner.UID == o.GetUID() })
				}
			}
			w.unfinalize(o, metav1.FinalizerOrphanDependents)
		}}
	case c.waits(o):
		if c.blocking[o.GetUID()] > 0 {
			return action{}
		}
		return action{"the garbage collector finalizes " + name, surely, func(w *world) {
			w.unfinalize(o, metav1.FinalizerDeleteDependents)
		}}
	case !o.GetDeletionTimestamp().IsZero() || len(owners) == 0 || !slices.ContainsFunc(owners, c.unsolid):
		return action{}
	case slices.ContainsFunc(owners, c.solid):
		return action{"the garbage collector takes owners from " + name, surely, func(w *world) { w.disown(o, c.unsolid) }}
	}
	var options []client.DeleteOption
	if c.dependents[o.GetUID()] > 0 && slices.ContainsFunc(owners, func(owner metav1.OwnerReference) bool {
		return c.waits(c.there[owner.UID])
	}) {
		options = append(options, client.PropagationPolicy(metav1.DeletePropagationForeground))
	}
	return action{"the garbage collector deletes " + name, surely, func(w *world) {
		must(w.api().Delete(background, o.DeepCopyObject().(client.Object), options...))
	}}
}

func (c *collection) unsolid(owner metav1.OwnerReference) bool { return !c.solid(owner) }

// disown removes owners from an object.
func (w *world) disown(o client.Object, which func(metav1.OwnerReference) bool) {
	owners := slices.DeleteFunc(slices.Clone(o.GetOwnerReferences()), which)
	if len(owners) < len(o.GetOwnerReferences()) {
		o = o.DeepCopyObject().(client.Object)
		o.SetOwnerReferences(owners)
		w.update(o)
	}
}

func (w *world) unfinalize(o client.Object, finalizer string) {
	o = o.DeepCopyObject().(client.Object)
	controllerutil.RemoveFinalizer(o, finalizer)
	w.update(o)
}
